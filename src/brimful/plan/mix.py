"""Orders of which every stretch has its share of each part: rows of several sources by weight, computable from the counts alone;
and numbers that cover all of them evenly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.core import random
from brimful.core.errors import finite, one_of
from brimful.plan.plan import IntArray

Stop = Literal["first", "all", "all_repeat"]
_BLOCKS: Final = 64
ENDLESS: Final = 1 << 53
"""Stands for a count of rows without an end, and for all greater ones: up to there a float64 holds every number."""


def check(num_sources: int, weights: Sequence[float], stop: str) -> None:
    """Refuses weights and words that mean no mixture."""
    one_of("stop", stop, *get_args(Stop))
    if len(weights) != num_sources:
        raise ValueError(f"there must be a weight for each of {num_sources} data sets (got {len(weights)})")
    if not all(finite("weights", weight) > 0 for weight in weights):
        raise ValueError(f"weights must be positive (got {', '.join(f'{weight:g}' for weight in weights)})")


def due(served: Sequence[int], weights: Sequence[float]) -> int:
    """The source that the next row comes from: least (rows served + 1/2) / weight, the first where several are equal.

    Args:
        served: rows that each source has given so far.
        weights: positive, one a source.
    Example:
        >>> due([1, 1], [1.5, 1])
        0
    """
    return min(range(len(served)), key=lambda source: (served[source] + 0.5) / weights[source])


def stratified(served: Sequence[int], at_hand: Sequence[int | IntArray], weights: Sequence[float]) -> IntArray:
    """The sources of the next rows, as far as the rows at hand decide it: up to where a source without one is due.

    Args:
        served: rows, or tokens, that each source has given so far.
        at_hand: rows that each source can give now; where tokens are shared out, the tokens of each of those rows, >= 1.
        weights: positive, one a source.
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
    times = [(count + 0.5 + given) / weight for count, given, weight in zip(served, before, weights, strict=True)]
    owners = np.repeat(np.arange(len(times)), [len(own) - 1 for own in times])
    flat = np.concatenate([own[:-1] for own in times])
    horizon = min((float(own[-1]), source) for source, own in enumerate(times))
    decided = (flat < horizon[0]) | ((flat == horizon[0]) & (owners < horizon[1]))
    order: IntArray = owners[decided][np.lexsort((owners[decided], flat[decided]))]
    return order


# -- the same of sources whose counts are known: any part of it, from integers alone ------------------------------------


def limits(counts: Sequence[int | None], weights: NDArray[np.float64], stop: Stop) -> IntArray:
    """How many rows each source gives in all, int64 (n,); ENDLESS where it goes on.

    A source has ended where it is due and has no row left: at the time (its count + 1/2) / its weight. "first" stops where
    the first has, "all_repeat" where the last has; one without rows is left out.

    Example:
        >>> limits([5, 2], np.ones(2), "first").tolist(), limits([5, 2], np.ones(2), "all_repeat").tolist()
        ([3, 2], [5, 5])
    """
    own = np.array([ENDLESS if count is None else count for count in counts], dtype=np.int64)
    if stop == "all":
        return own
    ends = [np.inf if count is None else (count + 0.5) / weight for count, weight in zip(counts, weights.tolist())]
    choose = min if stop == "first" else max
    time, at = choose(zip(ends, range(len(ends))))
    if time == np.inf:
        return np.where(own > 0, ENDLESS, 0)
    earlier = np.arange(len(own)) < at  # of two that are due at one time, the first
    most = np.where(earlier, _due_by(time, weights), _due_by(float(np.nextafter(time, 0)), weights))
    most[at] = own[at]
    return np.where(own > 0, most, 0)


def served_at(place: int, weights: NDArray[np.float64], limits: IntArray) -> IntArray:
    """The rows that each source has given before a place, int64 (n,): a search for the time of that place.

    Price: .5 ms, wherever the place is.
    Example:
        >>> [served_at(place, np.array([1.5, 1]), np.array([6, 4])).tolist() for place in (1, 5, 10)]
        [[1, 0], [3, 2], [6, 4]]
    """
    if place >= int(limits.sum()):
        return limits

    def by(bits: int) -> IntArray:
        """The rows until a time, by its bits: these are in the order of the times, as all are positive."""
        return np.minimum(_due_by(float(np.int64(bits).view(np.float64)), weights), limits)

    latest = np.float64((place + 0.5) / float(weights.min())).view(np.int64)
    time = bisect_right(range(int(latest)), place, lo=1, key=lambda bits: int(by(bits).sum()))
    served = by(time - 1)
    more = by(time) - served  # all due at one time: the first ones first
    given: IntArray = served + np.clip(place - int(served.sum()) - (np.cumsum(more) - more), 0, more)
    return given


def merged(before: IntArray, after: IntArray, weights: NDArray[np.float64]) -> IntArray:
    """In which order the rows `before` to `after - 1` of each source come, if they stand one source after another.

    Example:
        >>> merged(np.array([0, 0]), np.array([3, 2]), np.array([1.5, 1])).tolist()
        [0, 3, 1, 4, 2]
    """
    spans = zip(before.tolist(), after.tolist(), weights.tolist(), strict=True)
    times = np.concatenate([(np.arange(first, last) + 0.5) / weight for first, last, weight in spans])
    order: IntArray = np.argsort(times, kind="stable")
    return order


def _due_by(time: float, weights: NDArray[np.float64]) -> IntArray:
    """How many rows of each source are due at a time or before it: those k for which (k + 1/2) / weight <= time."""
    with np.errstate(over="ignore"):
        rows = np.floor(np.minimum(time * weights + 0.5, ENDLESS))
        rows -= (rows > 0) & ((rows - 0.5) / weights > time)  # as the division rounds, so is it counted
        rows += (rows + 0.5) / weights <= time
    return np.minimum(rows, ENDLESS).astype(np.int64)


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
