"""Files that are read forward, record after record: the bytes from a place on in a buffer, and the records, or lines, cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar, final
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.format import Parsed, Piece, ReadRequest, ShardReader

D = TypeVar("D")

RECORD_BYTES: Final = 1 << 28
"""A line, or a CBOR item, is not longer: of 3 GB of zeros, which compress to 3 MB, all would be held to find its end."""
BUFFER_BYTES: Final = 1 << 18
"""The size of a shard's first buffer, and of all of them where many shards are open."""
MOST_BUFFERS: Final = 4
"""So many of these at once then: rows cost a third less by the 1 MB than by the 256 KB."""
WHOLE_BUFFERS: Final = 16
"""So many open shards have buffers of that size; more share the bytes of so many."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Forward:
    """`data`: what has been read and not yet cut off, the first of it the byte `offset` of the file; `ended`: nothing follows it.

    What lies before a place that is looked for is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) ends the data as their end does: it is kept as `error`, for when what lies before it
    has been handed out.
    """

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self.offset: int = 0
        self.data: bytearray = bytearray()
        self.error: Exception | None = None
        self._skip = 0
        self.ended: bool = False

    def fill(self, size: int) -> None:
        """Reads on until there are so many bytes, or the end or an error comes."""
        while len(self.data) < size and not self.ended and self.error is None:
            try:
                more = self._file.read(READ_BYTES) or b""
            except Exception as error:
                self.error = error
                return
            self.ended = not more
            skipped = min(self._skip, len(more))
            self._skip -= skipped
            self.data += more[skipped:]

    def growing(self, size: int) -> Iterator[tuple[int, bool]]:
        """How many of the first bytes to look at, so many, then twice as many, and so on, and whether nothing follows them;
        nothing at the end.

        Raises:
            DataError: a line is too long.
            Exception: the read error, after all bytes before it.
        """
        while True:
            self.fill(size)
            all_read = len(self.data) <= size
            ended = all_read and self.ended
            if ended and not self.data:
                return
            yield min(size, len(self.data)), ended
            if all_read and self.error is not None:
                raise self.error
            if len(self.data) > RECORD_BYTES:
                raise DataError(
                    f"no line ends within {RECORD_BYTES:,} bytes of byte {self.offset:,}; the shard is damaged, or must be cut "
                    "into shorter lines"
                )
            size *= 2

    def first(self, size: int) -> bytes:
        """The first bytes of the data."""
        with memoryview(self.data) as held:
            return bytes(held[:size])

    def cut(self, size: int) -> bytes:
        """The first bytes of the data, which these then no longer have."""
        data = self.first(size)
        del self.data[:size]
        self.offset += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Goes on to a later byte."""
        beyond = offset - self.offset - len(self.data)
        if beyond <= 0:
            self.cut(offset - self.offset)
            return
        self.data.clear()
        self.offset = offset
        if self._file.seekable():
            self._file.seek(offset)
        else:
            self._skip = beyond - self._file.skip(beyond)

    def pass_mark(self) -> None:
        """Passes over a byte order mark, at the beginning of the file."""
        self.fill(len(_BYTE_ORDER_MARK))
        if self.data.startswith(_BYTE_ORDER_MARK):
            self.cut(len(_BYTE_ORDER_MARK))

    def pass_newline(self, offset: int, *newlines: bytes) -> None:
        """Goes on to a byte, or stays at it, that a line begins at, or the end.

        Raises:
            StateError: none does.
        """
        if offset > self.offset:
            self.seek(offset - 1)
            self.fill(2)
            begins = self.data[:1] in newlines and self.data[:2] != b"\r\n"
            if begins or (len(self.data) == 1 and self.ended):
                self.cut(1)
        if offset < self.offset or (offset > self.offset and self.error is None):
            raise StateError(
                f"no line begins at byte {offset:,}, where this state goes on: the shard was edited, or "
                "another stands in its place"
            )


class Records(NamedTuple, Generic[D]):
    """Some whole records.

    Args:
        offset: of the first.
        data: what they hold: of lines, all of their bytes.
        ends: where each ends from the offset on, int64 (n,).
        units: how many lines, or rows, each of them is, int64 (n,).
    """

    offset: int
    data: D
    ends: NDArray[np.int64]
    units: NDArray[np.int64]


def split(data: bytes, ends: NDArray[np.int64]) -> list[bytes]:
    """The bytes of each record."""
    return [data[start:end] for start, end in pairwise([0, *ends.tolist()])]


def joined(data: bytes, ends: NDArray[np.int64], records: NDArray[np.int64]) -> bytes:
    """The bytes of some records, whose numbers rise. Price: that of the gaps between them, and of a copy.

    >>> joined(b"a,bb,c,", np.array([2, 5, 7]), np.array([0, 2]))
    b'a,c,'
    """
    if not len(records):
        return b""
    gaps = np.flatnonzero(np.diff(records) > 1)
    first, last = records[np.append(0, gaps + 1)], records[np.append(gaps, len(records) - 1)]
    starts = np.append(0, ends)[first]
    return b"".join([data[start:end] for start, end in zip(starts.tolist(), ends[last].tolist())])


@final
class ForwardReader(ShardReader, Generic[D]):
    """Reads a shard record after record. Position: [byte, unit].

    Args:
        records: those from the position on. An error says why no more can be had, without the place.
        parse: the rows of some of them; never raises for what a record holds, but says which gave no row.
    """

    def __init__(
        self, file: Bytes, request: ReadRequest, records: Iterator[Records[D]], parse: Callable[[Records[D]], Parsed]
    ) -> None:
        super().__init__(file, request)
        self._records, self._parse = records, parse

    def pieces(self) -> Iterator[Piece]:
        while True:
            try:
                records = next(self._records)
            except StopIteration:
                return
            except Exception as error:
                raise self.located(error) from error.__cause__ or error
            positions = np.column_stack((records.offset + records.ends, self.at[-1] + np.cumsum(records.units)))
            yield self._parse(records), positions


def lines_of(file: Bytes, offset: int) -> Iterator[Records[bytes]]:
    """The lines of a file from an offset on, 256 KB to 1 MB of whole ones at a time, more where one is longer.

    Raises:
        StateError: no line begins at the offset.
        DataError: what was read does not decompress, or has changed; a line of more than 256 MB.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole line before it.
    """
    ahead, least = Forward(file), BUFFER_BYTES
    _OPEN.add(ahead)
    if offset:
        ahead.pass_newline(offset, b"\n")
    else:
        ahead.pass_mark()
    while (lines := _whole_lines(ahead, least)) is not None:
        yield lines
        least = buffer_bytes(ahead)


def buffer_bytes(ahead: Forward) -> int:
    """The size of an open shard's buffers after its first, by how many are open."""
    _OPEN.add(ahead)
    return BUFFER_BYTES * max(1, MOST_BUFFERS * WHOLE_BUFFERS // max(WHOLE_BUFFERS, len(_OPEN)))


def _whole_lines(ahead: Forward, least: int) -> Records[bytes] | None:
    for size, last in ahead.growing(least):
        if whole := size if last else ahead.data.rfind(b"\n", 0, size) + 1:
            offset, data = ahead.offset, ahead.cut(whole)
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
            ends = ends if data.endswith(b"\n") else np.append(ends, whole)
            return Records(offset, data, ends, np.ones(len(ends), dtype=np.int64))
    return None


_OPEN: Final[WeakSet[Forward]] = WeakSet()
"""The files whose lines are being read. One that is closed is gone from it as soon as its shard is: nothing else holds it."""
