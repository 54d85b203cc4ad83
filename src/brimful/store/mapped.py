"""A file of a finished store, memory-mapped, and held against what it was when it was opened."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from ctypes import CDLL, c_size_t, c_void_p
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from brimful.blocks.blocks import Block
from brimful.core.errors import DataError
from brimful.core.once import once
from brimful.store.manifest import SideFile


class MappedFile:
    """The memory of a file, and the record batches in it, where it is an Arrow file: setting one up takes 10 us and copies
    nothing. No descriptor stays open, so that there may be any number of them.

    Raises:
        DataError: it is missing, or not as long as the manifest says.
    """

    def __init__(self, folder: Path, file: SideFile) -> None:
        self._path, self._file = folder / file.name, file
        self._opened = self._stat()
        if self._opened.st_size != file.bytes:
            raise DataError(
                f"{self._path} is damaged: it has {self._opened.st_size:,} bytes, and the manifest says {file.bytes:,}"
            )
        with pa.memory_map(str(self._path)) as memory:
            self.memory = memory.read_buffer()
        self.check()

    def check(self) -> None:
        """Called before memory is touched that may no longer be what was opened: of a file that was cut, it is not there,
        which would end the process.

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

    def batch(self, number: int) -> Block:
        try:
            return self._reader.get_batch(number)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise self.damaged(error) from error

    def batches(self) -> Iterator[Block]:
        return map(self.batch, range(self._reader.num_record_batches))

    def release(self) -> None:
        """Lets go of the pages that were read so far; what is wanted again is there again."""
        _LIBC.madvise(c_void_p(self.memory.address), c_size_t(self.memory.size), _DONTNEED)

    @once
    def _reader(self) -> pa.RecordBatchFileReader:
        try:
            return pa.ipc.open_file(pa.BufferReader(self.memory))
        except pa.ArrowInvalid as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> DataError:
        return DataError(f"{self._path} is damaged: {error}; `brimful verify` says what else is")

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
_DONTNEED: Final = 4  # of madvise, on Linux and macOS


def resident_bytes() -> int:
    """How much of files is in the memory of this process; 0 where the system does not say. Price: 10 us."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return 0
