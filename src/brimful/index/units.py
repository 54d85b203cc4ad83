"""Neighbouring rows with one key, which stay together. Which they are is found out by one pass over their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from brimful.core.facts import Facts, Together, Within, refuse_originals, shown
from brimful.core.terminal import watched
from brimful.index.index import DataIndex, Index, RowSet
from brimful.index.indexed import DerivedSource, Indexed, RowNumbers, Source
from brimful.index.order import Order, announced
from brimful.index.sequence import LengthIndex
from brimful.index.views import View
from brimful.plan.errors import logger
from brimful.plan.once import once
from brimful.tables.origins import where
from brimful.tables.units import MOST_IN_UNIT, key_hashes, too_long


@dataclass(frozen=True, eq=False)
class UnitIndex(View):
    """The rows of `base`, of which neighbours with one value of the column `key` are a unit.

    Price: at the first use, in each process, the keys are read once. 8 bytes a unit are kept.
    """

    key: str

    @once
    def starts(self) -> NDArray[np.int64]:
        """The row at which each unit begins."""
        total, name = len(self.base), f"units({self.key!r})"
        logger.info("%s: the keys of all %s samples are read once", name, f"{total:,}")
        found, done, last = [np.zeros(0, np.int64)], 0, None
        began = 0
        for block in watched(self.only([self.key]).blocks(), name, total, lambda block: block.num_rows):
            hashes = key_hashes(block, self.key)
            begins = np.flatnonzero(np.concatenate([[int(hashes[0]) != last], hashes[1:] != hashes[:-1]])) + done
            done, last = done + block.num_rows, int(hashes[-1])
            if np.diff(begins, prepend=began, append=done).max() > MOST_IN_UNIT:
                raise too_long(self.key, where(block, block.num_rows - 1))
            began = int(begins[-1]) if len(begins) else began
            found.append(begins)
        return np.concatenate(found)

    def units_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.starts[np.searchsorted(self.starts, numbers, side="right") - 1]

    def only(self, columns: Sequence[str]) -> Index:
        return self.base.only(columns)

    def kept_sizes(self, name: str, ask: Callable[[Callable[[], None]], NDArray[np.int64]]) -> NDArray[np.int64]:
        return self.base.kept_sizes(name, ask)


@dataclass(frozen=True)
class Units(DerivedSource):
    """The samples of a source, in its order; see `UnitIndex`."""

    key: str
    within: Within

    def facts(self, *inputs: Facts) -> Facts:
        originals = partial(refuse_originals, self, *inputs)  # it looks into a column
        return replace(super().facts(*inputs), units=Together(self.key, self.within), originals=originals)

    @once
    def index(self) -> UnitIndex:
        return UnitIndex(self.upstream.index, self.key)

    @property
    def counted(self) -> bool:
        return self.upstream.counted

    def settings(self) -> dict[str, Any]:
        starts = self.index.starts
        return {"key": self.key, "within": self.within, "units": len(starts), "crc32": crc32(starts.data)}


@dataclass(frozen=True, eq=False)
class PlacedIndex(View):
    """The rows of `base` in the order in which `stage` has them in every epoch. Price: 8 bytes a row, at the first use."""

    stage: Indexed

    @once
    def numbers(self) -> NDArray[np.int64]:
        return self.stage.order(0)(0, len(self))

    def __len__(self) -> int:
        if self.stage.count is None:
            raise ValueError(
                f"units needs an end, and {shown(self.stage)} goes on without one. Call units before the data repeat"
            )
        return self.stage.count

    def in_base(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.numbers[numbers]

    def only(self, columns: Sequence[str]) -> Index:
        return replace(self, base=self.base.only(columns))

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        self.base.prefetch_hint(
            [RowSet((id(self), one.name), one.num_rows, partial(self._of_base, one)) for one in sets]
        )

    def _of_base(self, wanted: RowSet) -> NDArray[np.int64]:
        return self.numbers[wanted.rows()]


@dataclass(frozen=True)
class Placed(Source):
    """The samples of indexed data whose order is the same in every epoch, as a source in index order."""

    verb = ""

    upstream: Indexed

    @once
    def index(self) -> PlacedIndex:
        return PlacedIndex(self.upstream.index, self.upstream)

    @property
    def in_index_order(self) -> bool:
        return True

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return announced(Order(len(index), None), index)

    @property
    def data(self) -> DataIndex:
        return LengthIndex(np.zeros(0, np.int64))  # no files are kept beside several sources, or a part of one
