"""Rows of a store in bulk: whole runs of them are copied, one call a column, into memory that is used again.

Fresh memory would cost as much as the copy: each page of it is a fault.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import ORIGIN, origin_of
from brimful.ragged import array_of, concat, list_array, numpy_of, with_column
from brimful.rows import Block
from brimful.store.manifest import Manifest
from brimful.store.mapped import MappedFiles

KEPT_SLABS: Final = 4


class Ranges(NamedTuple):
    """Ranges of rows, ascending, none across the end of a record batch; int64 arrays, one number a range.

    Args:
        batches: the record batch.
        firsts: the number of the first row.
        counts: how many rows.
        places: where in the block they come to stand.
    """

    batches: NDArray[np.int64]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]


class Fetcher:
    """The rows of a store by number.

    Args:
        lengths: of the rows, by list column.
    """

    def __init__(self, folder: Path, manifest: Manifest, lengths: Callable[[str], NDArray[Any]]) -> None:
        self._folder, self._files, self._lengths = folder, manifest.files, lengths
        self._mapped = MappedFiles(folder, manifest.files)
        self._slabs = Slabs()
        fixed = {name for name, kind in manifest.columns.items() if kind.startswith("fixed_size_list")}
        self._lists = [name for name in manifest.lengths if not manifest.nulls[name] and name not in fixed]
        self._others = [name for name in manifest.columns if name not in self._lists]
        self._columns = list(manifest.columns)
        self._bases: dict[int, int] = {}
        rows = np.array([count for file in manifest.files for count in file.batches], dtype=np.int64)
        per_file = np.array([len(file.batches) for file in manifest.files], dtype=np.int64)
        self.starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows)))  # of record batches; then, all rows
        self._first_batches = np.cumsum(per_file) - per_file
        self._file_of = np.repeat(np.arange(len(per_file)), per_file)

    def fetch(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Block:
        """The rows from each of `firsts`, ascending, up to before each of `lasts`, as one block.

        Raises:
            DataError: a file is missing or damaged.
        """
        ranges = self._ranges(firsts, lasts)
        self._mapped.make_room()
        batches, which = np.unique(ranges.batches, return_inverse=True)
        blocks = [self._batch(batch) for batch in batches.tolist()]
        begins = ranges.firsts - self.starts[ranges.batches]
        if len(which) == 1:
            block = blocks[0].slice(int(begins[0]), int(ranges.counts[0]))
        else:
            block = self._gathered(blocks, which, begins, ranges)
        return with_column(block, ORIGIN, self._origins(ranges))

    def _batch(self, batch: int) -> Block:
        file = int(self._file_of[batch])
        return self._mapped.batch(file, batch - int(self._first_batches[file]))

    def _ranges(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Ranges:
        """Ranges cut where record batches end."""
        batches = np.searchsorted(self.starts, firsts, side="right") - 1
        spanned = np.searchsorted(self.starts, lasts, side="left") - batches
        if (spanned > 1).any():
            owners = np.repeat(np.arange(len(firsts)), spanned)
            nth = np.arange(len(owners)) - (np.cumsum(spanned) - spanned)[owners]
            batches = batches[owners] + nth
            firsts = np.maximum(firsts[owners], self.starts[batches])
            lasts = np.minimum(lasts[owners], self.starts[batches + 1])
        counts = lasts - firsts
        return Ranges(batches, firsts, counts, np.cumsum(counts) - counts)

    # -- columns ---------------------------------------------------------------------------------------------------------

    def _gathered(
        self, blocks: list[Block], which: NDArray[np.int64], begins: NDArray[np.int64], ranges: Ranges
    ) -> Block:
        """The rows of several ranges: lists by numpy, all other columns by Arrow."""
        columns: dict[str, pa.Array] = {}
        if self._others:
            rest = [block.select(self._others) for block in blocks]
            slices = zip(which.tolist(), begins.tolist(), ranges.counts.tolist())
            joined = _joined([rest[batch].slice(first, count) for batch, first, count in slices])
            columns = dict(zip(self._others, joined.columns))
        if self._lists:
            rows = np.repeat(ranges.firsts - ranges.places, ranges.counts) + np.arange(ranges.counts.sum())
            groups = np.searchsorted(which, np.arange(len(blocks) + 1))
            for name in self._lists:
                columns[name] = self._list(name, blocks, which, groups, begins, ranges, self._lengths(name)[rows])
        return pa.RecordBatch.from_arrays([columns[name] for name in self._columns], self._columns)

    def _list(
        self,
        name: str,
        blocks: list[Block],
        which: NDArray[np.int64],
        groups: NDArray[np.int64],
        begins: NDArray[np.int64],
        ranges: Ranges,
        lengths: NDArray[Any],
    ) -> pa.Array:
        """The values of a list column, one copy a range; `groups`: where in `which` each block begins."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values, starts = [], np.empty(len(which), dtype=np.int64)
        for number, block in enumerate(blocks):
            column = block.column(name)
            values.append(numpy_of(column.values))
            here = slice(groups[number], groups[number + 1])
            starts[here] = numpy_of(column.offsets)[begins[here]]
        ends = starts + offsets[ranges.places + ranges.counts] - offsets[ranges.places]
        runs = [values[batch][first:last] for batch, first, last in zip(which.tolist(), starts.tolist(), ends.tolist())]
        out = self._slabs.take(int(offsets[-1]), values[0].dtype)
        return list_array(np.concatenate(runs, out=out), offsets)

    # -- where rows came from --------------------------------------------------------------------------------------------

    def _origins(self, ranges: Ranges) -> pa.Array:
        """The origin column: the file of each row, and which of its rows it is, from 1."""
        files = self._file_of[ranges.batches]
        distinct, which = np.unique(files, return_inverse=True)
        bases = np.array([self._base(file) for file in distinct.tolist()], dtype=np.uint64)[which]
        lines = ranges.firsts - self.starts[self._first_batches[files]] + 1 - ranges.places
        shifts = bases + lines.astype(np.uint64)  # wraps around where that is negative, and back
        return array_of(np.repeat(shifts, ranges.counts) + np.arange(ranges.counts.sum(), dtype=np.uint64))

    def _base(self, file: int) -> int:
        """What the origins of the rows of a file begin with."""
        if file not in self._bases:
            self._bases[file] = origin_of(f"store {self._folder.name}/{self._files[file].name}", "row")
        return self._bases[file]


class Slabs:
    """Memory for a few arrays, each used again when nobody holds a view of it any more."""

    def __init__(self) -> None:
        self._slabs: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of `count` values; what it holds is not known."""
        size = count * dtype.itemsize
        with self._lock:
            free = [number for number in range(len(self._slabs)) if sys.getrefcount(self._slabs[number]) == _UNUSED]
            fitting = [number for number in free if len(self._slabs[number]) >= size]
            if not fitting:
                for number in reversed(free):
                    del self._slabs[number]
                self._slabs = [*self._slabs, np.empty(size + size // 4, dtype=np.uint8)][-KEPT_SLABS:]
                fitting = [len(self._slabs) - 1]
            return self._slabs[fitting[0]][:size].view(dtype)


_UNUSED: Final = 2  # references: the list's, and that of the call that counts them


def _joined(blocks: list[Block]) -> Block:
    try:
        return pa.concat_batches(blocks)
    except pa.ArrowInvalid:  # 32-bit offsets overflow
        return concat(blocks)
