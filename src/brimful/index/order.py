"""The order of an epoch over indexed data, any part of which can be computed alone.

Two levels, so that reads stay mostly sequential: a keyed permutation of short runs of rows, then a permutation of the rows
of each window of runs. The grid of runs shifts each epoch, so that neighbours part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.plan import random
from brimful.plan.once import once

RUN_ROWS: Final = 64
WINDOW_RUNS: Final = 2048
PLAIN_ROWS: Final = 16_384
"""Rows of a window where nothing is shuffled."""


@dataclass(frozen=True)
class Order:
    """Rows 0 to count - 1 in the order of one epoch: shuffled by `key`, or (None) as they are.

    Up to 196,608 rows are one window, that is, any order is as likely as any other.

    Price: about 100 ns a row of the shuffle windows (131,072 rows) that are touched; two of them are kept.

    >>> order = Order(1_000_000, key=3)
    >>> np.array_equal(order.rows(10, 20)[5:], order.rows(15, 20))
    True
    >>> Order(5, key=None).rows(1, 3).tolist()
    [1, 2]
    """

    count: int
    key: int | None
    _kept: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows at the places `first` to `last - 1`, int64 (last - first,)."""
        assert 0 <= first <= last <= self.count
        if self.key is None:
            return np.arange(first, last)
        if self._num_windows == 1:
            return self._window(0)[first:last]
        starts = self._starts
        touched = range(self._window_of(starts, first), self._window_of(starts, last - 1) + 1)
        pieces = [self._window(number)[max(0, first - starts[number]) : last - starts[number]] for number in touched]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def windows(self, first: int, last: int) -> range:
        """The windows that hold the places `first` to `last - 1`, and the one after them."""
        if self.key is None:
            return range(first // PLAIN_ROWS, min(-(-last // PLAIN_ROWS) + 1, -(-self.count // PLAIN_ROWS)))
        starts = self._starts
        return range(self._window_of(starts, first), min(self._window_of(starts, last - 1) + 2, self._num_windows))

    def window(self, number: int) -> tuple[int, Callable[[], NDArray[np.int64]]]:
        """How many rows a window has, and a function that gives them, in any order."""
        if self.key is None:
            first, last = number * PLAIN_ROWS, min(self.count, (number + 1) * PLAIN_ROWS)
            return last - first, partial(np.arange, first, last)
        starts = [*self._starts.tolist(), self.count]
        return starts[number + 1] - starts[number], partial(self._window, number)

    def _window(self, number: int) -> NDArray[np.int64]:
        """The rows of one shuffle window."""
        if number not in self._kept:
            while len(self._kept) > 1:
                self._kept.pop(next(iter(self._kept)))
            last = number == self._num_windows - 1
            places = np.arange(number * WINDOW_RUNS, self._num_runs if last else (number + 1) * WINDOW_RUNS)
            firsts = self._runs(places) * RUN_ROWS - self._shift
            rows = (firsts[:, None] + np.arange(RUN_ROWS)).ravel()
            if firsts.min() < 0 or firsts.max() + RUN_ROWS > self.count:
                rows = rows[(rows >= 0) & (rows < self.count)]
            self._kept[number] = rows.take(random.permutation(len(rows), random.key(self._key, 1, number)))
        return self._kept[number]

    @property
    def _key(self) -> int:
        assert self.key is not None
        return self.key

    @property
    def _shift(self) -> int:
        """How many rows the grid of runs begins before row 0."""
        return random.key(self._key, 2) % RUN_ROWS

    @property
    def _num_runs(self) -> int:
        return -(-(self.count + self._shift) // RUN_ROWS)

    @property
    def _num_windows(self) -> int:
        """A last window shorter than half joins the one before it."""
        return max(1, (self._num_runs + WINDOW_RUNS // 2) // WINDOW_RUNS)

    @once
    def _runs(self) -> random.KeyedPermutation:
        return random.KeyedPermutation(self._num_runs, random.key(self._key, 0))

    @once
    def _starts(self) -> NDArray[np.int64]:
        """The place of each window's first row: every run has 64 rows but the first and the last of the grid."""
        starts = np.arange(self._num_windows) * WINDOW_RUNS * RUN_ROWS
        ends = np.array([0, self._num_runs - 1])
        missing = np.array([self._shift, self._num_runs * RUN_ROWS - self._shift - self.count])
        for place, rows in zip(self._runs.inverse(ends).tolist(), missing.tolist(), strict=True):
            starts[place // WINDOW_RUNS + 1 :] -= rows
        return starts

    @staticmethod
    def _window_of(starts: NDArray[np.int64], place: int) -> int:
        return max(0, int(np.searchsorted(starts, place, side="right")) - 1)
