"""A part of the samples: what take, skip and stride are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.choice import Choice
from brimful.index.index import Index
from brimful.index.indexed import SPAN, Indexed, RowNumbers


@dataclass(frozen=True)
class Slice(Indexed):
    """Abstract: the samples at the places `range(first, last, step)`; `last` None: to the end."""

    upstream: Indexed

    @property
    @abstractmethod
    def places(self) -> tuple[int, int | None, int]:
        """First, last and step."""

    @property
    def index(self) -> Index:
        return self.upstream.index

    def chosen(self, choice: Choice) -> Indexed:
        return self.over(self.upstream.chosen(choice))

    @property
    def endless(self) -> bool:
        return self.places[1] is None and self.upstream.endless

    @property
    def count(self) -> int | None:
        first, last, step = self.places
        ends = [end for end in (self.upstream.count, last) if end is not None]
        return len(range(first, min(ends), step)) if ends else None

    def order(self, epoch: int) -> RowNumbers:
        rows, (origin, _, step) = self.upstream.order(epoch), self.places
        some = max(1, SPAN // step)  # at a time, so that memory does not grow with the step

        def part(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for begin in range(first, last, some):
                start, end = (origin + place * step for place in (begin, min(begin + some, last) - 1))
                pieces.append(rows(start, end + 1)[::step])
            return np.concatenate(pieces)

        return part

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.order(0), SPAN if self.count is None else self.count
