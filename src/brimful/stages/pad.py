"""Each sample padded to one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful import ragged as kernels
from brimful.errors import DataError, settle, where
from brimful.ragged import list_array, ragged, with_column
from brimful.rows import Block, Blockwise


@dataclass(frozen=True)
class Pad(Blockwise):
    """Fills each list of the columns in `pad_values` to `chunk_length` values; a longer one is an error."""

    pad_values: dict[str, int]
    chunk_length: int

    def __post_init__(self) -> None:
        settle(self, "chunk_length", 1, "token")

    def apply(self, block: Block) -> Block:
        rows = np.arange(block.num_rows)
        for name, value in self.pad_values.items():
            column = ragged(block, name)
            long = np.flatnonzero(column.lengths > self.chunk_length)
            if len(long):
                raise DataError(
                    f"pad: column {name!r} has {column.lengths[long[0]]:,} values ({where(block, int(long[0]))}), more than "
                    f"chunk_length={self.chunk_length:,}; chunk, truncate or filter it"
                )
            dtype = kernels.holding(column.values.dtype, value)
            padded = kernels.pad(column.values, *column.spans(rows), self.chunk_length, value, dtype, left=False)
            offsets = np.arange(block.num_rows + 1) * self.chunk_length
            block = with_column(block, name, list_array(padded.ravel(), offsets))
        return block
