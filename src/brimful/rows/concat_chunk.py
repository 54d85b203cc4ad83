"""All samples end to end, in chunks of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block, with_origin
from brimful.blocks.ragged import EMPTY, Ragged, list_array, ragged
from brimful.blocks.rechunk import Rechunk
from brimful.core.errors import count


@dataclass(frozen=True)
class ConcatChunk(Rechunk):
    """Cuts the stream of tokens; the tail of it that fills no chunk is dropped and counted."""

    makes_long_blocks = True

    def tokens(self, rows: Block) -> int:
        offsets = ragged(rows, self.target_columns[0]).offsets
        return int(offsets[-1] - offsets[0])

    def cut(self, held: Block, columns: list[Ragged], last: bool) -> tuple[Block, int, int]:
        offsets = columns[0].offsets - columns[0].offsets[0]
        chunks = int(offsets[-1]) // self.chunk_length
        done = chunks * self.chunk_length
        if last:
            dropped = int(offsets[-1]) - done
            count("dropped_tokens", dropped, f"concat_chunk({self.chunk_length}) drops what fills no chunk at the end")
        row = min(int(np.searchsorted(offsets, done, side="right")) - 1, held.num_rows)
        value = done - int(offsets[row])
        if not chunks:
            return EMPTY, row, value
        bounds = np.arange(chunks + 1) * self.chunk_length
        arrays = [list_array(column.values[column.offsets[0] :][:done], bounds) for column in columns]
        parents = np.searchsorted(offsets, bounds[:-1], side="right") - 1
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), held, parents), row, value
