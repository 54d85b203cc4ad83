"""A store in a local folder: its files are memory-mapped when they are first touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import DataError
from brimful.ragged import list_array, numpy_of, offsets_of
from brimful.rows import Block
from brimful.store.fetch import Layout, Ranges, Slabs, StoredRows, joined, list_columns
from brimful.store.folder import Folder
from brimful.store.manifest import Manifest, SideFile, check_size
from brimful.store.mapped import MappedFiles
from brimful.store.part import sha256_of

GAP_BYTES: Final = 4096
EMPTY_BYTES: Final = 128  # of a file of an array without an element, which cannot be mapped


class LocalFolder(Folder):
    """A store in a folder of this machine."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.path = str(self._path)

    def manifest(self) -> Manifest:
        return Manifest.load(self._path)

    def numbers(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file, memory-mapped."""
        path = check_size(self._path, side)
        return np.asarray(np.load(path, mmap_mode="r" if side.bytes > EMPTY_BYTES else None))

    def sha256(self, file: SideFile) -> str:
        return sha256_of(check_size(self._path, file))

    def rows(
        self, manifest: Manifest, layout: Layout, columns: Sequence[str], lengths: Callable[[str], NDArray[Any]]
    ) -> StoredRows:
        return MappedRows(self._path, manifest, layout, columns, lengths)


class MappedRows(StoredRows):
    """Rows of memory-mapped files: of one record batch as they lie, of several gathered.

    Args:
        columns: those wanted.
        lengths: of the rows, by list column.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        layout: Layout,
        columns: Sequence[str],
        lengths: Callable[[str], NDArray[Any]],
    ) -> None:
        self._layout, self._columns, self._lengths = layout, list(columns), lengths
        self._folder, self._manifest = folder, manifest
        self._all = len(columns) == len(manifest.columns)
        self._mapped = MappedFiles(folder, manifest.files)
        self._slabs = Slabs()
        self._lists = [name for name in list_columns(manifest) if name in columns]
        self._others = [name for name in columns if name not in self._lists]

    @property
    def gap_bytes(self) -> int:
        return GAP_BYTES

    def block(self, ranges: Ranges) -> Block:
        self._mapped.make_room()
        batches, which = np.unique(ranges.batches, return_inverse=True)
        blocks = [self._batch(batch) for batch in batches.tolist()]
        begins = ranges.firsts - self._layout.starts[ranges.batches]
        if len(which) > 1:
            return self._gathered(blocks, which, begins, ranges)
        block = blocks[0].slice(int(begins[0]), int(ranges.counts[0]))
        for name in self._lists:
            offsets = numpy_of(block.column(name).offsets)
            expected = self._lengths(name)[ranges.firsts[0] : ranges.firsts[0] + ranges.counts[0]].sum(dtype=np.int64)
            self._check(name, ranges, np.array([expected]), offsets[-1:] - offsets[:1])
        return block if self._all else block.select(self._columns)

    def _batch(self, batch: int) -> Block:
        file = int(self._layout.file_of[batch])
        return self._mapped.batch(file, batch - int(self._layout.first_batches[file]))

    def _gathered(
        self, blocks: list[Block], which: NDArray[np.int64], begins: NDArray[np.int64], ranges: Ranges
    ) -> Block:
        """The rows of several ranges: lists by numpy, all other columns by Arrow."""
        columns: dict[str, pa.Array] = {}
        if self._others:
            rest = [block.select(self._others) for block in blocks]
            slices = list(zip(which.tolist(), begins.tolist(), ranges.counts.tolist()))
            groups = [  # in a store of which not all may be mapped: these columns are copied twice
                joined([rest[batch].slice(first, count) for batch, first, count in group])
                for group in self._mapped.roomy(slices)
            ]
            columns = dict(zip(self._others, (groups[0] if len(groups) == 1 else joined(groups)).columns))
        if self._lists:
            rows = ranges.rows
            owned = np.searchsorted(which, np.arange(len(blocks) + 1))
            for name in self._lists:
                columns[name] = self._list(name, blocks, which, owned, begins, ranges, self._lengths(name)[rows])
        return pa.RecordBatch.from_arrays([columns[name] for name in self._columns], self._columns)

    def _list(
        self,
        name: str,
        blocks: list[Block],
        which: NDArray[np.int64],
        owned: NDArray[np.int64],
        begins: NDArray[np.int64],
        ranges: Ranges,
        lengths: NDArray[Any],
    ) -> pa.Array:
        """The values of a list column, one copy a range; `owned`: where in `which` each block begins."""
        offsets = offsets_of(lengths)
        values, starts, ends = [], np.empty(len(which), dtype=np.int64), np.empty(len(which), dtype=np.int64)
        for group in self._mapped.roomy(range(len(blocks))):
            for number in group:
                column = blocks[number].column(name)
                values.append(numpy_of(column.values))
                here = slice(owned[number], owned[number + 1])
                stored = numpy_of(column.offsets)
                starts[here], ends[here] = stored[begins[here]], stored[begins[here] + ranges.counts[here]]
        self._check(name, ranges, offsets[ranges.places + ranges.counts] - offsets[ranges.places], ends - starts)
        runs = [values[batch][first:last] for batch, first, last in zip(which.tolist(), starts.tolist(), ends.tolist())]
        out, done = self._slabs.take(int(offsets[-1]), values[0].dtype), 0
        for group_of_runs in self._mapped.roomy(runs):
            count = sum(map(len, group_of_runs))
            np.concatenate(group_of_runs, out=out[done : done + count])
            done += count
        return list_array(out, offsets)

    def _check(self, name: str, ranges: Ranges, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Refuses rows that are not as long as the side file says: batches are planned by that.

        Raises:
            DataError: naming both files, the rows, and how many values each says they have.
        """
        wrong = np.flatnonzero(expected != found)
        if len(wrong):
            first, count = int(ranges.firsts[wrong[0]]), int(ranges.counts[wrong[0]])
            file = self._manifest.files[int(self._layout.file_of[ranges.batches[wrong[0]]])]
            raise DataError(
                f"the store {self._folder} is damaged: {self._manifest.lengths[name].name} says that rows {first:,} to "
                f"{first + count - 1:,} have {int(expected[wrong[0]]):,} values in {name!r}, and {file.name} has "
                f"{int(found[wrong[0]]):,}; `brimful verify` says which of them is; write it anew, or copy it again"
            )
