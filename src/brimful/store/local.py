"""A store in a local folder. Its files are memory-mapped when they are first touched, and must not change afterwards."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, c_size_t, c_void_p
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.index.index import RowSpans
from brimful.plan.errors import DataError
from brimful.plan.once import once
from brimful.store.folder import Folder, Ranges, numpy_file
from brimful.store.manifest import SidecarFile, sha256_of
from brimful.tables.blocks import Block, concat
from brimful.tables.ragged import distinct, dtype_of, list_array, numpy_of, offsets_of, runs

T = TypeVar("T")

RESIDENT_BYTES: Final = 256 << 20
"""The system owns the pages of the files and takes them back at will, but they count as memory of this process while they are
mapped. Beyond so many they are released; each page that is wanted again costs a fault."""
CHECKED_RANGES: Final = 32
"""Resident pages are counted after so many ranges of rows: one fault may map 2 MB for a single row."""
PIECE_BYTES: Final = 64
"""Values are copied in pieces of so many bytes: a line of the processor's cache."""
KEPT_BATCHES: Final = 4096
"""So many record batches stay open: those of 16 GB."""


class LocalFolder(Folder):
    """A store in a folder of this machine.

    Each file is checked once for each window of rows (2.5 us): a file that was replaced or cut since it was opened is an error.
    What remains: a file that is cut while a window is copied out of it, a few ms, ends the process. So does one that is cut while
    a block of rows that follow one another is held, as these are not copied.
    """

    gap_bytes = 4096

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        super().__init__(str(self._folder))
        self._mapped: dict[str, MappedFile] = {}
        self._places: dict[str, NDArray[np.int64]] = {}
        self._batch = lru_cache(KEPT_BATCHES)(self._opened_batch)

    def content(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def first_schema(self) -> pa.Schema:
        return self._file(self.manifest.files[0]).schema

    def numbers(self, side: SidecarFile) -> NDArray[Any]:
        """The array of a side file, memory-mapped."""
        return self._file(side).numbers

    def sha256(self, file: SidecarFile) -> str:
        self._file(file)
        return sha256_of(self._folder / file.name)

    def block(self, ranges: Ranges, columns: Sequence[str]) -> Block:
        self._make_room()
        for file in distinct(self.record_batches.file_of[ranges.batches]).tolist():
            self._file(self.manifest.files[file])
        batches, which = np.unique(ranges.batches, return_inverse=True)
        blocks = [self._batch(batch) for batch in batches.tolist()]
        if len(which) > 1:
            return self._joined(blocks, which, ranges, columns)
        block = blocks[0].slice(int(ranges.begins[0]), int(ranges.counts[0]))
        for name in self.list_columns.intersection(columns):
            offsets = numpy_of(block.column(name).offsets)
            expected = self.lengths(name)[ranges.firsts[0] : ranges.firsts[0] + ranges.counts[0]].sum(dtype=np.int64)
            self._check(name, ranges, np.array([expected]), offsets[-1:] - offsets[:1])
        return self._checked(int(batches[0]), block.select(columns))

    def spans(self, columns: Sequence[str], rows: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        """The values of list columns, copied without those of other rows. None where there are other columns, or where a file is
        not as the writer leaves it: then `block` reads it, or says what is wrong. Price: 100 ns a row and column."""
        if not all(name in self.list_columns and _holds_numbers(self.schema.field(name).type) for name in columns):
            return None
        self._make_room()
        bits = len(rows).bit_length()  # rows that lie together share pages; twice as fast as argsort
        keyed = (rows << bits) | np.arange(len(rows))
        keyed.sort()
        rows, order = keyed >> bits, keyed & ((1 << bits) - 1)
        batches = np.searchsorted(self.record_batches.starts, rows, side="right") - 1
        firsts = np.flatnonzero(np.diff(batches, prepend=-1))
        batches, sizes = batches[firsts], np.diff(firsts, append=len(rows))
        for file in distinct(self.record_batches.file_of[batches]).tolist():
            self._file(self.manifest.files[file])
        parts: dict[str, list[RowSpans]] = {name: [] for name in columns}
        for group in self._in_groups(range(len(batches))):
            own = slice(group[0], group[-1] + 1)
            here = rows[firsts[group[0]] : firsts[group[-1]] + sizes[group[-1]]]
            for name in columns:
                part = self._copied(name, here, batches[own], sizes[own])
                if part is None:
                    return None
                parts[name].append(part)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return {name: _joined(found, places) for name, found in parts.items()}

    def _copied(
        self, name: str, rows: NDArray[np.int64], batches: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> RowSpans | None:
        """The values of ascending rows, `sizes` of them in each record batch, in copies of all pieces of 64 bytes, as memory is
        aligned, that hold some. No such piece crosses the end of a page, so all that is read belongs to a file that is mapped."""
        dtype = dtype_of(self.schema.field(name).type.value_type)
        known = self._buffers(name, batches.tolist())
        if known is None:
            return None
        low = int(known[:, :2].min()) // PIECE_BYTES * PIECE_BYTES
        high = int(known[:, 2:].max())
        memory = pa.foreign_buffer(low, -(-(high - low) // PIECE_BYTES) * PIECE_BYTES)
        offsets_at, values_at, _, values_end = (known - low).T
        offsets = np.frombuffer(memory, np.int32)  # see `stored_schema`
        at = rows + np.repeat(offsets_at // offsets.itemsize - self.record_batches.starts[batches], sizes)
        firsts, lasts = (offsets.take(ends).astype(np.int64) for ends in (at, at + 1))
        counts, base = lasts - firsts, np.repeat(values_at, sizes)
        begins, ends = base + firsts * dtype.itemsize, base + lasts * dtype.itemsize
        same = (counts == self.lengths(name).take(rows)).all()
        if not same or (firsts < 0).any() or (ends > np.repeat(values_end, sizes)).any():
            return None
        pieces = begins // PIECE_BYTES
        bounds = offsets_of(np.where(counts > 0, -(-ends // PIECE_BYTES) - pieces, 0))
        total, longest = int(bounds[-1]), -(-int(counts.max()) * dtype.itemsize // PIECE_BYTES)
        # after each row are as many values as any row has: `pad` copies the rows of a batch as if they were equally long
        out = np.empty((total + longest, PIECE_BYTES // 8), np.int64)
        out[total:] = 0
        whole = np.frombuffer(memory, np.int64).reshape(-1, PIECE_BYTES // 8)
        whole.take(runs(pieces, bounds), axis=0, out=out[:total], mode="clip")
        starts = ((bounds[:-1] - pieces) * PIECE_BYTES + begins) // dtype.itemsize
        return RowSpans(out.reshape(-1).view(dtype), starts, counts)

    def _buffers(self, name: str, batches: Sequence[int]) -> NDArray[np.int64] | None:
        """The addresses of some record batches' offsets and values, and of the ends of these, (n, 4). None where they are not in
        a mapped file, uncompressed, aligned and without a null."""
        places = self._places.setdefault(name, np.zeros((len(self.record_batches.file_of), 4), np.int64))
        for batch in batches:
            if not places[batch, 0]:
                memory, column = self._mapped[self.file_of(batch).name].memory, self._batch(batch).column(name)
                values, found = column.values, (column.buffers()[1], column.values.buffers()[1])
                if any(one is None for one in found) or values.null_count or column.offset or values.offset:
                    return None
                firsts = [buffer.address for buffer in found]
                ends = [firsts[0] + 4 * (len(column) + 1), firsts[1] + len(values) * values.type.bit_width // 8]
                inside = memory.address <= min(firsts) and max(ends) <= memory.address + memory.size
                if not inside or any(at % 8 for at in firsts):
                    return None
                places[batch] = *firsts, *ends
        chosen: NDArray[np.int64] = places[batches]
        return chosen

    def _file(self, file: SidecarFile) -> MappedFile:
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
        file = self.file_of(batch)
        place = batch - int(self.record_batches.first_of_file[self.record_batches.file_of[batch]])
        found, rows = self._mapped[file.name].batch(place), file.batches[place]
        if found.num_rows != rows:
            raise DataError(
                f"{self._folder / file.name} has {found.num_rows:,} rows in record batch {place}, and the manifest says "
                f"{rows:,}; `brimful verify` says what else is wrong"
            )
        self.check_columns(found.schema, file)
        return found

    def _joined(self, blocks: list[Block], which: NDArray[np.int64], ranges: Ranges, columns: Sequence[str]) -> Block:
        """The rows of several ranges; `which`: the block of each. Lists by numpy, all other columns by Arrow."""
        lists = [name for name in columns if name in self.list_columns]
        others = [name for name in columns if name not in self.list_columns]
        found: dict[str, pa.Array] = {}
        if others:
            rest, batches = [block.select(others) for block in blocks], distinct(ranges.batches).tolist()
            groups = [  # where not all of a store may be mapped, these columns are copied twice
                concat(
                    self._checked(batches[number], rest[number].slice(first, count)) for number, first, count in group
                )
                for group in self._in_groups(ranges._replace(batches=which).slices)
            ]
            found = dict(zip(others, concat(groups).columns))
        if lists:
            rows = ranges.rows
            for name in lists:
                found[name] = self._list(name, blocks, which, ranges, self.lengths(name)[rows])
        return pa.RecordBatch.from_arrays([found[name] for name in columns], list(columns))

    def _list(
        self, name: str, blocks: list[Block], which: NDArray[np.int64], ranges: Ranges, lengths: NDArray[Any]
    ) -> pa.Array:
        """The values of a list column, one copy a range."""
        offsets = offsets_of(lengths)
        values, starts, ends = [], np.empty(len(which), dtype=np.int64), np.empty(len(which), dtype=np.int64)
        owned = np.searchsorted(which, np.arange(len(blocks) + 1))  # the ranges of each block
        for group in self._in_groups(range(len(blocks))):
            for number in group:
                column = blocks[number].column(name)
                values.append(numpy_of(column.values))
                here = slice(owned[number], owned[number + 1])
                stored, begins = numpy_of(column.offsets), ranges.begins[here]
                starts[here], ends[here] = stored[begins], stored[begins + ranges.counts[here]]
        self._check(name, ranges, offsets[ranges.places + ranges.counts] - offsets[ranges.places], ends - starts)
        places = zip(which.tolist(), starts.tolist(), ends.tolist())
        runs = [values[number][first:last] for number, first, last in places]
        dtype = values[0].dtype
        # Arrow's pool uses pages again; a fresh page costs a fault
        out, done = np.frombuffer(pa.allocate_buffer(int(offsets[-1]) * dtype.itemsize), dtype), 0
        for group_of_runs in self._in_groups(runs):
            count = sum(map(len, group_of_runs))
            np.concatenate(group_of_runs, out=out[done : done + count])
            done += count
        return list_array(out, offsets)

    def _checked(self, batch: int, rows: Block) -> Block:
        """Rows of a record batch whose offsets lead to values that are there: Arrow would read on, past the end of the file.
        Price: .3 ns a byte of text."""
        with self._mapped[self.file_of(batch).name].readable():
            rows.validate(full=True)
        return rows

    def _check(self, name: str, ranges: Ranges, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Refuses rows whose lengths are not those of the side file, by which batches are planned.

        Raises:
            DataError: naming both files, the rows, and how many values each says they have.
        """
        wrong = np.flatnonzero(expected != found)
        if len(wrong):
            first, count = int(ranges.firsts[wrong[0]]), int(ranges.counts[wrong[0]])
            file = self.file_of(ranges.batches[wrong[0]])
            raise DataError(
                f"the store {self._folder} is damaged: {self.manifest.lengths[name].name} says that rows {first:,} to "
                f"{first + count - 1:,} have {int(expected[wrong[0]]):,} values in {name!r}, and {file.name} has "
                f"{int(found[wrong[0]]):,}. `brimful verify` finds the damaged file. Write the store anew, or copy it again"
            )

    # -- memory that is mapped -------------------------------------------------------------------------------------------

    @once
    def _limited(self) -> bool:
        return sum(file.bytes for file in self.manifest.files) > RESIDENT_BYTES

    @once
    def _before(self) -> int:
        return resident_bytes()

    def _in_groups(self, things: Sequence[T]) -> Iterator[Sequence[T]]:
        """Things that touch pages, in groups; room is made after each group. One group where all files fit."""
        step = CHECKED_RANGES if self._limited else max(1, len(things))
        for first in range(0, len(things), step):
            yield things[first : first + step]
            self._make_room()

    def _make_room(self) -> None:
        """Releases the pages of all files where more than RESIDENT_BYTES of them are resident."""
        if self._limited and resident_bytes() - self._before > RESIDENT_BYTES:
            for mapped in list(self._mapped.values()):
                mapped.release()


def _holds_numbers(kind: pa.DataType) -> bool:
    """Whether it is a list of numbers with the 32-bit offsets that the writer gives it."""
    numbers = pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))
    return bool(numbers)


def _joined(parts: list[RowSpans], places: NDArray[np.int64]) -> RowSpans:
    """Ascending rows in several parts as one, in another order."""
    shifts = offsets_of(np.array([len(part.values) for part in parts])).tolist()
    starts = np.concatenate([part.starts + shift for part, shift in zip(parts, shifts)])
    values = parts[0].values if len(parts) == 1 else np.concatenate([part.values for part in parts])
    return RowSpans(values, starts[places], np.concatenate([part.counts for part in parts])[places])


class MappedFile:
    """The memory of a file, and its record batches if it is an Arrow file. To open one takes 10 us and copies nothing. No
    descriptor stays open, so there may be any number of them.

    Raises:
        DataError: it is missing, or not as long as the manifest says.
    """

    def __init__(self, folder: Path, file: SidecarFile) -> None:
        self._path, self._file = folder / file.name, file
        self._opened = self._stat()
        if self._opened.st_size != file.bytes:
            raise DataError(
                f"{self._path} is damaged: it has {self._opened.st_size:,} bytes, and the manifest says {file.bytes:,}"
            )
        with pa.memory_map(str(self._path)) as memory:
            self.memory: pa.Buffer = memory.read_buffer()
        self.check()

    def check(self) -> None:
        """Refuses a file that has changed since it was opened. Call it before touching its memory: where a file was cut the
        memory is gone, and touching it would end the process.

        Raises:
            DataError: the file was replaced, written to, or taken away; with its identity then and now.
        Price: 2.5 us, on a local disk.
        """
        now = self._stat()
        if _identity(now) != _identity(self._opened):
            raise DataError(
                f"{self._path} has changed since it was opened: it was {_told(self._opened)} and is {_told(now)}; open the "
                "store anew"
            )

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    @once
    def numbers(self) -> NDArray[Any]:
        """Its array, if it is a numpy file."""
        with self.readable():
            return numpy_file(self.memory)

    def batch(self, number: int) -> Block:
        reader = self._reader  # which names the file by itself
        with self.readable():
            found = reader.get_batch(number)
            found.validate()
            return found

    def batches(self) -> Iterator[Block]:
        return map(self.batch, range(self._reader.num_record_batches))

    def release(self) -> None:
        """Releases the pages that were read so far; the system reads them again on demand."""
        _LIBC.madvise(c_void_p(self.memory.address), c_size_t(self.memory.size), _DONTNEED)

    @once
    def _reader(self) -> pa.RecordBatchFileReader:
        with self.readable():
            found = pa.ipc.open_file(pa.BufferReader(self.memory))
            _ = found.schema.names  # which may be no text
            return found

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Names the file where it holds something else."""
        try:
            yield
        except (pa.ArrowException, ValueError, OSError) as error:
            raise DataError(f"{self._path} is damaged: {error}; `brimful verify` says what else is") from error

    def _stat(self) -> os.stat_result:
        try:
            return self._path.stat()
        except FileNotFoundError as error:
            raise DataError(
                f"{self._path} is missing from its store: the manifest says {self._file.bytes:,} bytes"
            ) from error


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _told(stat: os.stat_result) -> str:
    when = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(" ", "milliseconds")
    return f"{stat.st_size:,} bytes of {when} (device {stat.st_dev}, inode {stat.st_ino})"


_LIBC: Final[Any] = CDLL(None)
_DONTNEED: Final = 4  # for madvise, on Linux and macOS


def resident_bytes() -> int:
    """How many bytes of files are in the memory of this process; 0 where the system does not say. Price: 10 us."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return 0
