"""A shard of lines: buffers of whole lines, each with the byte offset where it ends, and the rows that they hold."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import StateError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.reader import Parsed, Reader, Wanted

BUFFER_BYTES: Final = 1 << 18
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines: the offset of the first, the bytes of all, and where each ends among these, int64 (n,)."""

    offset: int
    data: bytes
    ends: NDArray[np.int64]

    def split(self) -> list[bytes]:
        bounds = [0, *self.ends.tolist()]
        return [self.data[start:end] for start, end in pairwise(bounds)]


class LineReader:
    """Reads a stream forward from `offset`, about 256 KB of whole lines at a time, more where one line is longer.

    What lies before the offset is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) is raised after the last whole line before it has been handed out.
    """

    def __init__(self, file: Bytes, offset: int) -> None:
        self._file, self._offset = file, offset
        self._skip = 0
        self._tail = bytearray()
        self._error: Exception | None = None
        self._begun = self._ended = False

    def read(self) -> Lines | None:
        """The next lines; None at the end.

        Raises:
            StateError: no line begins at the offset.
            DataError: what was read does not decompress, or has changed.
            Exception: what the store raised.
        """
        if not self._begun:
            self._begin()
        seen = len(self._tail)
        while self._grow():
            if len(self._tail) >= BUFFER_BYTES and self._tail.find(b"\n", seen) >= 0:
                return self._cut(self._tail.rfind(b"\n") + 1)
            seen = len(self._tail)
        if self._error is not None:
            whole = self._tail.rfind(b"\n") + 1
            if whole:
                return self._cut(whole)
            raise self._error
        return self._cut(len(self._tail)) if self._tail else None

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        """Passes over a byte order mark; on a resume, over the end of the line before, which must be there."""
        self._begun = True
        before = max(0, self._offset - 1)
        if before:
            self._seek(before)
        while len(self._tail) < len(_BYTE_ORDER_MARK) and self._grow():
            pass
        if not self._offset:
            if self._tail.startswith(_BYTE_ORDER_MARK):
                self._offset = len(_BYTE_ORDER_MARK)
                del self._tail[: self._offset]
        elif self._tail[:1] == b"\n" or (len(self._tail) == 1 and self._ended):
            del self._tail[:1]
        elif self._error is None:
            raise StateError(f"no line begins at byte {self._offset:,}, where this state goes on: the shard was edited")

    def _seek(self, offset: int) -> None:
        if self._file.seekable():
            self._file.seek(offset)
        else:
            self._skip = offset

    def _grow(self) -> bool:
        """Reads on; False at the end, and at an error, which is kept."""
        while not self._ended and self._error is None:
            try:
                data = self._file.read(READ_BYTES) or b""
            except Exception as error:
                self._error = error
                break
            self._ended = not data
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            if skipped < len(data):
                self._tail += data[skipped:]
                return True
        return False

    def _cut(self, size: int) -> Lines:
        offset, data = self._offset, bytes(self._tail[:size])
        del self._tail[:size]
        self._offset += size
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
        return Lines(offset, data, ends if data.endswith(b"\n") else np.append(ends, size))


class Parser(Protocol):
    """Turns lines into rows; never raises for what a line holds, but says which lines gave no row."""

    def parse(self, lines: Lines) -> Parsed: ...


class ParsedLines(Reader):
    """The rows of a shard of lines. Position: [byte, line]."""

    unit = "line"

    def __init__(self, file: Bytes, parser: Parser, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._lines, self._parser = LineReader(file, wanted.at[0]), parser

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        try:
            lines = self._lines.read()
        except Exception as error:
            raise self.located(error) from error.__cause__ or error
        if lines is None:
            return None
        positions = np.column_stack((lines.offset + lines.ends, self.at[-1] + 1 + np.arange(len(lines.ends))))
        return self._parser.parse(lines), positions

    def close(self) -> None:
        self._lines.close()
