"""One side of a split: the rows for training, or those for validation."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from brimful.rows.blocks import Block
from brimful.rows.blockwise import Blockwise
from brimful.rows.sides import Side, Split


@dataclass(frozen=True)
class TrainValidSplit(Blockwise):
    """The rows on one side of a split."""

    split: Split
    side: Side

    def apply(self, block: Block) -> Block:
        return block.filter(pa.array(self.split.valid(block) == (self.side == "valid")))
