"""A part of the samples: take, skip and stride in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.index.index import Index
from brimful.index.indexed import SPAN, Indexed, Rows


@dataclass(frozen=True)
class Slice(Indexed):
    """The samples at the places range(first, last, step); `last` None: to the end.

    Price: none to skip; a step costs what computing the order of the samples between costs, up to 100 ns each.
    """

    upstream: Indexed
    first: int
    last: int | None
    step: int

    @property
    def index(self) -> Index:
        return self.upstream.index

    @property
    def count(self) -> int | None:
        ends = [end for end in (self.upstream.count, self.last) if end is not None]
        return len(range(self.first, min(ends), self.step)) if ends else None

    def order(self, epoch: int) -> Rows:
        rows = self.upstream.order(epoch)
        some = max(1, SPAN // self.step)  # at a time, so that memory does not grow with the step

        def part(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for begin in range(first, last, some):
                start, end = (self.first + place * self.step for place in (begin, min(begin + some, last) - 1))
                pieces.append(rows(start, end + 1)[:: self.step])
            return np.concatenate(pieces)

        return part

    def plain(self) -> tuple[Rows, int]:
        return self.order(0), SPAN if self.count is None else self.count
