"""One Arrow IPC file of a store as it is written, and the checksum of its bytes."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from brimful.ragged import is_ragged
from brimful.rows import Block
from brimful.store.manifest import StoredFile
from brimful.store.mapped import memory_of

MAGIC_BYTES: Final = 8
"""What stands in an Arrow file before the stream of its record batches."""


class Hashed(io.RawIOBase):
    """A file that is written from its start to its end, and the sha256 of what was written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sha256.update(view)
        done = 0
        while done < len(view):
            done += self._file.write(view[done:]) or 0
        self.bytes += done
        return done

    def tell(self) -> int:
        return self.bytes

    def close(self) -> None:
        if not self.closed:
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()


class PartFile:
    """A file of rows as it is written, under a name of its own.

    What `write` has returned from outlives the process; what `close` has returned from outlives the machine.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[int] = []
        self._out = Hashed(path)
        self._sink = pa.PythonFile(self._out, mode="w")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._tokens = {field.name: 0 for field in schema if is_ragged(field.type)}

    @property
    def bytes(self) -> int:
        return self._out.bytes

    @property
    def sha256(self) -> str:
        """Of what has been written so far."""
        return self._out.sha256.hexdigest()

    def write(self, block: Block) -> None:
        self._writer.write_batch(block)
        self.rows.append(block.num_rows)
        for name in self._tokens:
            self._tokens[name] += len(block.column(name).flatten())

    def close(self, name: str) -> StoredFile:
        """Ends the file; what the manifest says of it."""
        self._writer.close()
        self._out.close()
        return StoredFile(name, self.bytes, self.sha256, tuple(self.rows), self._tokens)

    def abandon(self) -> None:
        self._out.close()


def written(path: Path, count: int) -> tuple[pa.Schema, Iterator[Block]]:
    """The schema and the record batches in the first `count` bytes of a file that was not ended."""
    reader = pa.ipc.open_stream(pa.BufferReader(memory_of(path)[MAGIC_BYTES:count]))
    return reader.schema, iter(reader)


def sha256_of(path: Path, count: int | None = None) -> str:
    """The sha256 of a file, or of its first `count` bytes. Price: about .7 ns a byte."""
    digest = hashlib.sha256()
    left = path.stat().st_size if count is None else count
    with path.open("rb", buffering=0) as file:
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
