"""One side of a split of a source: the rows for training, or those for validation, found once for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.blocks.sides import Side
from brimful.core.once import once
from brimful.index.index import Index
from brimful.index.indexed import RowNumbers, Source
from brimful.index.some_rows import SideIndex, Sides


@dataclass(frozen=True)
class TrainValidSplit(Source):
    """The samples of a source on one side of a split, in the order, or shuffle, of that source."""

    upstream: Source
    sides: Sides
    side: Side

    @once
    def index(self) -> SideIndex:
        return SideIndex(self.upstream.index, self.sides, self.side)

    @property
    def in_index_order(self) -> bool:
        return self.upstream.in_index_order

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return self.upstream.ordered(index, epoch)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.sides.split), "side": self.side, "kept": self.count, "crc32": self.index.crc32}
