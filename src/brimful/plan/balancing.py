"""Equal work: samples dealt to ranks, or to micro batches, so that the dearest part costs the least."""

from __future__ import annotations

from itertools import islice
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from .buckets import check_rising
from .budget import ENDLESS
from .costs import SampleCost, sample_costs
from .cut import cut_at, longest_first
from .dealing import Work, fitted, members, summed
from .errors import check_bool, integer
from .micro import StepWork, micro_batches_of
from .overlong import refuse_overlong
from .plan import IntArray, one_length


def balance(
    lengths: ArrayLike,
    num_parts: int,
    *,
    cost: SampleCost | None = None,
    max_tokens: int | None = None,
    padded: bool = False,
    equal_count: bool = False,
) -> list[IntArray]:
    """Deals samples to parts so that the dearest part costs as little as possible, for ranks of equal work.

    Each sample is in exactly one part. The cost of a part is the sum over its samples. With `padded=True` a part is a
    padded batch: each of its samples costs as much as the longest one. No part is empty unless there are fewer samples
    than parts.

    Args:
        lengths: tokens of each sample, (n,).
        num_parts: how many parts.
        cost: the cost of one sample: `AttentionCost`, or a function of a length, called once for each distinct length.
            The default is the length.
        max_tokens: most tokens in a part. With `padded=True` these are samples x longest. This limit always holds.
        padded: parts are padded batches of similar lengths. A longer sample must not cost less.
        equal_count: the same number of samples in each part.
    Returns:
        The sample numbers of each part, (k,) int64, longest first.
    Raises:
        OverlongError: a sample alone exceeds `max_tokens`.
        ValueError: no way was found to fit the samples into so many parts, or they cannot be divided in equal counts.
            The error has both numbers. Sums of more than 12 samples may have a way that is not found.
    Price: .03 s for 10^5 samples in 64 parts, about .5 s in 50,000. Memory: about 60 bytes a sample, and 130 a part.
    Source: longest processing time first (Graham 1969) and largest differencing (Karmarkar and Karp 1982). After each,
        the dearest part exchanges samples with another. For at most 12 samples, all ways are searched. Padded parts are
        exact, by bisection over the greatest cost.
    Example:
        >>> [part.tolist() for part in balance([8, 7, 6, 5, 4], 2)]
        [[2, 3, 4], [0, 1]]
        >>> [part.tolist() for part in balance([9, 2, 2, 2, 1], 2, max_tokens=8)]
        Traceback (most recent call last):
        brimful.plan.errors.OverlongError: a sample of 9 tokens (sample 0) cannot fit max_tokens=8; ...
    """
    lengths = one_length(lengths, "balance")
    num_parts = integer("num_parts", num_parts, 1, "part")
    check_bool("padded", padded)
    check_bool("equal_count", equal_count)
    if equal_count and len(lengths) % num_parts:
        raise ValueError(
            f"equal_count=True: {len(lengths):,} samples cannot be shared out equally among {num_parts:,} parts; give a multiple"
        )
    cap = None if max_tokens is None else _cap(lengths, max_tokens)
    sizes = lengths[:, None] if cap is not None else np.zeros((len(lengths), 0), np.int64)
    limits = np.array([] if cap is None else [cap], np.int64)
    work = Work(sample_costs(lengths, cost), sizes, limits, num_parts, equal_count)
    if padded:
        parts = _padded(work, lengths)
    else:
        part_of = summed(work)
        parts = None if part_of is None else members(part_of, lengths, num_parts)
    if parts is None:
        _refuse(work, padded)
    return parts


def micro_batches(
    lengths: ArrayLike,
    max_tokens: int,
    *,
    num_ranks: int = 1,
    same_count: bool = True,
    cost: SampleCost | None = None,
) -> list[list[IntArray]]:
    """Cuts the samples of an optimizer step into micro batches of at most `max_tokens` tokens, and deals these to the
    ranks.

    There are as few micro batches as can be found. At each place, the micro batches of all ranks cost about the same.
    Ranks that wait for each other after each micro batch therefore wait little.

    Args:
        lengths: tokens of each sample, (n,).
        max_tokens: most tokens in a micro batch. This limit always holds.
        num_ranks: how many data-parallel ranks.
        same_count: every rank gets the same number of micro batches, as collective operations need.
        cost: as for `balance`.
    Returns:
        For each rank, the sample numbers of its micro batches, (k,) int64 each. A micro batch is empty only if there
            are fewer samples than micro batches.
    Raises:
        OverlongError: a sample alone exceeds `max_tokens`.
    Price: that of `balance` for each number of micro batches that is tried: usually one, some ten where they are hard to
        fill. At most 2 s for 10^5 samples, and 100 bytes a sample.
    Example:
        >>> [[part.tolist() for part in rank] for rank in micro_batches([6, 5, 4, 3, 2, 2], 8, num_ranks=3)]
        [[[0, 5]], [[1, 4]], [[2, 3]]]
    """
    lengths = one_length(lengths, "micro_batches")
    num_ranks = integer("num_ranks", num_ranks, 1, "rank")
    check_bool("same_count", same_count)
    max_tokens = _cap(lengths, max_tokens)
    rows = np.broadcast_to(np.int64(1), len(lengths))
    sizes, limits = lengths[:, None], np.array([max_tokens], np.int64)
    step = StepWork(
        sample_costs(lengths, cost), sizes, limits, np.zeros(1, bool), rows, num_ranks, same_count=same_count
    )
    part_of, rank_of = micro_batches_of(step)
    counts = np.bincount(rank_of, minlength=num_ranks).tolist()
    del step, rank_of  # at most 100 bytes a sample
    parts = iter(members(part_of, lengths, sum(counts)))
    return [list(islice(parts, count)) for count in counts]


def _cap(lengths: IntArray, max_tokens: int) -> int:
    """The most tokens of a part, which each sample alone must keep."""
    cap = integer("max_tokens", max_tokens, 1, "token", most=ENDLESS)
    refuse_overlong(lengths, lengths <= cap, max_length=cap, limit=f"max_tokens={cap:,}", remedy="raise the limit")
    return cap


def _refuse(work: Work, padded: bool) -> NoReturn:
    lengths, (cap,) = work.sizes[:, 0], work.limits.tolist()  # without a limit there is always a way
    total = int(lengths.sum())
    room = f"{work.num_parts:,} parts of at most max_tokens={cap:,}"
    if work.equal_count:
        raise ValueError(
            f"{len(lengths):,} samples of {total:,} tokens were not brought into {room} and equal counts; raise the limit"
        )
    needed = len(_cut_padded(work, lengths, longest_first(lengths), np.inf)) if padded else int(fitted(work).max() + 1)
    fact = "cannot be" if padded else "were not"  # for sums there may be a way that was not found
    raise ValueError(
        f"{len(lengths):,} samples of {total:,} tokens {fact} brought into {room}: take {needed:,} parts, or raise the "
        "limit"
    )


# ------------------------------------------------------------------------------------------------- padded batches


def _padded(work: Work, lengths: IntArray) -> list[IntArray] | None:
    """Parts that cost samples x dearest: runs of the samples, longest first, exactly. None where the limit cannot be kept.

    Some best way has such runs, since exchanging samples until each part's are all longer than the next part's makes no part
    longer than the longest that it had; and each part takes what it may, since that leaves the fewest and the shortest.
    """
    values, first = np.unique(lengths, return_index=True)
    check_rising(values, work.costs[first], "balance(padded=True): cost")
    order = longest_first(lengths)
    costs = work.costs[order]
    if not len(order):
        return [order] * work.num_parts
    if work.equal_count:
        count = len(order) // work.num_parts
        kept = all(int(lengths[order[0]]) * count <= cap for cap in work.limits.tolist())
        return cut_at(order, np.arange(0, len(order), count)) if kept else None
    low, high = 0.0, float(costs[0]) * len(order)
    best = _cut_padded(work, lengths, order, high)
    if len(best) > work.num_parts:
        return None
    while low < (middle := (low + high) / 2) < high:
        found = _cut_padded(work, lengths, order, middle)
        if len(found) > work.num_parts:
            low = middle
        else:
            best = found
            high = float((np.diff([*found, len(order)]) * costs[found]).max())
    parts = cut_at(order, np.array(best))
    return parts + [order[:0]] * (work.num_parts - len(parts))


def _cut_padded(work: Work, lengths: IntArray, order: IntArray, limit: float) -> list[int]:
    """Where parts begin, each as large as may be at a cost of at most `limit`; more than there may be where that is too low."""
    starts: list[int] = []
    start = 0
    to_come = min(work.num_parts, len(order))
    while start < len(order):
        starts.append(start)
        to_come -= 1
        sample = order[start]
        most = len(order) - start - max(to_come, 0)  # one for each other part
        if len(work.limits) and lengths[sample]:
            most = min(most, int(work.limits[0]) // int(lengths[sample]))
        if work.costs[sample] * most > limit:
            most = int(limit // work.costs[sample])
        if most < 1:
            return [*starts, *range(work.num_parts + 1)]
        start += most
    return starts
