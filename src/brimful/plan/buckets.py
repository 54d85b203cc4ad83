"""Bucket lengths: the few lengths that batches are padded to, so that few shapes are compiled. Lengths rounded up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import MOST, check_count, integer
from .plan import IntArray, one_length

FloatArray = NDArray[np.float64]


def optimal_buckets(
    lengths: ArrayLike,
    num_buckets: int,
    *,
    cost: Callable[[int], float] | None = None,
    multiple_of: int = 1,
    max_length: int | None = None,
) -> list[int]:
    """The bucket lengths, ascending, that pad these lengths at the least total cost, exactly.

    Each bucket is one of the lengths, rounded up to a multiple. A sample costs as much as its bucket. There are fewer
    than `num_buckets` only if more would gain nothing.

    Args:
        lengths: tokens of each sample, (n,). A sample of 10,000 from a corpus costs .1 point of padding.
        num_buckets: most buckets.
        cost: cost(padded length) of one sample, never less for a longer one. The default is the length.
        multiple_of: buckets are multiples of it, in tokens.
        max_length: the longest sample of the corpus, in tokens, if `lengths` are only a sample of it. The last bucket
            holds it.
    Raises:
        ValueError: no lengths, a size below 1, a cost that falls, or a length over `max_length`.
    Price: 12 ms for 32 buckets and 4,096 distinct lengths, and 10 ms per million samples to count them.
    Source: f_k(j) = min_i f_{k-1}(i) + (P_j - P_i) c(v_j), P the samples up to a length: lower envelopes of lines.
    Example:
        >>> optimal_buckets([10, 11, 12, 50, 51, 100], 3)
        [12, 51, 100]
    """
    multiple_of = integer("multiple_of", multiple_of, 1, "token")
    num_buckets = integer("num_buckets", num_buckets, 1, "bucket")
    longest = None if max_length is None else integer("max_length", max_length, 1, "token")
    values, counts = _histogram(some_lengths("optimal_buckets", lengths), multiple_of, longest)
    costs = np.array([value if cost is None else cost(value) for value in values.tolist()], dtype=np.float64)
    check_rising(values, costs)
    mass = np.cumsum(counts).astype(np.float64)
    best = mass * costs
    layers = []
    for _ in range(min(num_buckets, len(values)) - 1):
        before = _cheapest_before(mass, best, costs)
        best = best[before] + (mass - mass[before]) * costs
        layers.append(before)
    chain = [len(values) - 1]
    for before in reversed(layers):
        chain.append(int(before[chain[-1]]))
    buckets: list[int] = values[sorted(set(chain))].tolist()
    return buckets


def uniform_buckets(max_length: int, num_buckets: int) -> list[int]:
    """Bucket lengths at equal distances, ascending. The last is `max_length`.

    Args:
        max_length: the longest bucket, in tokens.
        num_buckets: how many. There are fewer if rounded distances reach `max_length` early.
    Raises:
        ValueError: either is below 1.
    Example:
        >>> uniform_buckets(1024, 4)
        [256, 512, 768, 1024]
        >>> uniform_buckets(1000, 7)
        [143, 286, 429, 572, 715, 858, 1000]
    """
    max_length = integer("max_length", max_length, 1, "token")
    num_buckets = integer("num_buckets", num_buckets, 1, "bucket")
    step = -(-max_length // num_buckets)
    return sorted({min(step * k, max_length) for k in range(1, min(num_buckets, max_length) + 1)})


def as_buckets(buckets: Sequence[int], max_tokens: int = MOST, multiple_of: int = 1) -> tuple[int, ...]:
    """Buckets ascending and distinct, checked once for every policy.

    Raises:
        ValueError: none, below 1 token, over the budget, or not a multiple.
    """
    if not isinstance(buckets, Iterable) or isinstance(buckets, str | bytes | bytearray):
        raise TypeError(f"buckets takes lengths (got {buckets!r}); bf.optimal_buckets finds the best ones")
    ascending = tuple(sorted({integer("buckets", bucket, 1, "token") for bucket in buckets}))
    if not ascending:
        raise ValueError("buckets must be at least 1 length (got none)")
    if ascending[-1] > max_tokens:
        raise ValueError(f"buckets must be at most max_tokens={max_tokens:,} (got {ascending[-1]:,})")
    for bucket in ascending:
        if bucket % multiple_of:
            raise ValueError(f"buckets must be multiples of pad_to_multiple_of={multiple_of:,} (got {bucket:,})")
    return ascending


def pad_to_buckets(lengths: IntArray, buckets: Sequence[int]) -> IntArray:
    """The smallest bucket that is not smaller than each length; a length beyond every bucket stays as it is."""
    bounds = np.array(buckets, dtype=np.int64)
    where = np.searchsorted(bounds, lengths)
    return np.where(where < len(bounds), bounds[np.minimum(where, len(bounds) - 1)], lengths)


@dataclass(frozen=True)
class Rounding:
    """How a padded length is rounded up.

    Args:
        pad_to_multiple_of: to a multiple of it, in tokens.
        buckets: to the smallest of these lengths that is not smaller.
    Raises:
        ValueError: a setting below 1, or buckets that are no multiples.
    Example:
        >>> Rounding(pad_to_multiple_of=8)(np.array([0, 3, 8, 9])).tolist()
        [8, 8, 8, 16]
        >>> Rounding(buckets=[4, 10])(np.array([3, 4, 5])).tolist()
        [4, 4, 10]
    """

    pad_to_multiple_of: int = field(default=1, kw_only=True)
    buckets: Sequence[int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self, "pad_to_multiple_of", 1, "token")
        if self.buckets is not None:
            object.__setattr__(self, "buckets", as_buckets(self.buckets, multiple_of=self.pad_to_multiple_of))

    def __call__(self, lengths: IntArray) -> IntArray:
        """The lengths, any shape, rounded up; one beyond every bucket stays as it is."""
        if self.buckets is not None:
            return pad_to_buckets(lengths, self.buckets)
        multiple = self.pad_to_multiple_of
        return np.maximum(lengths, 1) if multiple == 1 else np.maximum(-(-lengths // multiple), 1) * multiple

    def longest(self, limit: int | None) -> int | None:
        """The greatest length that is at most `limit` (None: any) when it is rounded up; None where any is."""
        if self.buckets is not None:
            return max((bucket for bucket in self.buckets if limit is None or bucket <= limit), default=0)
        return None if limit is None else limit // self.pad_to_multiple_of * self.pad_to_multiple_of


def _histogram(lengths: IntArray, multiple_of: int, max_length: int | None) -> tuple[IntArray, IntArray]:
    """Distinct lengths rounded up, `max_length` among them, with their counts.

    The longest counts once too often: it is a bucket whatever its count.
    """
    longest = int(lengths.max()) if max_length is None else max_length
    if longest < lengths.max():
        raise ValueError(f"max_length must be at least the longest length, {lengths.max():,} (got {longest:,})")
    rounded = np.maximum(-(-np.append(lengths, longest) // multiple_of), 1) * multiple_of
    return np.unique(rounded, return_counts=True)


def _cheapest_before(mass: FloatArray, best: FloatArray, costs: FloatArray) -> IntArray:
    """For each j the i <= j with the least best_i + (mass_j - mass_i) costs_j; i = j spends no further bucket.

    The lines of all i, those after j too, as these are never below that of j: their lower envelope is the convex
    hull of (mass, best), without the points that are not below the chord of their neighbours, till all are.
    """
    hull = np.arange(len(mass) - 1)
    while True:
        slopes = np.diff(best[hull]) / np.diff(mass[hull])
        below = np.ones(len(hull), dtype=bool)
        below[1:-1] = slopes[:-1] < slopes[1:]
        if below.all():
            return np.minimum(hull[np.searchsorted(slopes, costs)], np.arange(len(mass)))
        hull = hull[below]


def some_lengths(name: str, lengths: ArrayLike) -> IntArray:
    """Lengths of shape (n,), at least one of them, for the function `name`."""
    array = one_length(lengths, name)
    if not len(array):
        raise ValueError(f"{name} needs at least 1 length (got none)")
    return array


def check_rising(values: IntArray, costs: FloatArray, name: str = "cost") -> None:
    """Refuses costs that fall where lengths rise."""
    falls = np.flatnonzero(np.diff(costs) < 0)
    if len(falls):
        at = falls[0]
        steps = ", ".join(f"cost({values[i]:,})={costs[i]:,}" for i in (at, at + 1))
        raise ValueError(f"{name} must never fall with length (got {steps})")
