"""A shard of lines: buffers of whole lines, each with the byte offset where it ends, and the rows that they hold."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from brimful.sources.bytes import Bytes
from brimful.sources.format import Parsed, Wanted
from brimful.sources.forward import Forward, ForwardReader

BUFFER_BYTES: Final = 1 << 18
"""The size of a shard's first buffer, and of all of them where many shards are open."""
MOST_BUFFERS: Final = 4
"""So many of these at once then: rows cost a third less by the 1 MB than by the 256 KB."""
WHOLE_BUFFERS: Final = 16
"""So many open shards have buffers of that size; more share the bytes of so many."""


class Lines(NamedTuple):
    """Whole lines: the offset of the first, the bytes of all, and where each ends among these, int64 (n,)."""

    offset: int
    data: bytes
    ends: NDArray[np.int64]

    @property
    def units(self) -> NDArray[np.int64]:
        return np.ones(len(self.ends), dtype=np.int64)

    def split(self) -> list[bytes]:
        bounds = [0, *self.ends.tolist()]
        return [self.data[start:end] for start, end in pairwise(bounds)]


class LineReader:
    """Reads a stream forward from `offset`, 256 KB to 1 MB of whole lines at a time, more where one line is longer.

    What lies before the offset is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) is raised after the last whole line before it has been handed out.
    """

    def __init__(self, file: Bytes, offset: int) -> None:
        self._bytes, self._at = Forward(file), offset
        self._begun = False
        self._size = BUFFER_BYTES
        _OPEN.add(self)

    def read(self) -> Lines | None:
        """The next lines; None at the end.

        Raises:
            StateError: no line begins at the offset.
            DataError: what was read does not decompress, or has changed; a line of more than 256 MB.
            Exception: what the store raised.
        """
        if not self._begun:
            self._begin()
        for size, last in self._bytes.growing(self._size):
            whole = size if last else self._bytes.data.rfind(b"\n", 0, size) + 1
            if whole:
                self._size = BUFFER_BYTES * max(1, MOST_BUFFERS * WHOLE_BUFFERS // max(WHOLE_BUFFERS, len(_OPEN)))
                return self._cut(whole)
        return None

    def _begin(self) -> None:
        """Passes over a byte order mark; on a resume, over the end of the line before, which must be there."""
        self._begun = True
        if not self._at:
            self._bytes.pass_mark()
        else:
            self._bytes.pass_newline(self._at, b"\n")

    def _cut(self, size: int) -> Lines:
        offset, data = self._bytes.offset, self._bytes.cut(size)
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
        return Lines(offset, data, ends if data.endswith(b"\n") else np.append(ends, size))


_OPEN: Final[WeakSet[LineReader]] = WeakSet()
"""A reader that is closed is gone from it as soon as its shard is: nothing else holds it."""


class Parser(Protocol):
    """Turns lines into rows; never raises for what a line holds, but says which lines gave no row."""

    def parse(self, lines: Lines) -> Parsed: ...


class ParsedLines(ForwardReader[Lines]):
    """The rows of a shard of lines. Position: [byte, line]."""

    unit = "line"

    def __init__(self, file: Bytes, parser: Parser, wanted: Wanted) -> None:
        super().__init__(file, wanted)
        self._lines, self._parser = LineReader(file, wanted.at[0]), parser

    def cut(self) -> Lines | None:
        return self._lines.read()

    def rows(self, records: Lines) -> Parsed:
        return self._parser.parse(records)
