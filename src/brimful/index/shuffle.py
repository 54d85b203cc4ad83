"""Shuffle: a permutation of each window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brimful.core.stage import place
from brimful.index.indexed import Indexed, Reordered, RowNumbers, Source
from brimful.plan import random
from brimful.plan.errors import settle
from brimful.plan.window import rest_rows


@dataclass(frozen=True)
class Shuffle(Reordered):
    """The samples of each window of `buffer_size` in a random order, another one each epoch; a last window shorter than
    half joins the one before it.

    Price: 20 ns a sample of the windows touched; two of them are kept.
    """

    draws = True

    buffer_size: int
    seed: int

    def __post_init__(self) -> None:
        settle(self, "buffer_size", 1, "sample")
        settle(self, "seed", None)

    @property
    def count(self) -> int | None:
        return self.upstream.count

    def order(self, epoch: int) -> RowNumbers:
        below, count, size = self.upstream.order(epoch), self.count, self.buffer_size
        at = place(self)
        most = None if count is None else max(0, count // size - (count % size < rest_rows(size)))  # the last window

        def number_of(place: int) -> int:
            return place // size if most is None else min(place // size, most)

        @lru_cache(maxsize=2)
        def window(number: int) -> NDArray[np.int64]:
            end = (number + 1) * size if number != most or count is None else count
            rows = below(number * size, end)
            return rows[random.permutation(len(rows), random.key(self.seed, at, epoch, number))]

        def rows(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            if first < last:
                for number in range(number_of(first), number_of(last - 1) + 1):
                    pieces.append(window(number)[max(0, first - number * size) : last - number * size])
            return np.concatenate(pieces)

        return rows

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        below = self.upstream.selected(some_of)
        return None if below is None else self.over(below)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()
