"""Each sample in chunks of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.core.counters import count
from brimful.plan.errors import settle, truth
from brimful.tables.blocks import Block, with_origin
from brimful.tables.blockwise import Blockwise
from brimful.tables.ragged import cut_together, gather, list_array


@dataclass(frozen=True)
class Chunk(Blockwise):
    """Cuts each sample by itself; a last chunk that is shorter is dropped (and counted) or kept.

    Rows have the target columns alone: what else a sample had does not belong to one chunk of it.
    """

    makes_long_blocks = True

    chunk_length: int
    target_columns: tuple[str, ...]
    drop_remainder: bool

    def __post_init__(self) -> None:
        settle(self, "chunk_length", 1, "token")
        truth("drop_remainder", self.drop_remainder)

    def apply(self, block: Block) -> Block:
        columns = cut_together(block, self.target_columns, self.verb)
        sizes = columns[0].lengths
        chunks = sizes // self.chunk_length if self.drop_remainder else -(-sizes // self.chunk_length)
        parents = np.repeat(np.arange(len(sizes)), chunks)
        firsts = (np.arange(len(parents)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * self.chunk_length
        counts = np.minimum(sizes[parents] - firsts, self.chunk_length)
        arrays = [list_array(*gather(column.values, column.offsets[parents] + firsts, counts)) for column in columns]
        dropped = int(sizes.sum() - counts.sum())
        count("dropped_tokens", dropped, f"chunk({self.chunk_length}) drops the tokens after the last whole chunk")
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), block, parents)
