"""A shard of lines as buffers of whole lines, each with the byte offset where it ends."""

from __future__ import annotations

from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

READ_BYTES: Final = 1 << 16
"""A read's size. A compressed shard is read in these steps from its beginning, also by a resume, so that one which is
damaged breaks off at the same byte."""
BUFFER_BYTES: Final = 1 << 18
_NEWLINE: Final = 10


class Lines(NamedTuple):
    """Whole lines: their bytes, and where each ends, int64 (n,), counted from the first byte."""

    data: bytes
    ends: NDArray[np.int64]

    def split(self) -> list[bytes]:
        bounds = [0, *self.ends.tolist()]
        return [self.data[start:end] for start, end in zip(bounds, bounds[1:])]


class LineReader:
    """Reads a stream forward from `offset`, about 256 KB of whole lines at a time, more where one line is longer.

    What lies before the offset is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) is raised after the last whole line before it has been handed out.
    """

    def __init__(self, file: BinaryIO, compressed: bool, offset: int) -> None:
        self._file = file
        self._skip = offset if compressed else 0
        if not compressed:
            file.seek(offset)
        self._tail = bytearray()
        self._error: Exception | None = None
        self._ended = False

    def read(self) -> Lines | None:
        """The next lines; None at the end.

        Raises:
            OSError: what reading raised.
        """
        while not self._ended and not self._error:
            try:
                data = self._file.read(READ_BYTES)
            except (OSError, EOFError, ValueError) as error:
                self._error = error
                break
            self._ended = not data
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            seen = len(self._tail)
            self._tail += data[skipped:]
            if len(self._tail) >= BUFFER_BYTES and self._tail.find(b"\n", seen) >= 0:
                return self._cut(self._tail.rfind(b"\n") + 1)
        if self._error is not None:
            whole = self._tail.rfind(b"\n") + 1
            if whole:
                return self._cut(whole)
            raise self._error
        return self._cut(len(self._tail)) if self._tail else None

    def close(self) -> None:
        self._file.close()

    def _cut(self, size: int) -> Lines:
        data = bytes(self._tail[:size])
        del self._tail[:size]
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE) + 1
        return Lines(data, ends if data.endswith(b"\n") else np.append(ends, size))
