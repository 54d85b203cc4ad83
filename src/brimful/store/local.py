"""A store in a local folder: its files are memory-mapped when they are first touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import list_array, numpy_of, offsets_of
from brimful.core.distinct import distinct
from brimful.core.errors import DataError
from brimful.core.once import once
from brimful.store.folder import Folder
from brimful.store.layout import Ranges, joined, memory_for, numpy_file
from brimful.store.manifest import Manifest, SideFile, sha256_of
from brimful.store.mapped import MappedFile, resident_bytes

T = TypeVar("T")

RESIDENT_BYTES: Final = 256 << 20
"""Pages of the files are the system's, which takes them back at will. They count as this process's too as long as they are
mapped: beyond so many they are let go of, which costs a fault for each that is wanted again."""
CHECKED_RANGES: Final = 32
"""After how many ranges of rows that is looked at: one fault may map 2 MB, whatever was wanted of them."""
KEPT_BATCHES: Final = 4096
"""Record batches that are not set up anew each time: those of 16 GB."""


class LocalFolder(Folder):
    """A store in a folder of this machine.

    What is read is held against the files that were opened, once for each window of rows and file (2.5 us): one that was
    replaced or cut in the meantime is an error. Rows that follow one another are not copied; whoever cuts a file while he
    holds them ends the process.
    """

    gap_bytes = 4096

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        super().__init__(str(self._folder))
        self._mapped: dict[str, MappedFile] = {}
        self._batch = lru_cache(KEPT_BATCHES)(self._opened_batch)

    def load_manifest(self) -> Manifest:
        return Manifest.load(self._folder)

    def first_schema(self) -> pa.Schema:
        return self._file(self.manifest.files[0]).schema

    def numbers(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file, memory-mapped."""
        mapped = self._file(side)
        try:
            return numpy_file(mapped.memory)
        except ValueError as error:
            raise mapped.damaged(error) from error

    def sha256(self, file: SideFile) -> str:
        self._file(file)
        return sha256_of(self._folder / file.name)

    def block(self, ranges: Ranges, columns: Sequence[str]) -> Block:
        self._make_room()
        for file in distinct(self.layout.file_of[ranges.batches]).tolist():
            self._file(self.manifest.files[file])
        batches, which = np.unique(ranges.batches, return_inverse=True)
        blocks = [self._batch(batch) for batch in batches.tolist()]
        begins = ranges.firsts - self.layout.starts[ranges.batches]
        if len(which) > 1:
            return self._gathered(blocks, which, begins, ranges, columns)
        block = blocks[0].slice(int(begins[0]), int(ranges.counts[0]))
        for name in self.list_columns.intersection(columns):
            offsets = numpy_of(block.column(name).offsets)
            expected = self.lengths(name)[ranges.firsts[0] : ranges.firsts[0] + ranges.counts[0]].sum(dtype=np.int64)
            self._check(name, ranges, np.array([expected]), offsets[-1:] - offsets[:1])
        return block.select(columns)

    def _file(self, file: SideFile) -> MappedFile:
        """A file as it was opened.

        Raises:
            DataError: it is missing, not what the manifest says, or no longer what was opened.
        """
        mapped = self._mapped.get(file.name)
        if mapped is None:
            return self._mapped.setdefault(file.name, MappedFile(self._folder, file))
        mapped.check()
        return mapped

    def _opened_batch(self, batch: int) -> Block:
        number = int(self.layout.file_of[batch])
        file, place = self.manifest.files[number], batch - int(self.layout.first_batches[number])
        found, rows = self._mapped[file.name].batch(place), file.batches[place]
        if found.num_rows != rows:
            raise DataError(
                f"{self._folder / file.name} has {found.num_rows:,} rows in record batch {place}, and the manifest says "
                f"{rows:,}; `brimful verify` says what else is wrong"
            )
        return found

    def _gathered(
        self,
        blocks: list[Block],
        which: NDArray[np.int64],
        begins: NDArray[np.int64],
        ranges: Ranges,
        columns: Sequence[str],
    ) -> Block:
        """The rows of several ranges: lists by numpy, all other columns by Arrow."""
        lists = [name for name in columns if name in self.list_columns]
        others = [name for name in columns if name not in self.list_columns]
        found: dict[str, pa.Array] = {}
        if others:
            rest = [block.select(others) for block in blocks]
            slices = list(zip(which.tolist(), begins.tolist(), ranges.counts.tolist()))
            groups = [  # in a store of which not all may be mapped: these columns are copied twice
                joined([rest[batch].slice(first, count) for batch, first, count in group])
                for group in self._in_groups(slices)
            ]
            found = dict(zip(others, (groups[0] if len(groups) == 1 else joined(groups)).columns))
        if lists:
            rows = ranges.rows
            owned = np.searchsorted(which, np.arange(len(blocks) + 1))
            for name in lists:
                found[name] = self._list(name, blocks, which, owned, begins, ranges, self.lengths(name)[rows])
        return pa.RecordBatch.from_arrays([found[name] for name in columns], list(columns))

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
        for group in self._in_groups(range(len(blocks))):
            for number in group:
                column = blocks[number].column(name)
                values.append(numpy_of(column.values))
                here = slice(owned[number], owned[number + 1])
                stored = numpy_of(column.offsets)
                starts[here], ends[here] = stored[begins[here]], stored[begins[here] + ranges.counts[here]]
        self._check(name, ranges, offsets[ranges.places + ranges.counts] - offsets[ranges.places], ends - starts)
        runs = [values[batch][first:last] for batch, first, last in zip(which.tolist(), starts.tolist(), ends.tolist())]
        dtype = values[0].dtype
        out, done = np.frombuffer(memory_for(int(offsets[-1]) * dtype.itemsize), dtype), 0
        for group_of_runs in self._in_groups(runs):
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
            file = self.manifest.files[int(self.layout.file_of[ranges.batches[wrong[0]]])]
            raise DataError(
                f"the store {self._folder} is damaged: {self.manifest.lengths[name].name} says that rows {first:,} to "
                f"{first + count - 1:,} have {int(expected[wrong[0]]):,} values in {name!r}, and {file.name} has "
                f"{int(found[wrong[0]]):,}; `brimful verify` says which of them is; write it anew, or copy it again"
            )

    # -- memory that is mapped -------------------------------------------------------------------------------------------

    @once
    def _limited(self) -> bool:
        return sum(file.bytes for file in self.manifest.files) > RESIDENT_BYTES

    @once
    def _before(self) -> int:
        return resident_bytes()

    def _in_groups(self, things: Sequence[T]) -> Iterator[Sequence[T]]:
        """What touches pages, in groups, after each of which room is made; all at once where the files fit."""
        step = CHECKED_RANGES if self._limited else max(1, len(things))
        for first in range(0, len(things), step):
            yield things[first : first + step]
            self._make_room()

    def _make_room(self) -> None:
        """Lets go of the pages of all files where more than RESIDENT_BYTES of them are held."""
        if self._limited and resident_bytes() - self._before > RESIDENT_BYTES:
            for mapped in list(self._mapped.values()):
                mapped.release()
