"""One side of a split: the rows for training, or those for validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.hashes import Side, Split
from brimful.tables.ragged import array_of


@dataclass(frozen=True)
class TrainValidSplit(Blockwise):
    """The rows on one side of a split."""

    split: Split
    side: Side

    def settings(self) -> dict[str, Any]:
        return {**vars(self.split), "side": self.side}

    def known_columns(self) -> pa.Schema | None:
        return self.upstream.known_columns()

    def apply(self, block: Block) -> Block:
        return block.filter(array_of(self.split.valid(block) == (self.side == "valid")))
