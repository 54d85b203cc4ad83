"""A shard of records between whose quotes newlines may stand: buffers of whole ones, each with the byte where it ends."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import DataError, StateError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.forward import Forward
from brimful.sources.lines import BUFFER_BYTES

RECORD_BYTES: Final = 1 << 24
"""A record that has newlines is not longer: so much is looked through for the end of a quoted field, and held meanwhile."""
_BLANK: Final = (b"\n", b"\r\n", b"\r")


class CsvRecords(NamedTuple):
    """Whole records: the offset of the first, the bytes of all, and where each ends among these, int64 (n,).

    `unclosed`: why the one that there is is no record, but the line on which a quoted field begins that does not end.
    """

    offset: int
    data: bytes
    ends: NDArray[np.int64]
    unclosed: str | None = None

    def split(self) -> list[bytes]:
        return [self.data[start:end] for start, end in pairwise([0, *self.ends.tolist()])]

    def filled(self) -> NDArray[np.int64]:
        """The numbers of those that are not blank."""
        starts = np.concatenate(([0], self.ends[:-1]))
        short = np.flatnonzero(self.ends - starts <= len(b"\r\n"))
        blank = [number for number in short.tolist() if self.data[starts[number] : self.ends[number]] in _BLANK]
        return np.delete(np.arange(len(self.ends)), blank)

    @property
    def units(self) -> NDArray[np.int64]:
        """How many lines each has: its newlines, or 1."""
        newlines = np.flatnonzero(np.frombuffer(self.data, dtype=np.uint8) == ord("\n"))
        passed = np.searchsorted(newlines, self.ends)
        return np.maximum(1, np.diff(passed, prepend=0))


class RecordReader:
    """Reads a file forward, about 256 KB of whole records at a time, more where one is longer.

    Where a quoted field does not end with the file or within 16 MB of its record's beginning, the line that the record begins
    on stands alone, as `unclosed`, and the next record begins with the next line.

    A read error (a truncated archive) is raised after the last whole record before it has been handed out.
    """

    def __init__(self, file: Bytes, delimiter: str) -> None:
        self._bytes, self._delimiter = Forward(file), delimiter
        self.offset: int = 0

    def header(self) -> tuple[bytes, int] | None:
        """The first record that is not blank, and how many lines there are up to its end; None where there is none. Called
        first of all.

        Raises:
            DataError: it does not end; or what was read does not decompress, or has changed.
            Exception: what the store raised.
        """
        self._bytes.pass_mark()
        lines = 0
        while (records := self._next(READ_BYTES)) is not None:
            if records.unclosed is not None:
                raise DataError(f"this shard has no header: {records.unclosed}")
            filled = records.filled()
            number = int(filled[0]) if len(filled) else len(records.ends) - 1
            self._bytes.cut(int(records.ends[number]))
            self.offset = self._bytes.offset
            lines += int(records.units[: number + 1].sum())
            if len(filled):
                return records.split()[number], lines
        return None

    def seek(self, offset: int) -> None:
        """Goes on to the record that begins with a byte after the header.

        Raises:
            StateError: no line begins there.
        """
        if offset < self.offset:
            raise StateError(
                f"no line begins at byte {offset:,}, where this state goes on: the shard was edited, or another stands in its "
                "place"
            )
        if offset > self.offset:
            self._bytes.pass_newline(offset, b"\n", b"\r")

    def read(self) -> CsvRecords | None:
        """The next records; None at the end.

        Raises:
            DataError: what was read does not decompress, or has changed.
            Exception: what the store raised.
        """
        records = self._next(BUFFER_BYTES)
        if records is not None:
            self._bytes.cut(len(records.data))
        return records

    def _next(self, least: int) -> CsvRecords | None:
        """The next records, which are not cut off yet; `least`: about how many bytes of them."""
        for size, last in self._bytes.growing(least):
            data = self._bytes.first(size)
            ends = _short_enough(data, ends_of(data, self._delimiter, last))
            if len(ends):
                return CsvRecords(self._bytes.offset, data[: int(ends[-1])], ends)
            if (last or len(data) > RECORD_BYTES) and (line := _first_line(data, last)):
                within = f"within {RECORD_BYTES:,} bytes" if len(data) > RECORD_BYTES else "before the shard ends"
                why = f"a quoted field begins here and does not end {within}; close it, or double the quotes in it"
                return CsvRecords(self._bytes.offset, data[:line], np.array([line]), why)
        return None


def ends_of(data: bytes, delimiter: str, last: bool) -> NDArray[np.int64]:
    """Where the records end that are whole; the data begin with one. `last`: nothing follows them, so that the end of the data
    ends a record too.

    >>> ends_of(b'a,"b\\n""c"\\nd,', ",", last=True).tolist()
    [10, 12]
    """
    ends = _by_quotes(data, delimiter, last)
    return ends if ends is not None else _one_by_one(data, delimiter, last)


def _by_quotes(data: bytes, delimiter: str, last: bool) -> NDArray[np.int64] | None:
    """Records end with the newlines that have an even number of quotes before them: where each quote that opens something
    stands first in a field, or after one that closes something, so that both are one in a text. None where one does not, or
    where a CR ends a record."""
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return None
    values = np.frombuffer(data, dtype=np.uint8)
    newlines, quotes = np.flatnonzero(values == ord("\n")), np.flatnonzero(values == ord('"'))
    ends: NDArray[np.int64] = newlines[np.searchsorted(quotes, newlines) % 2 == 0] + 1
    if last and len(quotes) % 2 == 0 and len(data) > (ends[-1] if len(ends) else 0):
        ends = np.append(ends, len(data))
    opening = quotes[::2]
    before = values[opening[opening > 0] - 1]
    first = (before == ord(delimiter)) | (before == ord("\n")) | (before == ord('"'))
    return ends if first.all() else None


def _one_by_one(data: bytes, delimiter: str, last: bool) -> NDArray[np.int64]:
    record = _record(delimiter, last)
    ends, place = [], 0
    while place < len(data) and (match := record.match(data, place)):
        place = match.end()
        ends.append(place)
    return np.array(ends, dtype=np.int64)


@cache
def _field(delimiter: str) -> re.Pattern[bytes]:
    """Quotes count where one begins a field: up to the next that is not doubled. What follows it belongs to the field."""
    return re.compile(rb'(?:"([^"]*+(?:""[^"]*+)*+)"|(?!"))([^%s\r\n]*+)' % delimiter.encode())


@cache
def _record(delimiter: str, last: bool) -> re.Pattern[bytes]:
    field = _field(delimiter).pattern
    end = rb"\r\n|\r|\n|\Z" if last else rb"\r\n|\r(?=.)|\n"  # what follows a CR must be known
    return re.compile(rb"%s(?:%s%s)*+(?:%s)" % (field, delimiter.encode(), field, end), re.DOTALL)


def fields(record: bytes, delimiter: str) -> list[bytes]:
    """The fields of a record, as they are between quotes.

    >>> fields(b'a,"b, c",', ",")
    [b'a', b'b, c', b'']
    """
    found, place = [], 0
    while match := _field(delimiter).match(record, place):
        quoted, plain = match.groups()
        found.append((quoted or b"").replace(b'""', b'"') + plain)
        place = match.end() + 1
        if record[match.end() : place] != delimiter.encode():
            break
    return found


def _first_line(data: bytes, last: bool) -> int:
    """Where the first line ends; 0 where it does not yet."""
    match = re.search(rb"\r\n|\r|\n|\Z" if last else rb"\r\n|\r(?=.)|\n", data, re.DOTALL)
    return match.end() if match else 0


def _short_enough(data: bytes, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The records before the first that is too long. (One line may be longer.)"""
    for number in np.flatnonzero(np.diff(ends, prepend=0) > RECORD_BYTES).tolist():
        text = data[int(ends[number - 1]) if number else 0 : int(ends[number])]
        if _first_line(text, last=True) < len(text):
            return ends[:number]
    return ends
