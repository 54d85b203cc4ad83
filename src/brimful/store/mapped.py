"""The files of a finished store, memory-mapped when they are first touched."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from ctypes import CDLL, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from brimful.errors import DataError
from brimful.rows import Block
from brimful.store.manifest import StoredFile, check_size

T = TypeVar("T")

RESIDENT_BYTES: Final = 256 << 20
"""Pages of the files are the system's, which takes them back at will. They count as this process's too as long as they are
mapped: beyond so many they are let go of, which costs a fault for each that is wanted again."""
CHECKED_RANGES: Final = 32
"""After how many ranges of rows that is looked at: one fault may map 2 MB, whatever was wanted of them."""
KEPT_BATCHES: Final = 4096
"""Record batches that are not set up anew each time: those of 16 GB."""


class MappedFile:
    """The record batches of a file, memory-mapped: setting one up takes 10 us and copies nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.memory = memory_of(path)
        try:
            self._reader = pa.ipc.open_file(pa.BufferReader(self.memory))
        except pa.ArrowInvalid as error:
            raise _damaged(path, error) from error

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    @property
    def bytes(self) -> int:
        return int(self.memory.size)

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def batch(self, number: int) -> Block:
        try:
            return self._reader.get_batch(number)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise _damaged(self._path, error) from error

    def release(self) -> None:
        """Lets go of the pages that were read so far; what is wanted again is there again."""
        _LIBC.madvise(c_void_p(self.memory.address), c_size_t(self.bytes), _DONTNEED)


class MappedFiles:
    """All files of a store. None is touched before a row of it is wanted, and no descriptor stays open."""

    def __init__(self, folder: Path, files: Sequence[StoredFile]) -> None:
        self._folder, self._files = folder, files
        self._mapped: dict[int, MappedFile] = {}
        self._batches: dict[tuple[int, int], Block] = {}
        self._lock = threading.Lock()
        self._before = resident_bytes()
        self._fits = sum(file.bytes for file in files) <= RESIDENT_BYTES

    def batch(self, file: int, number: int) -> Block:
        """A record batch of a file.

        Raises:
            DataError: the file is missing, or is not what the manifest says.
        """
        found = self._batches.get((file, number))
        if found is None:
            with self._lock:
                if len(self._batches) >= KEPT_BATCHES:
                    self._batches.clear()
                found = self._batches[file, number] = self._read(file, number)
        return found

    def _read(self, file: int, number: int) -> Block:
        if file not in self._mapped:
            self._mapped[file] = MappedFile(check_size(self._folder, self._files[file]))
        batch, rows = self._mapped[file].batch(number), self._files[file].batches[number]
        if batch.num_rows != rows:
            raise DataError(
                f"{self._folder / self._files[file].name} has {batch.num_rows:,} rows in record batch {number}, and the "
                f"manifest says {rows:,}; `brimful verify` says what else is wrong"
            )
        return batch

    def roomy(self, things: Sequence[T]) -> Iterator[Sequence[T]]:
        """What touches pages, in groups; after each, room is made. All at once where the files fit."""
        step = max(1, len(things)) if self._fits else CHECKED_RANGES
        for first in range(0, len(things), step):
            yield things[first : first + step]
            self.make_room()

    def make_room(self) -> None:
        """Lets go of the pages of all files where more than RESIDENT_BYTES of them are held."""
        if not self._fits and resident_bytes() - self._before > RESIDENT_BYTES:
            for file in list(self._mapped.values()):
                file.release()


_LIBC: Final[Any] = CDLL(None)
_DONTNEED: Final = 4  # of madvise, on Linux and macOS


def resident_bytes() -> int:
    """How much of files is in the memory of this process; 0 where the system does not say. Price: 10 us."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return 0


def memory_of(path: Path) -> pa.Buffer:
    """A file as memory; its descriptor is closed, so that there may be any number of them."""
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is damaged: {error}; `brimful verify` says what else is")
