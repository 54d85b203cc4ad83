"""Whole samples end to end, as many as a chunk holds, in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import count
from brimful.tables.blocks import Block, with_origin
from brimful.tables.ragged import Ragged, gather, list_array, offsets_of
from brimful.tables.rechunk import MOST_LEFT_OUT, Rechunk


@dataclass(frozen=True)
class PackChunk(Rechunk):
    """Joins neighbours as long as they fit. A longer sample is cut to a chunk, or left out, and counted. Samples between which
    8,192 others were left out, or are empty, are no neighbours."""

    makes_long_blocks = True

    discard_long_samples: bool

    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        sizes = columns[0].lengths
        counts = self.counts(sizes)
        firsts, done = self._packs(counts, since, last)
        self._count(sizes[:done])
        totals = np.add.reduceat(counts[:done], firsts) if len(firsts) else np.zeros(0, dtype=np.int64)
        flat = [gather(column.values, column.offsets[:done], counts[:done]).values for column in columns]
        bounds = offsets_of(totals)
        out = pa.RecordBatch.from_arrays([list_array(values, bounds) for values in flat], list(self.target_columns))
        return with_origin(out, held, firsts), done, 0

    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        long = sizes > self.chunk_length
        return np.where(long, 0 if self.discard_long_samples else self.chunk_length, sizes)

    def leave_out(self, sizes: NDArray[np.int64]) -> None:
        self._count(sizes)

    def _packs(self, counts: NDArray[np.int64], since: NDArray[np.int64], last: bool) -> tuple[NDArray[np.int64], int]:
        """The first row of each pack that is complete, and how many rows all of them hold."""
        ends = offsets_of(counts)
        fit = np.searchsorted(ends, ends[:-1] + self.chunk_length, side="right") - 1
        near = np.searchsorted(-since, MOST_LEFT_OUT - since)
        following = np.minimum(fit, near).tolist()
        firsts, row = [], 0
        while row < len(counts) and (last or following[row] < len(counts) or since[row] >= MOST_LEFT_OUT):
            firsts.append(row)
            row = following[row]
        return np.array(firsts, dtype=np.int64), row

    def _count(self, sizes: NDArray[np.int64]) -> None:
        long = sizes > self.chunk_length
        name, does = ("dropped", "leaves out") if self.discard_long_samples else ("truncated", "cuts")
        count(name, int(long.sum()), f"pack_chunk({self.chunk_length}) {does} longer samples")
        count("dropped_tokens", int((sizes - self.counts(sizes)).sum()))
