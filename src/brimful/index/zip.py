"""Several data sets side by side, any row at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.beside import unequal
from brimful.core.once import once
from brimful.index.indexed import SPAN, Indexed, RowNumbers, Source
from brimful.index.side_by_side import ZippedIndex


@dataclass(frozen=True)
class Zip(Indexed):
    """Sample i has the columns of sample i of each.

    Those that are in the order of their index share a digit of the row number, each other one has a digit of its own.

    Raises:
        DataError: (when run) their numbers of samples differ, or two have a column of one name.
    """

    verb = "zip_datasets"

    upstreams: tuple[Indexed, ...]

    @once
    def index(self) -> ZippedIndex:
        digits = [
            0 if isinstance(one, Source) and one.in_index_order else number
            for number, one in enumerate(self.upstreams, 1)
        ]
        known = sorted(set(digits))
        return ZippedIndex(
            tuple(upstream.index for upstream in self.upstreams), tuple(known.index(digit) for digit in digits)
        )

    @once
    def count(self) -> int | None:
        counts = [upstream.count for upstream in self.upstreams]
        for number, count in enumerate(counts[1:], 1):
            if count != counts[0]:
                raise unequal(0, _words(counts[0]), number, _words(count))
        return counts[0]

    def order(self, epoch: int) -> RowNumbers:
        return self._together([upstream.order(epoch) for upstream in self.upstreams])

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.order(0), SPAN if self.count is None else self.count

    def _together(self, orders: list[RowNumbers]) -> RowNumbers:
        steps = self.index.steps
        firsts = [self.index.digits.index(digit) for digit in range(len(steps))]  # of those that share it any will do

        def rows(first: int, last: int) -> NDArray[np.int64]:
            out = np.zeros(last - first, dtype=np.int64)
            for number, step in zip(firsts, steps, strict=True):
                out += orders[number](first, last) * step
            return out

        return rows


def _words(count: int | None) -> str:
    return "no end" if count is None else f"{count:,} rows"
