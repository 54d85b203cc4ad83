"""One data set after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from brimful.index.indexed import Indexed, RowNumbers, Source
from brimful.index.joined import Joined
from brimful.plan.once import once


@dataclass(frozen=True)
class Concat(Joined):
    """All samples of the first, then all of the second, and so on.

    Raises:
        ValueError: (when run) one before the last goes on without an end.
    """

    verb = "concat_datasets"
    flat: ClassVar[bool] = True

    @property
    def count(self) -> int | None:
        last = self.upstreams[-1].count
        return None if last is None else self._starts[-1] + last

    def order(self, epoch: int) -> RowNumbers:
        return self._in_turn([upstream.order(epoch) for upstream in self.upstreams], self._starts)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        parts = [one.selected(some_of) for one in self.upstreams]
        return None if None in parts else self.over(*(part for part in parts if part is not None))

    def unshuffled(self) -> tuple[RowNumbers, int]:
        orders, counts = zip(*(upstream.unshuffled() for upstream in self.upstreams))
        starts = np.cumsum([0, *counts]).tolist()
        return self._in_turn(list(orders), starts[:-1]), starts[-1]

    @once
    def _starts(self) -> list[int]:
        """The place at which each begins."""
        starts = [0]
        for number, upstream in enumerate(self.upstreams[:-1]):
            if upstream.count is None:
                raise ValueError(
                    f"data set {number} repeats without end, so that none after it is reached; repeat only the last"
                )
            starts.append(starts[-1] + upstream.count)
        return starts

    def _in_turn(self, orders: list[RowNumbers], starts: list[int]) -> RowNumbers:
        shifts = self.shifts

        def rows(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for number, start in enumerate(starts):
                end = min(last, starts[number + 1]) if number + 1 < len(starts) else last
                if max(first, start) < end:
                    pieces.append(orders[number](max(first, start) - start, end - start) + shifts[number])
            return np.concatenate(pieces)

        return rows
