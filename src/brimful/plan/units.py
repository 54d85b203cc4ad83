"""Units: neighbouring samples that stay in one batch. Whole units are what is sorted, cut and packed then."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import random
from .errors import counted

IntArray = NDArray[np.int64]


class UnitSpans(NamedTuple):
    """Which neighbours are a unit: unit i has the samples from `begins[i]` on, `counts[i]` of them; int64 (u,) each."""

    begins: IntArray
    counts: IntArray

    @property
    def num_samples(self) -> int:
        return int(self.counts.sum())

    def samples(self, order: IntArray) -> IntArray:
        """The samples of some units, unit after unit in the order given."""
        counts = self.counts[order]
        ends = np.cumsum(counts)
        numbers: IntArray = np.arange(int(counts.sum())) + np.repeat(self.begins[order] - (ends - counts), counts)
        return numbers

    def of_samples(self, values: NDArray[Any]) -> NDArray[Any]:
        """For each sample what its unit has, of values (u,)."""
        return np.repeat(values, self.counts)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """What the samples of each unit have in sum, of values (n,) or (n, d)."""
        return np.add.reduceat(values, self.begins) if len(self.begins) else values[:0]

    def greatest(self, values: NDArray[Any]) -> NDArray[Any]:
        """The greatest value in each unit, of values (n,) or (n, d)."""
        return np.maximum.reduceat(values, self.begins) if len(self.begins) else values[:0]


def units_of(units: ArrayLike, num_samples: int) -> UnitSpans:
    """The units of so many samples, by a number for each: neighbours with equal numbers are one.

    Raises:
        ValueError: there are other samples than numbers.

    >>> units_of([7, 7, 3, 7], 4)
    UnitSpans(begins=array([0, 2, 3]), counts=array([2, 1, 1]))
    """
    array = np.asarray(units)
    if array.shape != (num_samples,):
        raise ValueError(
            f"units has a number for each of {counted(num_samples, 'sample')} (got an array of shape {array.shape})"
        )
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, num_samples), bool), array[1:] != array[:-1]]))
    return UnitSpans(begins, np.diff(begins, append=num_samples))


def whole(samples: IntArray, units: IntArray | None) -> IntArray:
    """Numbers of samples, with those of all others that belong to their units.

    >>> whole(np.array([1]), np.array([5, 5, 6])).tolist()
    [0, 1]
    """
    if units is None:
        return samples
    own = units_of(units, len(units))
    has = np.zeros(len(units), bool)
    has[samples] = True
    return np.flatnonzero(own.of_samples(own.greatest(has)))


def parted(numbers: IntArray, bounds: IntArray, units: IntArray) -> str:
    """Which unit a plan has in several batches; "" where it has each in one."""
    own = units_of(units, len(units))
    batch_of = np.empty(len(units), np.int64)
    batch_of[numbers] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    last = own.greatest(batch_of)
    first = -own.greatest(-batch_of)
    if (first == last).all():
        return ""
    unit = int(np.argmax(first != last))
    begin, count = int(own.begins[unit]), int(own.counts[unit])
    return (
        f"samples {begin:,} to {begin + count - 1:,} are a unit, and lie in batches {first[unit]:,} and {last[unit]:,}. A policy "
        "that keeps units whole is told them: plan(lengths, *, units=None), equal neighbours of which belong together"
    )


def permuted(units: IntArray | None, count: int, key: int) -> IntArray:
    """A random order of so many samples, in which those of a unit stay together, in their order.

    >>> permuted(np.array([1, 1, 1, 2, 2, 3]), 6, key=0).tolist()
    [5, 3, 4, 0, 1, 2]
    """
    if units is None:
        return random.permutation(count, key)
    own = units_of(units, count)
    return own.samples(random.permutation(len(own.begins), key))
