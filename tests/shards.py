"""Shards for tests: writing them in any compression, a file system that is watched while it is read, and what is left."""

from __future__ import annotations

import io
import json
import lzma
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem

from brimful.sources.bytes import Bytes
from brimful.sources.compressed import COMPRESSIONS
from tests.effort import own_threads


def compressed(data: bytes, extension: str) -> bytes:
    kind = COMPRESSIONS.get(extension)
    if kind is None:
        return data
    if kind == "xz":
        return lzma.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def write(path: Path, lines: bytes | Iterable[Any]) -> str:
    """A shard of these bytes, or of these rows as JSON lines, compressed as its name says."""
    data = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compressed(data, path.suffix))
    return str(path)


def write_table(path: Path, table: pa.Table, rows: int = 1_000, **options: Any) -> str:
    """A table in row groups or record batches of some rows: a parquet file, an Arrow file (.arrow, .feather) or an Arrow stream
    (.ipc)."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=rows, **options)
    else:
        new = pa.ipc.new_stream if path.suffix == ".ipc" else pa.ipc.new_file
        with new(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=rows)
    return str(path)


class Memory(Bytes):
    """Bytes at hand, as a file or as one that can only be read forward."""

    def __init__(self, data: bytes, forward_only: bool = False) -> None:
        self._data, self._forward_only = io.BytesIO(data), forward_only

    def fill(self, buffer: memoryview) -> int:
        return self._data.readinto(buffer)

    def compare(self) -> None:
        """Nothing can change these bytes."""

    def seekable(self) -> bool:
        return not self._forward_only

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        assert not self._forward_only
        return self._data.seek(offset, whence)


class Watched(LocalFileSystem):  # type: ignore[misc]
    """Local files as watched:///path, read through `on_open` and `on_read`; counts the bytes read of each."""

    protocol = "watched"
    cachable = False
    on_open: ClassVar[Callable[[str], object]]
    on_read: ClassVar[Callable[[str], object]]
    opened: ClassVar[list[str]]
    read_bytes: ClassVar[dict[str, int]]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("watched://")))

    def unstrip_protocol(self, name: str) -> str:
        return f"watched://{name}"

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> WatchedFile:
        path = self._strip_protocol(path)
        Watched.opened.append(Path(path).name)
        Watched.on_open(Path(path).name)
        return WatchedFile(path)


class WatchedFile:
    def __init__(self, path: str) -> None:
        self._file, self._name = open(path, "rb"), Path(path).name

    def read(self, size: int = -1) -> bytes:
        Watched.on_read(self._name)
        data = self._file.read(size)
        Watched.read_bytes[self._name] = Watched.read_bytes.get(self._name, 0) + len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def watched(
    on_open: Callable[[str], object] = lambda name: None, on_read: Callable[[str], object] = lambda name: None
) -> Iterator[type[Watched]]:
    """Registers the file system `watched` anew."""
    fsspec.register_implementation("watched", Watched, clobber=True)
    Watched.on_open, Watched.on_read = staticmethod(on_open), staticmethod(on_read)
    Watched.opened, Watched.read_bytes = [], {}
    yield Watched


def threads_left(seconds: float = 10.0) -> list[str]:
    """The names of our threads that have not ended after so long."""
    until = time.monotonic() + seconds
    while True:
        names = [thread.name for thread in own_threads()]
        if not names or time.monotonic() > until:
            return names
        time.sleep(0.01)
