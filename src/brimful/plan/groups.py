"""Groups inside a batch: which samples go together, so that each group is padded to its own longest at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .buckets import FloatArray, check_rising, optimal_buckets, some_lengths
from .errors import integer
from .plan import IntArray, as_lengths

Cost = Callable[..., float]

MOST_OF_ALL_PARTITIONS: Final = 8
"""Distinct samples of several lengths up to which every partition is looked at: 3^8 pairs of sets a group, 3 ms."""
_KNOWN = 1 << 16
"""Costs of shapes that are kept: about 15 MB."""


def find_thresholds(lengths: ArrayLike, num_groups: int, *, cost: Callable[[int], float] | None = None) -> list[int]:
    """The lengths, ascending, that divide samples into `num_groups` groups with the least total padded cost, exactly.

    There are `num_groups` - 1 thresholds, or fewer if more would gain nothing. A sample belongs to the first threshold
    that is not smaller. The longest samples have none and are the last group. Each group is padded to its own longest,
    at least to 1.

    If you come from asym: its `k` counts thresholds. `num_groups` counts groups, which is one more.

    Args:
        lengths: the length of each sample of a batch, or of a whole data set, (n,).
        num_groups: most groups.
        cost: cost(padded length) of one sample: any function with finite values. The default is the length.
    Raises:
        ValueError: no lengths, fewer than 1 group, or a cost that is not finite.
    Price: under 1 ms for the samples of a batch. 10 ms per million samples, and 12 ms for 32 groups of 4,096 distinct
        lengths.
    Source: the dynamic programme of `optimal_buckets`. If a longer padded length costs less, samples are padded to that
        length. So the cost used is the least one from a length on.
    Example:
        >>> find_thresholds([1, 1, 1, 1, 2, 8, 9, 30], 3)
        [2, 9]
    """
    return _tops(some_lengths("find_thresholds", lengths), integer("num_groups", num_groups, 1, "group"), cost)[:-1]


def balanced_thresholds(
    lengths: ArrayLike, num_groups: int, *, cost: Callable[[int], float] | None = None
) -> list[int]:
    """The thresholds, ascending, that make the dearest group cost least, exactly. The groups cost about the same, for
    workers side by side.

    The total is never below that of `find_thresholds`, which is better for a single worker.

    Args:
        lengths: the length of each sample, (n,).
        num_groups: most groups. There are fewer if more would gain nothing.
        cost: cost(padded length) of one sample, never less for a longer one. The default is the length.
    Raises:
        ValueError: no lengths, fewer than 1 group, or a cost that falls.
    Price: 1 ms a group for 4,096 distinct lengths.
    Source: f_k(j) = min_i max(f_{k-1}(i), (P_j - P_i) c(v_j)), P the samples up to a length. The first rises with i and
        the second falls. The least value lies where they cross, and bisection finds it.
    Example:
        >>> lengths = [1, 1, 1, 1, 4, 4, 4, 4, 5, 5, 5, 5]
        >>> balanced_thresholds(lengths, 2), find_thresholds(lengths, 2)
        ([4], [1])
    """
    num_groups = integer("num_groups", num_groups, 1, "group")
    values, counts = np.unique(np.maximum(some_lengths("balanced_thresholds", lengths), 1), return_counts=True)
    costs = _costs(values, cost)
    check_rising(values, costs, "balanced_thresholds: cost")
    mass = np.concatenate(([0.0], np.cumsum(counts)))
    ends = np.arange(1, len(mass))
    dearest, layers = np.concatenate(([0.0], mass[1:] * costs)), []
    for _ in range(min(num_groups, len(values)) - 1):
        # searched between these: the first i whose groups before cost no less than the last
        low, high = np.zeros(len(ends), np.int64), ends.copy()
        while (low < high).any():
            middle = (low + high) // 2
            crossed = dearest[middle] >= (mass[ends] - mass[middle]) * costs
            low, high = np.where(crossed, low, np.minimum(middle + 1, high)), np.where(crossed, middle, high)
        tries = np.stack((np.maximum(low - 1, 0), low))
        found = np.maximum(dearest[tries], (mass[ends] - mass[tries]) * costs)
        choice = found.argmin(axis=0)
        layers.append(np.concatenate(([0], tries[choice, ends - 1])))
        dearest = np.concatenate(([0.0], found[choice, ends - 1]))
    at, tops = len(values), []
    for before in reversed(layers):
        at = int(before[at])
        tops.append(at)
    thresholds: list[int] = values[sorted({top - 1 for top in tops if 0 < top < len(values)})].tolist()
    return thresholds


def by_thresholds(lengths: ArrayLike, thresholds: Sequence[int]) -> list[IntArray]:
    """Sample numbers, ascending, of each group that has some: a sample of length <= threshold is in its group.

    >>> [group.tolist() for group in by_thresholds([1, 4, 2, 9], [4])]
    [[0, 1, 2], [3]]
    """
    which = np.searchsorted(np.asarray(thresholds, dtype=np.int64), as_lengths(lengths))
    return [np.flatnonzero(which == group) for group in np.unique(which)]


def optimal_partition(lengths: ArrayLike, num_groups: int, *, cost: Cost | None = None) -> list[IntArray]:
    """Sample numbers of at most `num_groups` groups, of least total padded cost, groups in order of their shortest.

    Of one length a sample, exact, whatever the cost: the groups lie between thresholds. Of several, a group is padded to the
    longest in each; exact where there are at most 8 distinct samples, and the cost never falls in any length or no two samples
    are equal: equal ones stay together, which a cost that falls may punish. Of more, the least among all groups that are runs
    of the samples sorted by one of their lengths, or by cost (of all partitions would take time that grows exponentially).

    Args:
        lengths: (n,), or (n, d) for d lengths a sample.
        num_groups: most groups.
        cost: cost(padded length, ...) of one sample, a number for each of its d lengths, of any form, finite; by default their
            product.
    Raises:
        ValueError: no lengths, fewer than 1 group, or a cost that is not finite.
    Price: one length: under 1 ms for 1,024 samples. Of d lengths, time grows with the square of m distinct samples: 5 ms for 64
        pairs, .04 s for 512, .2 s for 2,048. `cost` is called once for each shape that a run has, and some shapes again: 4,000
        times for 512 independent pairs. At worst these are m x m shapes, where one length falls as the other rises: .3 s for
        512, 7 s for 2,048. Memory: about 16 bytes a group and sample, and up to 25 MB for costs of one's own.
    Example:
        >>> [group.tolist() for group in optimal_partition([[9, 1], [1, 9], [8, 2], [2, 8]], 2)]
        [[1, 3], [0, 2]]
    """
    num_groups = integer("num_groups", num_groups, 1, "group")
    array = np.asarray(lengths)
    if array.ndim != 2:
        one = some_lengths("optimal_partition", array)
        return by_thresholds(one, _tops(one, num_groups, cost)[:-1])
    if not array.size:
        raise ValueError("optimal_partition needs at least 1 length (got none)")
    columns = [as_lengths(column) for column in array.T]
    points, which, counts = np.unique(
        np.maximum(np.stack(columns, axis=1), 1), axis=0, return_inverse=True, return_counts=True
    )
    which = which.reshape(-1)
    cost = cost and lru_cache(_KNOWN)(cost)  # runs of points sorted one way and another often have the same shape
    if len(points) <= MOST_OF_ALL_PARTITIONS:
        labels = _least_of_all(points, counts, num_groups, cost)
    else:
        orders = [np.lexsort((*points.T, column)) for column in points.T]
        orders.append(np.argsort(_costs(points, cost), kind="stable"))
        tried = [_least_runs(points[order], counts[order], num_groups, cost) for order in orders]
        best = int(np.argmin([total for total, _ in tried]))
        labels = np.empty(len(points), np.int64)
        labels[orders[best]] = tried[best][1]
    groups = [np.flatnonzero(labels[which] == label) for label in np.unique(labels)]
    return sorted(groups, key=lambda group: tuple(array[group].min(axis=0).tolist()))


def _tops(lengths: IntArray, num_groups: int, cost: Callable[[int], float] | None) -> list[int]:
    """The longest length of each group, ascending; the last is the longest there is."""
    if cost is None:
        return optimal_buckets(lengths, num_groups)
    values = np.unique(np.maximum(lengths, 1))
    costs = _costs(values, cost)
    rising = np.minimum.accumulate(costs[::-1])[::-1]
    least = dict(zip(values.tolist(), rising.tolist()))
    found = np.searchsorted(values, optimal_buckets(lengths, num_groups, cost=least.__getitem__))
    cheapest = np.flatnonzero(costs == rising)
    tops: list[int] = values[np.unique(cheapest[np.searchsorted(cheapest, found)])].tolist()
    return tops


def _least_runs(points: IntArray, counts: IntArray, num_groups: int, cost: Cost | None) -> tuple[float, IntArray]:
    """The least total, and the group of each point, of groups that are runs of the points as they are sorted.

    f_k(j) = min_i f_{k-1}(i) + the run after i up to j, end by end, so that no more is kept than a number a group and point.
    Runs with the same end and the same longest lengths have one shape, whose cost is asked for once: few, where one length
    rises with the order.
    """
    size, most = len(points), min(num_groups, len(points))
    mass = np.concatenate(([0], np.cumsum(counts)))
    best = np.empty((most, size))
    befores = np.empty((most - 1, size), np.int64)  # the end of the run before the last; -1 where one group fewer does
    firsts, shapes = np.zeros(0, np.int64), points[:0]  # of the runs up to j: where each shape first begins
    groups = np.arange(most - 1)
    for j in range(size):
        shapes = np.maximum(np.concatenate((shapes, points[j : j + 1])), points[j])
        firsts = np.append(firsts, j)
        new = np.append(True, (shapes[1:] != shapes[:-1]).any(axis=1))
        firsts, shapes = firsts[new], shapes[new]
        runs = np.repeat(_asked(shapes, cost), np.diff(firsts, append=j + 1)) * (mass[j + 1] - mass[: j + 1])
        best[:, j] = runs[0]
        if j:
            longer = best[:-1, :j] + runs[1:]
            choice = longer.argmin(axis=1)
            found = longer[groups, choice]
            best[1:, j] = np.minimum(np.minimum.accumulate(found), runs[0])
            befores[:, j] = np.where(found < best[:-1, j], choice, -1)
        else:
            befores[:, j] = -1
    labels = np.zeros(size, np.int64)
    at = size - 1
    for before in befores[::-1]:
        if before[at] >= 0:
            labels[before[at] + 1 :] += 1
            at = int(before[at])
    return float(best[-1, -1]), labels


def _least_of_all(points: IntArray, counts: IntArray, num_groups: int, cost: Cost | None) -> IntArray:
    """The group of each point, of all partitions: sets of points are bits of a number."""
    size = len(points)
    sets = [[i for i in range(size) if members >> i & 1] for members in range(1, 1 << size)]
    shapes = np.stack([points[members].max(axis=0) for members in sets])
    alone = [0.0, *(_costs(shapes, cost) * [counts[members].sum() for members in sets]).tolist()]

    @cache
    def least(whole: int, groups: int) -> tuple[float, tuple[int, ...]]:
        """The least total of a set in at most so many groups, and these."""
        if groups == 1:
            return alone[whole], (whole,)
        found = least(whole, groups - 1)
        part = rest = whole & (whole - 1)  # the group split off has no part in the first point of the whole
        while part:
            total, others = least(whole ^ part, groups - 1)
            if alone[part] + total < found[0]:
                found = alone[part] + total, (part, *others)
            part = (part - 1) & rest
        return found

    _, chosen = least(len(alone) - 1, min(num_groups, size))
    return np.array([next(label for label, members in enumerate(chosen) if members >> i & 1) for i in range(size)])


def _costs(shapes: IntArray, cost: Cost | None) -> FloatArray:
    """The cost of one sample padded to each of these shapes, (n,) of lengths (n,) or (n, d), each asked for once."""
    rows = shapes.reshape(len(shapes), -1)
    if cost is None:
        return _asked(rows, cost)
    which = np.zeros(len(rows), np.int64)
    for column in rows.T:  # a number for each shape; `np.unique(axis=0)` takes ten times as long
        values, ranks = np.unique(column, return_inverse=True)
        firsts, which = np.unique(which * len(values) + ranks, return_index=True, return_inverse=True)[1:]
    return _asked(rows[firsts], cost)[which]


def _asked(rows: IntArray, cost: Cost | None) -> FloatArray:
    """The cost of one sample padded to each of these shapes, (n, d) lengths."""
    if cost is None:
        product: NDArray[np.float64] = rows.astype(np.float64).prod(axis=1)
        return product
    asked = rows.tolist()
    costs = np.array([cost(*lengths) for lengths in asked], dtype=np.float64)
    if not np.isfinite(costs).all():
        at = int(np.flatnonzero(~np.isfinite(costs))[0])
        raise ValueError(f"cost must be finite (got cost({', '.join(map(str, asked[at]))})={costs[at]})")
    return costs
