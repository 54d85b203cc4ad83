"""All samples end to end, in chunks of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import count
from brimful.plan.errors import settle, truth
from brimful.tables.blocks import Block, with_origin
from brimful.tables.ragged import EMPTY, Ragged, list_array
from brimful.tables.rechunk import Rechunk


@dataclass(frozen=True)
class ConcatChunk(Rechunk):
    """Cuts the stream of tokens. The tail that fills no chunk is carried into the next epoch, where the data repeat; of data that
    end it is dropped and counted, or kept."""

    makes_long_blocks = True
    carries = True

    drop_remainder: bool = True

    def __post_init__(self) -> None:
        settle(self, "chunk_length", 1, "token")
        truth("drop_remainder", self.drop_remainder)

    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes

    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        offsets = columns[0].offsets - columns[0].offsets[0]
        total = int(offsets[-1])
        bounds = np.arange(total // self.chunk_length + 1) * self.chunk_length
        if last and self.drop_remainder:
            dropped = total % self.chunk_length
            count("dropped_tokens", dropped, f"concat_chunk({self.chunk_length}) drops what fills no chunk at the end")
        elif last and total % self.chunk_length:
            bounds = np.append(bounds, total)
        done = int(bounds[-1])
        row = min(int(np.searchsorted(offsets, done, side="right")) - 1, held.num_rows)
        value = done - int(offsets[row])
        if not done:
            return EMPTY, row, value
        arrays = [list_array(column.values[column.offsets[0] :][:done], bounds) for column in columns]
        parents = np.searchsorted(offsets, bounds[:-1], side="right") - 1
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), held, parents), row, value
