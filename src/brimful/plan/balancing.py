"""Equal work: samples dealt to ranks, or to micro batches, so that the dearest part costs the least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .buckets import check_rising
from .costs import SampleCost, sample_costs
from .cut import ascending, cut_at, longest_first
from .errors import check_bool, integer
from .overlong import refuse_overlong
from .pack import best_fit
from .plan import IntArray, one_length

FloatArray = NDArray[np.float64]

_SETTLED = 1.0002
"""Times the lower bound: nobody waits for less."""
_OTHERS = 16
"""How many parts are tried for an exchange, cheapest first."""
_EXACT_SAMPLES = 12
_EXACT_STEPS = 100_000
"""Of the search among all ways, which is tried where there are so few samples: a tenth of a second at most."""
_DIFFERENCED = 4_096
"""Largest differencing is tried for so many samples: above it, longest first is as good."""
_EXCHANGES = 1 << 24
"""Parts times exchanges: to look for one goes by all parts, and so long takes about a second."""
_TRIED_IN_TURN = 1 << 15
"""Samples times numbers of parts, up to which each number is tried."""


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
    room = np.inf if max_tokens is None else _cap(lengths, max_tokens)
    work = _Work(lengths, sample_costs(lengths, cost), num_parts, room, equal_count)
    if padded:
        parts = _padded(work)
    else:
        part_of = _summed(work)
        parts = None if part_of is None else _cut(lengths, part_of, num_parts)
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
    costs = sample_costs(lengths, cost)
    number, part_of = _fewest(lengths, costs, max_tokens, num_ranks if same_count else 1)
    costs_of = part_sums(part_of, costs, number)
    del costs
    dearest = np.argsort(-costs_of, kind="stable")
    rank_of = deal_greedily(costs_of[dearest], num_ranks)
    place = np.empty(number, np.int64)
    place[dearest[np.argsort(rank_of, kind="stable")]] = np.arange(number)  # rank after rank
    part_of = place[part_of]
    del costs_of, dearest, place
    parts = iter(_cut(lengths, part_of, number))
    return [list(islice(parts, count)) for count in np.bincount(rank_of, minlength=num_ranks).tolist()]


def deal_greedily(costs: FloatArray, num_parts: int) -> IntArray:
    """The part of each item, (n,): of each `num_parts` that follow one another, dearest first, the dearest goes to the part that
    has cost least so far.

    >>> deal_greedily(np.array([9.0, 5.0, 8.0, 1.0, 2.0]), 2).tolist()
    [0, 1, 1, 0, 0]
    """
    part_of = np.empty(len(costs), np.int64)
    done = np.zeros(min(num_parts, len(costs)))
    for start in range(0, len(costs), num_parts):
        turn = slice(start, start + num_parts)
        part_of[turn] = parts = np.argsort(done, kind="stable")[: len(costs[turn])]
        done[parts] += costs[turn]
    return part_of


def part_sums(part_of: IntArray, values: NDArray[Any], num_parts: int) -> FloatArray:
    """What the items of each part come to, (num_parts,). One after another, so that all machines find the same."""
    return np.bincount(part_of, values, num_parts).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class _Work:
    """What is to be dealt: tokens and cost of each sample, into how many parts, and the rules for a part.

    `max_tokens`: of a part; infinite where there is no limit.
    """

    lengths: IntArray
    costs: FloatArray
    num_parts: int
    max_tokens: float
    equal_count: bool = False

    @property
    def bound(self) -> float:
        """No way to deal has a dearest part that costs less."""
        return max(float(self.costs.sum()) / self.num_parts, float(self.costs.max(initial=0.0)))

    def loads(self, part_of: IntArray) -> FloatArray:
        return part_sums(part_of, self.costs, self.num_parts)

    def tokens(self, part_of: IntArray) -> FloatArray:
        return part_sums(part_of, self.lengths, self.num_parts)

    def keeps(self, part_of: IntArray) -> bool:
        """Whether no part has too many tokens."""
        return bool(self.tokens(part_of).max(initial=0) <= self.max_tokens)


def _cut(lengths: IntArray, part_of: IntArray, num_parts: int) -> list[IntArray]:
    """The samples of each part, longest first."""
    order = longest_first(lengths)
    sizes = np.bincount(part_of, minlength=num_parts)
    return cut_at(order[ascending(part_of[order])], np.cumsum(sizes) - sizes)


def _fewest(lengths: IntArray, costs: FloatArray, max_tokens: int, step: int) -> tuple[int, IntArray]:
    """The least number of parts, a multiple of `step`, for which a way was found to keep the limit, and the part of each sample.

    It lies between what no way can do without and what best fit takes. A few numbers are tried one after another, since a way
    may be found for one and not for the next; more by bisection.
    """
    low = -(-_no_fewer(lengths, max_tokens) // step)
    high = max(low, -(-int(_best_fit_decreasing(lengths, max_tokens).max(initial=0) + 1) // step))
    found: tuple[int, IntArray] | None = None
    while found is None or low < high:
        tried = low if (high - low) * len(lengths) <= _TRIED_IN_TURN else (low + high) // 2
        part_of = _summed(_Work(lengths, costs, tried * step, max_tokens))
        if part_of is None:
            low = tried + 1
        else:
            found, high = (tried * step, part_of), tried
    return found


def _no_fewer(lengths: IntArray, max_tokens: int) -> int:
    """So many parts, at least, are needed: each holds at most k samples that are longer than a (k + 1)-th of it, and a sample of
    j (k + 1)-ths and more takes j of these places (a dual feasible function; Fekete and Schepers 2001)."""
    most = max(-(-int(lengths.sum()) // max_tokens), 1)
    for k in range(1, 16):
        places = lengths * (k + 1)
        exact = (places % max_tokens == 0) & (lengths > 0)
        taken = int((places // max_tokens)[~exact].sum()) * max_tokens + int(lengths[exact].sum()) * k
        most = max(most, -(-taken // (k * max_tokens)))
    return most


def _cap(lengths: IntArray, max_tokens: int) -> int:
    """The most tokens of a part, which each sample alone must keep."""
    cap = integer("max_tokens", max_tokens, 1, "token")
    refuse_overlong(lengths, lengths <= cap, max_length=cap, limit=f"max_tokens={cap:,}", remedy="raise the limit")
    return cap


def _refuse(work: _Work, padded: bool) -> NoReturn:
    total = int(work.lengths.sum())
    assert work.max_tokens < np.inf, "without a limit there is always a way"
    room = f"{work.num_parts:,} parts of at most max_tokens={work.max_tokens:,}"
    if work.equal_count:
        raise ValueError(
            f"{len(work.lengths):,} samples of {total:,} tokens were not brought into {room} and equal counts; raise the limit"
        )
    needed = (
        len(_cut_padded(work, longest_first(work.lengths), np.inf))
        if padded
        else int(_best_fit_decreasing(work.lengths, int(work.max_tokens)).max() + 1)
    )
    fact = "cannot be" if padded else "were not"  # for sums there may be a way that was not found
    raise ValueError(
        f"{len(work.lengths):,} samples of {total:,} tokens {fact} brought into {room}: take {needed:,} parts, or raise the "
        "limit"
    )


# ------------------------------------------------------------------------------------------------- sums of samples


def _summed(work: _Work) -> IntArray | None:
    """The part of each sample, where parts cost the sum of their samples; None where no way was found that keeps the limit."""
    best: IntArray | None = None
    least = np.inf
    for start in _starts(work):
        part_of = _exchanged(work, start)
        dearest = work.loads(part_of).max(initial=0)
        if dearest < least:
            best, least = part_of, dearest
        if least <= work.bound * _SETTLED:
            break
    else:
        if len(work.lengths) <= _EXACT_SAMPLES:
            best = _searched(work, least, best)
    return best


def _starts(work: _Work) -> Iterator[IntArray]:
    """Ways to deal that keep the limit, to begin with."""
    ways, found = (_longest_first, _karmarkar_karp)[: 1 + (len(work.lengths) <= _DIFFERENCED)], False
    for way in ways:
        part_of = way(work)
        if work.keeps(part_of):
            found = True
            yield part_of
    if found:
        return
    by_tokens = replace(work, costs=work.lengths.astype(np.float64), max_tokens=np.inf)
    for way in ways:
        part_of = _exchanged(by_tokens, way(by_tokens))
        if work.keeps(part_of):
            yield part_of
            return
    if (
        not work.equal_count
        and (part_of := _best_fit_decreasing(work.lengths, int(work.max_tokens))).max() < work.num_parts
    ):
        yield part_of


def _longest_first(work: _Work) -> IntArray:
    """Each sample to the part that costs least until then, dearest first: many at once, where that is the same.

    The next k samples go to the k cheapest parts, one each, as long as the k-th of these costs no more than the first one will.
    """
    order = np.argsort(-work.costs, kind="stable")
    costs = work.costs[order]
    part_of = np.empty(len(order), np.int64)
    loads = np.zeros(work.num_parts)
    cheapest = np.arange(work.num_parts)
    start = 0
    while start < len(order):
        few = min(work.num_parts, len(order) - start)
        if not work.equal_count:
            rising = loads[cheapest[:few]]
            few = max(1, int(np.searchsorted(rising, rising[0] + costs[start + few - 1], side="right")))
            if few < work.num_parts >> 6:  # to sort the parts for each few takes longer than one after another
                few = min(work.num_parts, len(order) - start)
                part_of[order[start : start + few]] = _one_by_one(loads, costs[start : start + few])
                cheapest = np.argsort(loads, kind="stable")
                start += few
                continue
        taken = cheapest[:few]
        part_of[order[start : start + few]] = taken
        loads[taken] += costs[start : start + few]
        cheapest = np.argsort(loads, kind="stable")
        start += few
    return part_of


def _one_by_one(loads: FloatArray, costs: FloatArray) -> list[int]:
    """The part of each cost, that which costs least until then; `loads` are changed."""
    heap = [*zip(loads.tolist(), range(len(loads)))]
    heapify(heap)
    taken = []
    for cost in costs.tolist():
        load, part = heap[0]
        heapreplace(heap, (load + cost, part))
        taken.append(part)
    for load, part in heap:
        loads[part] = load
    return taken


def _karmarkar_karp(work: _Work) -> IntArray:
    """Largest differencing: of all ways to deal some samples the two most unequal ones are joined, dear parts to cheap ones.

    A way has the loads of its parts, dearest first, and their samples as chains: the first and the last of each, and for each
    sample the next. Parts without a sample, as most are at first, are left out.
    """
    order = np.argsort(-work.costs, kind="stable")
    size = work.num_parts if work.equal_count else 1
    following = np.full(len(order), -1)
    heap: list[tuple[float, int, FloatArray, IntArray, IntArray]] = []
    for number, start in enumerate(range(0, len(order), size)):
        members = order[start : start + size]
        loads = work.costs[members]
        least = loads[-1] if len(members) == work.num_parts else 0.0
        heap.append((least - loads[0], number, loads, members, members))
    heapify(heap)
    while len(heap) > 1:
        _, number, loads, firsts, lasts = heappop(heap)
        _, _, *other = heappop(heap)
        more, more_firsts, more_lasts = (each[::-1] for each in other)
        both = min(len(loads) + len(more), work.num_parts)
        shared = len(loads) + len(more) - both  # parts that have samples of the two ways
        joined = np.concatenate([loads, more[shared:]])
        joined[len(loads) - shared : len(loads)] += more[:shared]
        following[lasts[len(lasts) - shared :]] = more_firsts[:shared]
        falling = np.argsort(-joined, kind="stable")
        firsts = np.concatenate([firsts, more_firsts[shared:]])[falling]
        lasts = np.concatenate([lasts[: len(lasts) - shared], more_lasts])[falling]
        joined = joined[falling]
        least = joined[-1] if both == work.num_parts else 0.0
        heappush(heap, (least - joined[0], number, joined - least, firsts, lasts))
    part_of = np.empty(len(order), np.int64)
    if heap:
        samples, parts = heap[0][3], np.arange(len(heap[0][3]))
        while len(samples):
            part_of[samples] = parts
            samples = following[samples]
            samples, parts = samples[samples >= 0], parts[samples >= 0]
    return part_of


def _best_fit_decreasing(lengths: IntArray, max_tokens: int) -> IntArray:
    """As few parts as best-fit decreasing makes."""
    order = longest_first(lengths)
    part_of = np.empty(len(order), np.int64)
    part_of[order] = best_fit(np.maximum(lengths[order], 1), max_tokens)
    return part_of


def _none_empty(work: _Work, part_of: IntArray) -> IntArray:
    """The same with a sample in each part, where there are enough."""
    part_of = part_of.copy()
    counts = np.bincount(part_of, minlength=work.num_parts)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return part_of
    order = np.lexsort((work.costs, part_of))  # each part's cheapest first
    firsts = (np.cumsum(counts) - counts).tolist()
    fullest = [(-count, part) for part, count in enumerate(counts.tolist()) if count > 1]
    heapify(fullest)
    for part in empty:
        if not fullest:
            break
        count, source = fullest[0]
        part_of[order[firsts[source]]] = part
        firsts[source] += 1
        if count < -2:
            heapreplace(fullest, (count + 1, source))
        else:
            heappop(fullest)
    return part_of


def _exchanged(work: _Work, part_of: IntArray) -> IntArray:
    """The same after exchanges between the dearest part and another: a sample for a cheaper one, or for none."""
    part_of = _none_empty(work, part_of)
    loads, tokens = work.loads(part_of), work.tokens(part_of)
    enough = work.bound * _SETTLED
    if loads.max() <= enough:
        return part_of
    order = np.lexsort((work.costs, part_of))  # each part's cheapest first
    ends = np.cumsum(np.bincount(part_of, minlength=work.num_parts))
    changed: dict[int, IntArray] = {}  # members of the parts that differ by now

    def members(part: int) -> IntArray:
        found = changed.get(part)
        return order[ends[part - 1] if part else 0 : ends[part]] if found is None else found

    others = min(work.num_parts - 1, _OTHERS)
    before = np.inf
    for number in range(min(8 * work.num_parts, _EXCHANGES // work.num_parts) + 64):
        dearest = int(loads.argmax())
        settled = loads[dearest] <= enough
        if not number % (work.num_parts + 8):  # each part had its turn, and hardly anything came of it
            settled, before = settled or loads[dearest] * _SETTLED > before, loads[dearest]
        if settled:
            break
        for other in _least(loads, others):
            gap = loads[dearest] - loads[other]
            rooms = work.max_tokens - tokens[dearest], work.max_tokens - tokens[other]
            if swap := _swap(work, members(dearest), members(other), gap, rooms):
                break
        else:
            break
        for sample, source, target in zip(swap, (dearest, other), (other, dearest), strict=False):
            part_of[sample] = target
            loads[[source, target]] += -work.costs[sample], work.costs[sample]
            tokens[[source, target]] += -work.lengths[sample], work.lengths[sample]
            own, place = members(target), np.searchsorted(work.costs[members(target)], work.costs[sample])
            changed[source] = members(source)[members(source) != sample]
            changed[target] = np.concatenate([own[:place], [sample], own[place:]])
    return part_of


def _least(values: FloatArray, count: int) -> list[int]:
    """The places of the `count` least values, ascending, ties by place: what a stable sort would begin with."""
    if not count:
        return []
    few = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    found: list[int] = few[np.argsort(values[few], kind="stable")][:count].tolist()
    return found


def _swap(work: _Work, own: IntArray, others: IntArray, gap: float, rooms: tuple[float, float]) -> tuple[int, ...]:
    """The sample of the dearest part to give to another, cheaper by `gap`, and the one to get for it, if any; nothing where no
    exchange helps. `rooms`: for more tokens, in the dearest part and in the other.

    The best exchange evens the two out: what is given costs half the gap more than what comes back.
    """
    costs, lengths = work.costs, work.lengths
    own_room, room = rooms
    at = np.searchsorted(costs[others], costs[own] - gap / 2)
    at = np.maximum(at, np.searchsorted(lengths[others], lengths[own] - room))
    given = np.concatenate([own, own])
    got = np.concatenate([at, at - 1])
    known = (got >= 0) & (got < len(others))
    given, got = given[known], others[got[known]] if len(others) else got[known]
    change, more = costs[given] - costs[got], lengths[given] - lengths[got]
    if not work.equal_count and len(own) > 1:  # for none
        given = np.concatenate([given, own])
        got = np.concatenate([got, np.full(len(own), -1)])
        change, more = np.concatenate([change, costs[own]]), np.concatenate([more, lengths[own]])
    helps = (change > gap * 1e-9) & (change < gap * (1 - 1e-9)) & (more <= room) & (-more <= own_room)
    if not helps.any():
        return ()
    best = int(np.argmin(np.where(helps, np.abs(change - gap / 2), np.inf)))
    return (int(given[best]),) if got[best] < 0 else (int(given[best]), int(got[best]))


def _searched(work: _Work, least: float, best: IntArray | None) -> IntArray | None:
    """The best of all ways to deal a few samples: depth first, dearest sample first, no two parts alike tried twice."""
    order = np.argsort(-work.costs, kind="stable").tolist()
    costs, lengths = work.costs[order].tolist(), work.lengths[order].tolist()
    most = len(order) // work.num_parts if work.equal_count else len(order)
    parts = [(0.0, 0, 0)] * work.num_parts  # cost, tokens, samples
    chosen = [0] * len(order)
    steps = _EXACT_STEPS
    enough = work.bound * (1 + 1e-12)

    def deal(at: int) -> None:
        nonlocal least, best, steps
        steps -= 1
        if at == len(order):
            least = max(load for load, _, _ in parts)
            best = np.empty(len(order), np.int64)
            best[order] = chosen
            return
        empty = sum(not samples for _, _, samples in parts)
        tried = set()
        for part, (load, tokens, samples) in sorted(enumerate(parts), key=lambda one: one[1]):
            new = (load + costs[at], tokens + lengths[at], samples + 1)
            wasted = samples and len(order) - at <= empty  # each sample to come is needed by an empty part
            full = new[1] > work.max_tokens or new[2] > most
            if new[0] >= least or full or wasted or (load, tokens, samples) in tried:
                continue
            tried.add((load, tokens, samples))
            parts[part], chosen[at] = new, part
            deal(at + 1)
            parts[part] = (load, tokens, samples)
            if steps < 0 or least <= enough:
                return

    deal(0)
    return best


# ------------------------------------------------------------------------------------------------- padded batches


def _padded(work: _Work) -> list[IntArray] | None:
    """Parts that cost samples x dearest: runs of the samples, longest first, exactly. None where the limit cannot be kept.

    Some best way has such runs, since exchanging samples until each part's are all longer than the next part's makes no part
    longer than the longest that it had; and each part takes what it may, since that leaves the fewest and the shortest.
    """
    values, first = np.unique(work.lengths, return_index=True)
    check_rising(values, work.costs[first], "balance(padded=True): cost")
    order = longest_first(work.lengths)
    costs = work.costs[order]
    if not len(order):
        return [order] * work.num_parts
    if work.equal_count:
        count = len(order) // work.num_parts
        kept = int(work.lengths[order[0]]) * count <= work.max_tokens
        return cut_at(order, np.arange(0, len(order), count)) if kept else None
    low, high = 0.0, float(costs[0]) * len(order)
    best = _cut_padded(work, order, high)
    if len(best) > work.num_parts:
        return None
    while low < (middle := (low + high) / 2) < high:
        found = _cut_padded(work, order, middle)
        if len(found) > work.num_parts:
            low = middle
        else:
            best = found
            high = float((np.diff([*found, len(order)]) * costs[found]).max())
    parts = cut_at(order, np.array(best))
    return parts + [order[:0]] * (work.num_parts - len(parts))


def _cut_padded(work: _Work, order: IntArray, limit: float) -> list[int]:
    """Where parts begin, each as large as may be at a cost of at most `limit`; more than there may be where that is too low."""
    starts: list[int] = []
    start = 0
    to_come = min(work.num_parts, len(order))
    while start < len(order):
        starts.append(start)
        to_come -= 1
        sample = order[start]
        most = len(order) - start - max(to_come, 0)  # one for each other part
        if work.max_tokens < np.inf and work.lengths[sample]:
            most = min(most, int(work.max_tokens) // int(work.lengths[sample]))
        if work.costs[sample] * most > limit:
            most = int(limit // work.costs[sample])
        if most < 1:
            return [*starts, *range(work.num_parts + 1)]
        start += most
    return starts
