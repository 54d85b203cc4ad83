"""Batch sizes judged by a first batch that is known to fit: the same peak, as many more samples as shorter ones allow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, Final

import numpy as np

from brimful.plan.errors import check_count, finite, positive
from brimful.plan.memory import PeakModel, checked_risk
from brimful.plan.once import once
from brimful.plan.plan import IntArray

SHARE: Final = 0.95
"""The share of the first batch's peak that later ones are expected to take at most, however sure the model is."""


@dataclass(frozen=True)
class FirstBatchSizes:
    """The number of samples of a batch of each padded length, given a first batch of the longest ones, which fits.

    It is the largest of `steps` sizes, evenly from `start` to `end` times the first (rounded down), whose bound at this risk is
    within the first batch's peak, and whose predicted peak is within .95 of it; if the first batch's peak is itself predicted,
    both are within .95 of it. Where none is, the first batch's size, which fits at any shorter length, or the smallest of the
    sizes where that is less.

    Args:
        model: of whatever unit, for one length a sample.
        batch_size: samples of the first batch.
        longest: the length that it is padded to, in tokens.
        risk: the share of full batches that may exceed its peak.
        peak: of the first batch, in the model's unit, once it was measured; None: the one that the model predicts.
        measured: the two largest sizes whose peaks a model `from_first_peak` was given, the first included: until there are two,
            sizes stay below twice the first. Then they are at most twice what two peaks confirm. Such a model is not asked about
            shorter samples than it has seen: they get the size of the shortest.
    Raises:
        TypeError, ValueError: settings that are none.
    Price: .2 ms a length; `learnt` .3 ms.
    Example:
        >>> from brimful.memory import MemoryModel
        >>> sizes = FirstBatchSizes(MemoryModel.pretrained(), 16, 400, risk=0.1)
        >>> [sizes.rows(length) for length in (400, 200, 100, 20)]
        [16, 19, 20, 22]
    """

    model: PeakModel
    batch_size: int
    longest: int
    risk: float = field(default=0.025, kw_only=True)
    start: float = field(default=1.0, kw_only=True)
    end: float = field(default=6.0, kw_only=True)
    steps: int = field(default=50, kw_only=True)
    peak: float | None = field(default=None, kw_only=True)
    measured: tuple[int, int] = field(default=(0, 0), kw_only=True)

    def __post_init__(self) -> None:
        check_count(self, "batch_size", 1, "text")
        check_count(self, "steps", 1, "size")
        checked_risk("threshold, the risk,", self.risk)
        if finite("batch_end_range", self.end) < positive("batch_start_range", self.start):
            raise ValueError(f"batch_end_range must be at least batch_start_range={self.start} (got {self.end})")
        if self.model.num_lengths != 1:
            raise ValueError(
                "this model knows peaks by source and target length, and texts have one; fit it with (n, 2)"
            )

    @once
    def choices(self) -> list[int]:
        """The sizes to choose from, ascending."""
        factors = np.linspace(self.start, self.end, self.steps).tolist()
        return sorted({max(1, floor(factor * self.batch_size + 1e-9)) for factor in factors})

    def rows(self, length: int) -> int:
        """The size of a batch, but the first one, that is padded to this length."""
        model: Any = self.model
        rough = getattr(model, "growth", None) is not None
        if rough:
            length = max(length, model.lengths[0][0])
        limit = self._first if self.peak is not None else SHARE * self._first
        fits = model.largest_batch(length, limit, risk=self.risk)
        if rough:
            confirmed = self.measured[1]
            fits = min(fits, max(2 * confirmed, self.batch_size) if confirmed else 2 * self.batch_size - 1)
        number = bisect_right(self.choices, fits)
        number = bisect_right(self.choices, SHARE * self._first, hi=number, key=lambda n: model.predict(n, length))
        return self.choices[number - 1] if number else min(self.batch_size, self.choices[0])

    def learnt(self, batch: int, length: int, peak_bytes: float) -> FirstBatchSizes:
        """The sizes by a model that knows this peak too. The first peak of a batch like the first is the limit from then on."""
        model: Any = self.model
        if model.unit == "relative":
            model = model.from_first_peak(batch, length, peak_bytes)
        else:
            model = model.refined([(batch, length)], [peak_bytes])
        peak = self.peak
        if peak is None and (batch, length) == (self.batch_size, self.longest):
            peak = peak_bytes
        largest, other = sorted((batch, *self.measured))[:0:-1]
        return replace(self, model=model, peak=peak, measured=(largest, other))

    def exceeded(self, batch: int, length: int) -> FirstBatchSizes:
        """The sizes after a batch that ran out of memory: its peak was above the first one's, and above what was predicted."""
        if self.model.unit == "relative":
            return self
        least = max(self._first, self.model.predict(batch, length)) / SHARE
        return replace(self.learnt(batch, length, least), peak=self.peak, measured=self.measured)

    @once
    def _first(self) -> float:
        return self.model.predict(self.batch_size, self.longest) if self.peak is None else self.peak


def cut_lazily(padded: IntArray, sizes: Callable[[], FirstBatchSizes]) -> Iterator[slice]:
    """Batches of samples sorted longest first, one after another as they are asked for, each by the sizes known by then.

    >>> from brimful.memory import MemoryModel
    >>> sizes = FirstBatchSizes(MemoryModel.pretrained(), 2, 9, start=2, end=2)
    >>> [(part.start, part.stop) for part in cut_lazily(np.array([9, 9, 8, 8, 8]), lambda: sizes)]
    [(0, 2), (2, 4), (4, 5)]
    """
    start = 0
    while start < len(padded):
        rows = sizes().rows(int(padded[start])) if start else sizes().batch_size
        yield slice(start, min(start + rows, len(padded)))
        start += rows
