"""Orders of which every stretch has its share of each part: rows of several sources by weight, computable from the counts alone;
and numbers that cover all of them evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from . import random
from .plan import IntArray

Stop = Literal["first", "all", "all_repeat"]
_BLOCKS: Final = 64
_FEW: Final = 8
ENDLESS: Final = 1 << 53
"""Stands for a count of rows without an end, and for all greater ones: up to there a float64 holds every number."""


def due(served: Sequence[int], weights: Sequence[float], owed: Sequence[float] | None = None) -> int:
    """The source that the next row comes from: least (rows served + 1/2 - owed) / weight, the first where several are equal.

    Args:
        served: rows that each source has given so far.
        weights: one a source; one of 0 is never due.
        owed: what each should have given before, and did not; by default, nothing.
    Example:
        >>> due([1, 1], [1.5, 1])
        0
    """
    missing = owed or [0.0] * len(served)
    return min(range(len(served)), key=lambda source: time_of(served[source], weights[source], 0.5 - missing[source]))


def time_of(served: float, weight: float, offset: float = 0.5) -> float:
    """When a source is due that has given so many rows."""
    return (served + offset) / weight if weight else np.inf


def stratified(
    served: Sequence[int],
    at_hand: Sequence[int | IntArray],
    weights: Sequence[float],
    owed: Sequence[float] | None = None,
) -> IntArray:
    """The sources of the next rows, as far as the rows at hand decide it: up to where a source without one is due.

    Args:
        served: rows, or tokens, that each source has given so far.
        at_hand: rows that each source can give now; where tokens are shared out, the tokens of each of those rows, >= 1.
        weights: one a source.
        owed: see `due`.
    Price: one sort of the rows at hand, about 100 ns a row.
    Example:
        >>> "".join("HK"[source] for source in stratified([0, 0], [6, 4], [1.5, 1]))
        'HKHKHHKHKH'
        >>> "".join(str(source) for source in stratified([0, 0], [3, 6], [1, 2]))
        '101101101'
        >>> stratified([0, 0], [np.array([10, 10]), np.array([5, 5, 5])], [1, 1]).tolist()
        [0, 1, 1, 0, 1]
    """
    before = [
        np.arange(rows + 1) if isinstance(rows, int) else np.concatenate(([0], np.cumsum(rows))) for rows in at_hand
    ]
    missing = owed or [0.0] * len(served)
    times = [
        (own + given + (0.5 - rest)) / weight if weight else np.full(len(own), np.inf)
        for own, rest, given, weight in zip(before, missing, served, weights, strict=True)
    ]
    owners = np.repeat(np.arange(len(times)), [len(own) - 1 for own in times])
    flat = np.concatenate([own[:-1] for own in times])
    horizon = min((float(own[-1]), source) for source, own in enumerate(times))
    decided = (flat < horizon[0]) | ((flat == horizon[0]) & (owners < horizon[1]))
    order: IntArray = owners[decided][np.lexsort((owners[decided], flat[decided]))]
    return order


# -- the same of sources whose counts are known: any part of it, from integers alone ------------------------------------


def limits(
    counts: Sequence[int | None],
    weights: NDArray[np.float64],
    stop: Stop,
    offsets: NDArray[np.float64] | None = None,
    again: Sequence[bool] | None = None,
) -> IntArray:
    """How many rows each source gives in all, int64 (n,); ENDLESS where it goes on.

    A source has ended where it is due and has no row left: at the time (its count + 1/2) / its weight. "first" stops where
    the first has, "all_repeat" where the last has; one without rows is left out.

    Args:
        offsets: in place of 1/2, for each source.
        again: sources whose end nobody waits for, under "all_repeat".
    Example:
        >>> limits([5, 2], np.ones(2), "first").tolist(), limits([5, 2], np.ones(2), "all_repeat").tolist()
        ([3, 2], [5, 5])
    """
    shifts = np.full(len(counts), 0.5) if offsets is None else offsets
    own = np.array([ENDLESS if count is None else count for count in counts], dtype=np.int64)
    own[weights == 0] = 0
    if stop == "all":
        return own
    known = zip(counts, weights.tolist(), shifts.tolist())
    ends = [np.inf if count is None else time_of(count, weight, shift) for count, weight, shift in known]
    gives = own > 0
    if again is not None:
        ends = [-np.inf if over else end for end, over in zip(ends, again)]
        gives = weights > 0  # what has no row left begins again
    choose = min if stop == "first" else max
    time, at = choose(zip(ends, range(len(ends))))
    if time == np.inf:
        return np.where(gives, ENDLESS, 0)
    earlier = np.arange(len(own)) < at  # of two that are due at one time, the first
    most = np.where(
        earlier, _due_by(time, weights, shifts), _due_by(float(np.nextafter(time, -np.inf)), weights, shifts)
    )
    most[at] = own[at]
    return np.where(gives, most, 0)


def served_at(
    place: int, weights: NDArray[np.float64], limits: IntArray, offsets: NDArray[np.float64] | None = None
) -> IntArray:
    """The rows that each source has given before a place, int64 (n,): a search for the time of that place.

    Price: 50 us; up to .5 ms where a source has ended before.
    Example:
        >>> [served_at(place, np.array([1.5, 1]), np.array([6, 4])).tolist() for place in (1, 5, 10)]
        [[1, 0], [3, 2], [6, 4]]
    """
    if place >= int(limits.sum()):
        return limits
    shifts = np.full(len(limits), 0.5) if offsets is None else offsets

    def by(time: float) -> IntArray:
        return np.minimum(_due_by(time, weights, shifts), limits)

    some = weights > 0
    low, high = -np.inf, float(((place + shifts[some]) / weights[some]).max())
    served, least = np.zeros_like(limits), float((shifts[some] / weights[some]).min())
    # where no source has ended, its time is about this one
    middle = float((place - len(weights) + (shifts[some] - 0.5).sum()) / weights[some].sum())
    while place - int(served.sum()) > _FEW * len(weights):
        if not low < middle < high:
            more = by(high) - served  # all due at one time: the first ones first
            served += np.clip(place - int(served.sum()) - (np.cumsum(more) - more), 0, more)
            return served
        found = by(middle)
        if int(found.sum()) <= place:
            low, served = middle, found
        else:
            high = middle
        middle = max(low, least) / 2 + high / 2
    left = place - int(served.sum())
    after = np.where(some, np.minimum(served + left, limits), served)
    owners = np.repeat(np.arange(len(weights)), after - served)
    times = np.concatenate(times_of(served, after, weights, shifts))
    first = owners[np.lexsort((owners, times))[:left]]
    given: IntArray = served + np.bincount(first, minlength=len(weights))
    return given


def times_of(
    before: IntArray, after: IntArray, weights: NDArray[np.float64], offsets: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """When the rows `before` to `after - 1` of each source are due."""
    spans = zip(before.tolist(), after.tolist(), weights.tolist(), offsets.tolist(), strict=True)
    return [(np.arange(first, last) + offset) / (weight or 1) for first, last, weight, offset in spans]


def _due_by(time: float, weights: NDArray[np.float64], offsets: NDArray[np.float64]) -> IntArray:
    """How many rows of each source are due at a time or before it: those k for which (k + offset) / weight <= time."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rows = np.floor(np.clip(time * weights + (1 - offsets), 0, ENDLESS))
        rows -= (rows > 0) & ((rows - 1 + offsets) / weights > time)  # as the division rounds, so is it counted
        rows += (rows + offsets) / weights <= time
    return np.where(weights > 0, np.clip(rows, 0, ENDLESS), 0).astype(np.int64)


def low_discrepancy_order(
    count: int, key: int, *, first: int = 0, step: int = 1, own_key: int | None = None
) -> IntArray:
    """The numbers 0 to count - 1, int64 (count,), so that any k of them that follow one another are spread over all.

    Number t of the order has the rank of the point (u + (first + t x step) x golden ratio) mod 1, with u drawn by `key`. Inside
    aligned blocks of a 64th of all numbers they change places at random, so that orders of several keys differ in more than u.

    Of any k numbers that follow one another the share below any limit differs from that of all numbers by at most
    (1 + log2(k) / 2) / k, where step is 1: a half for 4, a third for 8, a ninth for 32. So the mean of anything that rises or
    falls with the number is off by no more than that share of its range.

    Args:
        key: of u.
        first, step: where several orders are taken in turn, a number of each, and are to cover the whole together: the place of
            this one, and how many they are; all have the same `key`.
        own_key: of what changes places in this one; by default `key`.
    Price: 100 ns a number.
    Source: the sequence of Weyl with the golden ratio, whose discrepancy is the least of all such sequences (Niederreiter:
        Random number generation and quasi-Monte Carlo methods, 1992, chapter 3).

    >>> order = low_discrepancy_order(8, key=7)
    >>> sorted(order.tolist()), (order < 4).tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [False, True, False, False, True, False, True, True])
    """
    places = np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(step)
    points = places * np.uint64(random.GOLDEN) + np.uint64(random.key(key, 0))  # modulo 2^64
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(points, kind="stable")] = np.arange(count)
    blocks = np.arange(count) // max(count // _BLOCKS, 1)
    moved = np.lexsort((random.hashes(key if own_key is None else own_key, count), blocks))
    return moved[ranks]
