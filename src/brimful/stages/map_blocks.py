"""A user's function on whole blocks of rows: the fast way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.errors import StageError, where
from brimful.rows import Block, Blockwise, name_of, visible, with_origin


@dataclass(frozen=True)
class MapBlocks(Blockwise):
    """`fn(block)` in place of each block of rows; where it keeps the number of rows, they keep their origin."""

    fn: Callable[[Block], Block]

    def apply(self, block: Block) -> Block:
        name = name_of(self.fn)
        try:
            out = self.fn(visible(block))
        except Exception as error:
            message = (
                f"map_blocks({name}) failed in the block from {where(block, 0)} on: {type(error).__name__}: {error}"
            )
            raise StageError(message) from error
        if not isinstance(out, pa.RecordBatch):
            raise StageError(f"map_blocks({name}) must return a pyarrow.RecordBatch (got {type(out).__name__})")
        return with_origin(out, block, np.arange(block.num_rows)) if out.num_rows == block.num_rows else out
