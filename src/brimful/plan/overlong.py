"""Samples longer than a policy can place: raise, truncate, drop, or a batch of their own; for packing, split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .buckets import Rounding
from .errors import OverlongError, counted, integer, of_setting, one_of, plus
from .plan import IntArray, Plan, Policy, as_lengths, one_length, planned, widths
from .units import UnitSpans, units_of, whole

Overlong = Literal["raise", "truncate", "drop", "alone"]

MOST_PLANS: Final = 16
"""How often a policy may refuse samples of a window. One that named a single sample each time would take a plan for each."""


class Pieces(NamedTuple):
    """Cuts of samples, each field (pieces,) int64: `lengths[i]` tokens of `samples[i]`, from token `starts[i]` on."""

    samples: IntArray
    starts: IntArray
    lengths: IntArray


def refuse_overlong(
    lengths: IntArray, fits: NDArray[np.bool_], *, max_length: int | None, limit: str, remedy: str
) -> None:
    """Raise for the first sample that does not fit, and name all of them.

    Args:
        lengths: tokens of each sample, (n,) or (n, d).
        fits: which samples can be placed, (n,).
        max_length: the policy's.
        limit, remedy: the two ends of the message.
    Raises:
        OverlongError: at least one of `fits` is False.
    """
    if fits.all():
        return
    samples = np.flatnonzero(~fits).tolist()
    tokens = plus(lengths[samples[0]])
    error = OverlongError(
        f"a sample of {tokens} tokens (sample {samples[0]:,}) cannot fit {limit}; truncate or filter it, or {remedy}",
        sample=samples[0],
        length=int(lengths[samples[0]].sum()),
        max_length=max_length,
        samples=tuple(samples),
    )
    raise of_setting(limit.partition("=")[0], error)


def refuse_beyond(
    values: IntArray, sizes: IntArray, limits: Mapping[str, int], max_length: int | None, rounding: str = ""
) -> None:
    """Raise for the first sample of which a size exceeds its limit, and name all such samples.

    Args:
        values: the sizes of each sample as users know them, (n, d), in the order of the limits.
        sizes: the same as they are rounded up, which `rounding` says in words.
    Raises:
        OverlongError: there is one.
    """
    beyond = sizes > np.array([*limits.values()])
    if not beyond.any():
        return
    samples = np.flatnonzero(beyond.any(axis=1)).tolist()
    at = int(np.argmax(beyond[samples[0]]))
    (name, limit), size = [*limits.items()][at], int(values[samples[0], at])
    words = rounding if sizes[samples[0], at] > size else ""
    raise OverlongError(
        f"a sample of {size:,} {name} (sample {samples[0]:,}) cannot fit {name}={limit:,}{words}; filter it, or raise the limit",
        sample=samples[0],
        length=size,
        max_length=max_length,
        samples=tuple(samples),
    )


def refuse_units(units: UnitSpans, fits: NDArray[np.bool_], why: Callable[[int], str], remedy: str) -> None:
    """Raise for the first unit that does not fit, and name the samples of all of them.

    Args:
        fits: which units can be placed, (u,).
        why: how much unit i has, and what it cannot fit, in words.
        remedy: the end of the message.
    Raises:
        OverlongError: at least one of `fits` is False.
    """
    if fits.all():
        return
    wrong = np.flatnonzero(~fits)
    unit = int(wrong[0])
    sample, count = int(units.begins[unit]), counted(int(units.counts[unit]), "sample")
    raise OverlongError(
        f"a unit of {count} (sample {sample:,}) {why(unit)}; filter it, or {remedy}",
        sample=sample,
        samples=tuple(units.samples(wrong).tolist()),
    )


def refuse_sums(units: UnitSpans, sums: IntArray, limits: Mapping[str, int], remedy: str = "raise the limit") -> None:
    """Raise for the first unit whose samples have more than a limit in sum, and name the samples of all such units.

    Args:
        sums: of each unit, (u, t), in the order of the limits.
        remedy: the end of the message.
    Raises:
        OverlongError: there is one.
    """
    for (name, limit), own in zip(limits.items(), sums.T, strict=True):
        fits = own <= limit
        why = [] if fits.all() else [f"has {total:,} in sum, and cannot fit {name}={limit:,}" for total in own.tolist()]
        refuse_units(units, fits, why.__getitem__, remedy)


def plan_with(
    policy: Policy, lengths: ArrayLike, overlong: Overlong = "raise", units: IntArray | None = None
) -> tuple[Plan, dict[str, int]]:
    """The policy's plan, with a word for the samples that it cannot place, and the counts of what was done: samples, and the
    tokens that are in no batch.

    - "raise": nothing is done; the policy's `OverlongError` says which sample.
    - "truncate": planned as min(length, `policy.max_length`) tokens; whoever fetches the sample cuts it there.
    - "drop": in no batch. The numbers in the plan are still those of `lengths`.
    - "alone": each in a batch of its own, ahead of the policy's batches, padded to its own length, to the multiple or to the
      next bucket.

    Those that the policy cannot place are longer than its `max_length`, or named by its `OverlongError`.

    Args:
        policy: what plans the rest.
        lengths: tokens of each sample, (n,) or (n, d).
        overlong: one of the four words.
        units: a number for each sample, (n,): neighbours with equal ones are a unit, of which all samples are in one batch. So
            all are dropped, or alone together, where one is too long, or where they are too many.
    Raises:
        OverlongError: a sample is too long, under "raise"; under "alone" longer than every bucket, or than static shapes, or a
            unit of more samples than these have rows.
        ValueError: an unknown word; "truncate" for several lengths, as it does not say which to cut; or a policy that names
            few of the samples that it refuses each time.
    Price: the policy's plan and about 10 ms per million samples; a second plan where an `OverlongError` names samples.
    Example:
        >>> from brimful.plan import TokenBudget
        >>> plan, counts = plan_with(TokenBudget(60), [50, 70, 10], "alone")
        >>> [batch.tolist() for batch in plan.batches], plan.padded_lengths.tolist(), counts
        ([[1], [0], [2]], [70, 50, 10], {'truncated': 0, 'dropped': 0, 'alone': 1, 'dropped_tokens': 0})
    """
    one_of("overlong", overlong, *get_args(Overlong))
    lengths = as_lengths(lengths)
    every = None if units is None else units_of(units, len(lengths))
    if every is not None:  # a number for each unit, as one that is left out may lie between two with one number
        units = every.of_samples(np.arange(len(every.begins)))
    counts = {"truncated": 0, "dropped": 0, "alone": 0, "dropped_tokens": 0}
    longest = policy.max_length if lengths.ndim == 1 else None
    if overlong == "raise":
        plan = planned(policy, lengths, units)
        if longest is not None:  # a user's policy may place what it says it cannot
            words = {"limit": f"max_length={longest:,} of {type(policy).__name__}", "remedy": "raise its max_length"}
            refuse_overlong(lengths, lengths <= longest, max_length=longest, **words)
        return plan, counts
    if overlong == "truncate":
        if lengths.ndim == 2:
            raise ValueError("overlong='truncate' takes one length a sample; for several choose raise, drop or alone")
        kept = lengths if longest is None else np.minimum(lengths, longest)
        counts["truncated"] = int((kept < lengths).sum())
        counts["dropped_tokens"] = int((lengths - kept).sum())
        return planned(policy, kept, units), counts
    plan, placed = _placed(policy, lengths, units)
    too_long = np.delete(np.arange(len(lengths)), placed)
    numbers, tokens = placed[plan.numbers], int(widths(lengths, plan.num_padded)[too_long].sum())
    if overlong == "drop":
        counts |= {"dropped": len(too_long), "dropped_tokens": tokens}
        return replace(plan, numbers=numbers), counts
    counts["alone"] = len(too_long)
    long_alone = np.zeros_like(lengths)
    long_alone[too_long] = lengths[too_long]
    padded = _padded_alone(policy, long_alone)
    if plan.num_padded is not None and lengths.ndim == 2:
        padded[:, plan.num_padded :] = lengths[:, plan.num_padded :]
    if every is not None and (shapes := getattr(policy, "shapes", None)) is not None:
        has = np.zeros(len(lengths), bool)
        has[too_long] = True
        why = f"cannot fit static shapes of at most {counted(max(rows for rows, *_ in shapes), 'sample')}, also alone"
        refuse_units(every, ~every.greatest(has), lambda unit: why, "raise the budget")
    by_itself = units_of(too_long if units is None else units[too_long], len(too_long))
    plan = replace(
        plan,
        numbers=np.concatenate([too_long, numbers]),
        bounds=np.concatenate([by_itself.begins, plan.bounds + len(too_long)]),
        padded_lengths=np.concatenate([by_itself.greatest(padded[too_long]), plan.padded_lengths]),
        padded_sizes=np.concatenate([by_itself.counts, plan.padded_sizes]),
        tokens=plan.tokens + tokens,
    )
    return plan, counts


def split_long(lengths: ArrayLike, max_length: int) -> Pieces:
    """Each sample as pieces of `max_length` tokens and a shorter last one: what packing plans where long samples are split.

    Pieces come in the order of the samples and of their tokens; an empty sample is one empty piece.

    Args:
        lengths: tokens of each sample, (n,).
        max_length: most tokens of a piece, usually the policy's.
    Raises:
        ValueError: `max_length` below 1 token, or two lengths a sample.
    Price: about 30 ms per million pieces.
    Example:
        >>> pieces = split_long([5, 2], 4)
        >>> pieces.samples.tolist(), pieces.starts.tolist(), pieces.lengths.tolist()
        ([0, 0, 1], [0, 4, 0], [4, 1, 2])
    """
    max_length = integer("max_length", max_length, 1, "token")
    lengths = one_length(lengths, "split_long")
    counts = np.maximum(-(-lengths // max_length), 1)
    samples = np.repeat(np.arange(len(lengths)), counts)
    firsts = np.cumsum(counts) - counts
    starts = (np.arange(len(samples)) - firsts[samples]) * max_length
    return Pieces(samples, starts, np.minimum(lengths[samples] - starts, max_length))


def placeable(policy: Policy, lengths: IntArray) -> IntArray:
    """Numbers of the samples that `policy` can place."""
    return _placed(policy, lengths)[1]


def _placed(policy: Policy, lengths: IntArray, units: IntArray | None = None) -> tuple[Plan, IntArray]:
    """The plan of the samples that the policy can place, and their numbers, to which those in the plan point.

    Raises:
        OverlongError: the policy names no sample that it was given.
        ValueError: it refuses others each time.
    """
    longest = policy.max_length if lengths.ndim == 1 else None
    left = np.arange(len(lengths))
    if longest is not None:
        left = np.delete(left, whole(np.flatnonzero(lengths > longest), units))
    for _ in range(MOST_PLANS):
        own = None if units is None else units[left]
        try:
            return planned(policy, lengths[left], own), left
        except OverlongError as error:
            refused = np.unique(error.samples or error.sample)
            if refused[0] < 0 or refused[-1] >= len(left):
                raise
            left = np.delete(left, whole(refused, own))
    raise ValueError(
        f"{type(policy).__name__}.plan refused other samples {MOST_PLANS} times, a few each time. Have its OverlongError name "
        "all samples that cannot be placed, in `samples`"
    )


def _padded_alone(policy: Any, lengths: IntArray) -> IntArray:
    """What samples that have batches of their own are padded to, as far as the attributes of a policy say it.

    Raises:
        OverlongError: one is longer than every bucket, or than static shapes.
    """
    rounding, shapes = getattr(policy, "rounding", None), getattr(policy, "shapes", None)
    if not (around := isinstance(rounding, Rounding)):
        multiple, buckets = getattr(policy, "pad_to_multiple_of", 1), getattr(policy, "buckets", None)
        rounding = Rounding(pad_to_multiple_of=multiple, buckets=buckets)
    most = rounding.longest(None)
    if shapes is not None:
        most = max(length for _, *lengths_ in shapes for length in lengths_)
    if most is not None:
        limit = f"{'buckets' if shapes is None else 'static shapes'} of at most {most:,} tokens, also alone"
        longest = lengths if lengths.ndim == 1 else lengths.max(axis=1, initial=0)
        refuse_overlong(lengths, longest <= most, max_length=most, limit=limit, remedy="add a longer bucket")
    padded = rounding(lengths)
    return _padded_alone(policy.policy, padded) if around else padded
