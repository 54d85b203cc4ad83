"""Each sample in chunks of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.errors import count, require
from brimful.ragged import list_array, ragged
from brimful.rows import Block, Blockwise, with_origin


@dataclass(frozen=True)
class Chunk(Blockwise):
    """Cuts each sample by itself; a last chunk that is shorter is dropped (and counted) or kept.

    Rows have the target columns alone: what else a sample had does not belong to one chunk of it.
    """

    chunk_length: int
    target_columns: tuple[str, ...]
    drop_remainder: bool

    def __post_init__(self) -> None:
        require("chunk_length", self.chunk_length, 1, "token")

    def apply(self, block: Block) -> Block:
        columns = [ragged(block, name) for name in self.target_columns]
        sizes = columns[0].lengths
        chunks = sizes // self.chunk_length if self.drop_remainder else -(-sizes // self.chunk_length)
        parents = np.repeat(np.arange(len(sizes)), chunks)
        firsts = (np.arange(len(parents)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * self.chunk_length
        counts = np.minimum(sizes[parents] - firsts, self.chunk_length)
        arrays = []
        for column in columns:
            starts = column.offsets[:-1][parents] + firsts
            offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
            index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
            arrays.append(list_array(column.values[index], offsets))
        dropped = int(sizes.sum() - counts.sum())
        count("dropped_tokens", dropped, f"chunk({self.chunk_length}) drops the tokens after the last whole chunk")
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), block, parents)
