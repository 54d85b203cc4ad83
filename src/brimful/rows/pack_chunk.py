"""Whole samples end to end, as many as a chunk holds, in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block, with_origin
from brimful.blocks.ragged import Ragged, gather, list_array, offsets_of, ragged
from brimful.blocks.rechunk import Rechunk
from brimful.core.errors import count


@dataclass(frozen=True)
class PackChunk(Rechunk):
    """Joins neighbours as long as they fit. A longer sample is cut to a chunk, or left out, and counted."""

    makes_long_blocks = True

    discard_long_samples: bool

    def tokens(self, rows: Block) -> int:
        return int(self._counts(ragged(rows, self.target_columns[0]).lengths).sum())

    def cut(self, held: Block, columns: list[Ragged], last: bool) -> tuple[Block, int, int]:
        sizes = columns[0].lengths
        counts = self._counts(sizes)
        firsts, done = self._packs(counts, last)
        self._count(sizes[:done])
        totals = np.add.reduceat(counts[:done], firsts) if len(firsts) else np.zeros(0, dtype=np.int64)
        kept = totals > 0
        bounds = offsets_of(totals[kept])
        flat = [gather(column.values, column.offsets[:done], counts[:done]).values for column in columns]
        out = pa.RecordBatch.from_arrays([list_array(values, bounds) for values in flat], list(self.target_columns))
        return with_origin(out, held, firsts[kept]), done, 0

    def _counts(self, sizes: np.ndarray) -> np.ndarray:
        """How many tokens of each row go into a chunk."""
        long = sizes > self.chunk_length
        return np.where(long, 0 if self.discard_long_samples else self.chunk_length, sizes)

    def _packs(self, counts: np.ndarray, last: bool) -> tuple[np.ndarray, int]:
        """The first row of each pack that is complete, and how many rows all of them hold."""
        ends = offsets_of(counts)
        following = (np.searchsorted(ends, ends[:-1] + self.chunk_length, side="right") - 1).tolist()
        firsts, row = [], 0
        while row < len(counts) and (last or following[row] < len(counts)):
            firsts.append(row)
            row = following[row]
        return np.array(firsts, dtype=np.int64), row

    def _count(self, sizes: np.ndarray) -> None:
        long = sizes > self.chunk_length
        name, does = ("dropped", "leaves out") if self.discard_long_samples else ("truncated", "cuts")
        count(name, int(long.sum()), f"pack_chunk({self.chunk_length}) {does} longer samples")
        count("dropped_tokens", int((sizes - self._counts(sizes)).sum()))
