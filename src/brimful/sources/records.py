"""A shard of records between whose quotes newlines may stand: buffers of whole ones, each with the byte where it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.plan.errors import DataError
from brimful.sources.bytes import READ_BYTES
from brimful.sources.forward import BUFFER_BYTES, Forward, Records, split

RECORD_BYTES: Final = 1 << 24
"""A record that has newlines is not longer: so much is looked through for the end of a quoted field, and held meanwhile."""
_BLANK: Final = (b"\n", b"\r\n", b"\r")


class CsvText(NamedTuple):
    """Whole records as text.

    Args:
        text: of all of them.
        filled: the numbers of those that are not blank, int64 (n,).
        unclosed: why the one that there is is no record, but the line on which a quoted field begins that does not end.
    """

    text: bytes
    filled: NDArray[np.int64]
    unclosed: str | None = None


def header_of(ahead: Forward, delimiter: str) -> tuple[bytes, int]:
    """The first record of a file that is not blank, b"" where there is none, and how many lines there are up to its end; all of
    them are cut off.

    Raises:
        DataError: it does not end; or what was read does not decompress, or has changed.
        Exception: what the store raised.
    """
    ahead.pass_mark()
    lines = 0
    while (records := _next(ahead, delimiter, READ_BYTES)) is not None:
        if records.data.unclosed is not None:
            raise DataError(f"this shard has no header: {records.data.unclosed}")
        filled = records.data.filled
        number = int(filled[0]) if len(filled) else len(records.ends) - 1
        ahead.cut(int(records.ends[number]))
        lines += int(records.units[: number + 1].sum())
        if len(filled):
            return split(records.data.text, records.ends)[number], lines
    return b"", lines


def records_of(ahead: Forward, delimiter: str) -> Iterator[Records[CsvText]]:
    """The records from a place on, about 256 KB of whole ones at a time, more where one is longer.

    Where a quoted field does not end with the file or within 16 MB of its record's beginning, the line that the record begins
    on stands alone, as `unclosed`, and the next record begins with the next line.

    Raises:
        DataError: what was read does not decompress, or has changed.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole record before it.
    """
    while (records := _next(ahead, delimiter, BUFFER_BYTES)) is not None:
        ahead.cut(len(records.data.text))
        yield records


def _next(ahead: Forward, delimiter: str, least: int) -> Records[CsvText] | None:
    """The next records, which are not cut off yet; `least`: about how many bytes of them."""
    for size, last in ahead.growing(least):
        data = ahead.first(size)
        ends = _short_enough(data, ends_of(data, delimiter, last))
        if len(ends):
            return _records(ahead.offset, data[: int(ends[-1])], ends)
        if (last or len(data) > RECORD_BYTES) and (line := _first_line(data, last)):
            within = f"within {RECORD_BYTES:,} bytes" if len(data) > RECORD_BYTES else "before the shard ends"
            why = f"a quoted field begins here and does not end {within}; close it, or double the quotes in it"
            return _records(ahead.offset, data[:line], np.array([line]), why)
    return None


def _records(offset: int, text: bytes, ends: NDArray[np.int64], unclosed: str | None = None) -> Records[CsvText]:
    starts = np.concatenate(([0], ends[:-1]))
    short = np.flatnonzero(ends - starts <= len(b"\r\n"))
    blank = [number for number in short.tolist() if text[starts[number] : ends[number]] in _BLANK]
    filled = np.delete(np.arange(len(ends)), blank)
    newlines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    lines = np.maximum(1, np.diff(np.searchsorted(newlines, ends), prepend=0))
    return Records(offset, CsvText(text, filled, unclosed), ends, lines)


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
