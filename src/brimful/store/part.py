"""One Arrow IPC file of a store as it is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import is_ragged
from brimful.core.whole import part_of, settle
from brimful.store.manifest import StoredFile, sha256_of


class PartFile:
    """A file of rows that has not its name yet."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._out = pa.OSFile(str(part_of(path)), "wb")
        self._writer = pa.ipc.new_file(self._out, schema)
        self._rows: list[int] = []
        self._tokens = {field.name: 0 for field in schema if is_ragged(field.type)}

    @property
    def bytes(self) -> int:
        return int(self._out.tell())

    def write(self, block: Block) -> None:
        self._writer.write_batch(block)
        self._rows.append(block.num_rows)
        for name in self._tokens:
            self._tokens[name] += len(block.column(name).flatten())

    def close(self) -> StoredFile:
        """Ends the file and gives it its name; what the manifest says of it."""
        self._writer.close()
        size = self.bytes
        self._out.close()
        settle(part_of(self._path), self._path)
        return StoredFile(self._path.name, size, sha256_of(self._path), tuple(self._rows), self._tokens)

    def abandon(self) -> None:
        self._out.close()
