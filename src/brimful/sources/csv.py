"""CSV and TSV to rows: records are cut here, exactly as Arrow would cut them, and parsed by Arrow, a buffer of them at a time."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.format import Format, Parsed, ReadRequest, RecordParser, ShardReader, good_rows
from brimful.sources.forward import BUFFER_BYTES, Forward, ForwardReader, Records, joined, split
from brimful.tables.blocks import Block
from brimful.tables.ragged import array_of, dtype_of, is_text, numpy_of
from brimful.tables.schema import (
    SAMPLE_ROWS,
    UNFIT,
    UNKNOWN,
    MisfitError,
    as_column,
    conform_rows,
    may_be_rounded,
    type_name,
    wider_asked,
)

_ENCODING: Final = "utf-8"


_NOT_IN, _AS_IT_IS = "brimful.not_in_encoding", "surrogateescape"
codecs.register_error(_NOT_IN, lambda error: ("\udcff", cast(UnicodeDecodeError, error).end))


@dataclass(frozen=True)
class Dialect:
    """How a file is written: `csv_options`, checked.

    Args:
        delimiter: between fields.
        quote: around a field that may hold anything; None: quotes are text.
        header: whether the first record is the header; or the names of the columns, of which the file says nothing.
        encoding: of the text; as Python calls it.
        types: "text": every column is text; "infer": the first rows show them.
    """

    delimiter: str
    quote: str | None = '"'
    header: bool | tuple[str, ...] = True
    encoding: str = _ENCODING
    types: str = "infer"

    def under(self, options: Mapping[str, Any]) -> Dialect:
        """This one, but for some options.

        Raises:
            ValueError: two of them contradict each other.
        """
        found = replace(self, **options)
        if found.delimiter == found.quote:
            raise ValueError(f"csv_options: delimiter and quote must differ (both are {found.quote!r})")
        for sign in filter(None, (found.delimiter, found.quote)):
            if found.encoding != _ENCODING and not _is_whole(sign, found.encoding):
                raise ValueError(
                    f"csv_options: {sign!r} may be a part of other characters in the encoding {found.encoding}; convert the "
                    "files to utf-8"
                )
        return found

    def decode(self, data: bytes) -> bytes:
        """Whole records in UTF-8, which Arrow reads. What is not in the encoding is no UTF-8 either, and Arrow says so."""
        return data if self.encoding == _ENCODING else data.decode(self.encoding, _NOT_IN).encode(errors=_AS_IT_IS)


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a user gave, without those that are as by default: a state has the others.

    Raises:
        ValueError: one is unknown, or its value is none that it takes.

    >>> checked_options({"delimiter": ";", "encoding": "Latin-1", "quote": '"', "header": ["a", "b"]})
    {'delimiter': ';', 'encoding': 'iso8859-1', 'header': ('a', 'b')}
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"csv_options takes a dict such as {{'delimiter': ';'}} (got {options!r})")
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"csv_options has the keys {', '.join(_OPTIONS)} (got {name!r})")
    found = {name: _option(name, value) for name, value in options.items()}
    default = Dialect("")
    return {name: value for name, value in found.items() if value != getattr(default, name)}


_OPTIONS: Final = {
    "delimiter": "one ASCII character, but no letter, digit, newline, '+', '-' or '.'",
    "quote": "one ASCII character, but no letter, digit, newline, '+', '-' or '.'; or None, where quotes are text",
    "header": "True, False (the columns are f0, f1, ...), or a list of names, each another",
    "encoding": "an encoding that Python knows and that has ASCII in single bytes, such as 'latin-1' or 'cp1252'",
    "types": "'infer' or 'text'",
}


_TAKEN: Final = ("\0", "\n", "\r", "+", "-", ".")


def _option(name: str, value: Any) -> Any:
    """A value as `Dialect` has it.

    Raises:
        ValueError: it is none that the option takes.
    """
    found = value
    if name in ("delimiter", "quote"):
        good = isinstance(value, str) and len(value) == 1 and value.isascii() and not value.isalnum()
        good = value not in _TAKEN if good else value is None and name == "quote"
    elif name == "header":
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        found = tuple(value) if listed else value
        good = (
            bool(value) and {*map(type, found)} == {str} and len({*found}) == len(found)
            if listed
            else type(value) is bool
        )
    elif name == "encoding":
        found = _codec(value) if isinstance(value, str) else None
        good = found is not None
    else:
        good = value in ("infer", "text")
    if not good:
        raise ValueError(f"csv_options: {name} takes {_OPTIONS[name]} (got {value!r})")
    return found


def _codec(name: str) -> str | None:
    """The encoding of a name, as Python calls it; None where there is none, or one that may have ASCII as parts of others."""
    ascii_text = bytes(range(128)).decode("ascii")
    with suppress(LookupError, UnicodeError):
        found = codecs.lookup(name).name.removesuffix("-sig")
        escaped = r"\u0041+AAA-~{ \x1b$B0!".replace(r"\x1b", "\x1b")  # how encodings write other characters in ASCII
        if all(text.encode(found) == text.encode("ascii") for text in (ascii_text, escaped)):
            texts = [text.encode("ascii").decode(found) for text in (ascii_text, escaped)]
            if texts == [ascii_text, escaped] and _is_whole("\n", found) and _is_whole("\r", found):
                return found
    return None


@cache
def _is_whole(sign: str, encoding: str) -> bool:
    """Whether the byte of an ASCII character is no part of another character, and none of those above ASCII is decoded to it."""
    above = [bytes([byte]) for byte in range(128, 256)]
    alone = all(sign not in byte.decode(encoding, "ignore") for byte in above)
    return alone and all(sign in (byte + f"{sign}  ".encode()).decode(encoding, "ignore") for byte in above)


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


def header_of(ahead: Forward, dialect: Dialect) -> tuple[bytes, int]:
    """The first record of a file that is not blank, b"" where there is none, and how many lines are cut off: those up to its
    end, or those before it where it is no header.

    Raises:
        DataError: it does not end; or what was read does not decompress, or has changed.
        Exception: what the store raised.
    """
    if dialect.encoding == _ENCODING:
        ahead.pass_mark()
    lines = 0
    while dialect.header in (True, False) and (records := _next(ahead, dialect, READ_BYTES)) is not None:
        if records.data.unclosed is not None:
            raise DataError(f"this shard has no {_first(dialect)}: {records.data.unclosed}")
        filled = records.data.filled
        number = int(filled[0]) if len(filled) else len(records.ends) - 1
        cut = number + 1 if dialect.header or not len(filled) else number
        ahead.cut(int(records.ends[cut - 1]) if cut else 0)
        lines += int(records.units[:cut].sum())
        if len(filled):
            return split(records.data.text, records.ends)[number], lines
    return b"", lines


def _first(dialect: Dialect) -> str:
    return "header" if dialect.header is True else "first record, which shows how many columns there are"


def records_of(ahead: Forward, dialect: Dialect) -> Iterator[Records[CsvText]]:
    """The records from a place on, about 256 KB of whole ones at a time, more where one is longer.

    Where a quoted field does not end with the file or within 16 MB of its record's beginning, the line that the record begins
    on stands alone, as `unclosed`, and the next record begins with the next line.

    Raises:
        DataError: what was read does not decompress, or has changed.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole record before it.
    """
    while (records := _next(ahead, dialect, BUFFER_BYTES)) is not None:
        ahead.cut(len(records.data.text))
        yield records


def _next(ahead: Forward, dialect: Dialect, least: int) -> Records[CsvText] | None:
    """The next records, which are not cut off yet; `least`: about how many bytes of them."""
    for size, last in ahead.growing(least):
        data = ahead.first(size)
        ends = _short_enough(data, ends_of(data, dialect, last))
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


def ends_of(data: bytes, dialect: Dialect, last: bool) -> NDArray[np.int64]:
    """Where the records end that are whole; the data begin with one. `last`: nothing follows them, so that the end of the data
    ends a record too.

    >>> ends_of(b'a,"b\\n""c"\\nd,', Dialect(","), last=True).tolist()
    [10, 12]
    """
    ends = _by_quotes(data, dialect, last)
    return ends if ends is not None else _one_by_one(data, dialect, last)


def _by_quotes(data: bytes, dialect: Dialect, last: bool) -> NDArray[np.int64] | None:
    """Records end with the newlines that have an even number of quotes before them. None where this does not hold, or where a CR
    ends a record."""
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return None
    if (quotes := _quotes(data, dialect)) is None:
        return None
    newlines = _places(data, "\n")
    ends: NDArray[np.int64] = newlines[np.searchsorted(quotes, newlines) % 2 == 0] + 1
    if last and len(quotes) % 2 == 0 and len(data) > (ends[-1] if len(ends) else 0):
        ends = np.append(ends, len(data))
    return ends


def _quotes(data: bytes, dialect: Dialect) -> NDArray[np.int64] | None:
    """Where quotes are, if each that opens something stands first in a field, or after one that closes something, so that both
    are one in a text: then all that has an odd number of them before it is inside of one. None where one does not."""
    quotes = _places(data, dialect.quote) if dialect.quote else np.empty(0, dtype=np.int64)
    if not len(quotes):
        return quotes
    opening = quotes[::2]
    before = np.frombuffer(data, dtype=np.uint8)[opening[opening > 0] - 1]
    first = np.logical_or.reduce([before == ord(sign) for sign in (dialect.delimiter, "\n", str(dialect.quote))])
    return quotes if first.all() else None


def _places(data: bytes, sign: str) -> NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord(sign))


def _one_by_one(data: bytes, dialect: Dialect, last: bool) -> NDArray[np.int64]:
    record = _record(dialect.delimiter, dialect.quote, last)
    ends, place = [], 0
    while place < len(data) and (match := record.match(data, place)):
        place = match.end()
        ends.append(place)
    return np.array(ends, dtype=np.int64)


@cache
def _field(delimiter: str, quote: str | None) -> re.Pattern[bytes]:
    """Quotes count where one begins a field: up to the next that is not doubled. What follows it belongs to the field."""
    sign, end = re.escape(quote or "").encode(), re.escape(delimiter).encode()
    quoted = b"(?:%(q)s([^%(q)s]*+(?:%(q)s%(q)s[^%(q)s]*+)*+)%(q)s|(?!%(q)s))" % {b"q": sign} if quote else b"()"
    return re.compile(rb"%s([^%s\r\n]*+)" % (quoted, end))


@cache
def _record(delimiter: str, quote: str | None, last: bool) -> re.Pattern[bytes]:
    field = _field(delimiter, quote).pattern
    end = rb"\r\n|\r|\n|\Z" if last else rb"\r\n|\r(?=.)|\n"  # what follows a CR must be known
    return re.compile(rb"%s(?:%s%s)*+(?:%s)" % (field, re.escape(delimiter).encode(), field, end), re.DOTALL)


def fields(record: bytes, dialect: Dialect) -> list[bytes]:
    """The fields of a record, as they are between quotes.

    >>> fields(b'a,"b, c",', Dialect(","))
    [b'a', b'b, c', b'']
    """
    found, place, quote = [], 0, (dialect.quote or "").encode()
    pattern = _field(dialect.delimiter, dialect.quote)
    while match := pattern.match(record, place):
        quoted, plain = match.groups()
        found.append((quoted or b"").replace(2 * quote, quote) + plain if quote else plain)
        place = match.end() + 1
        if record[match.end() : place] != dialect.delimiter.encode():
            break
    return found


def num_fields(records: Records[CsvText], dialect: Dialect) -> NDArray[np.int64]:
    """How many fields each record has, int64 (n,).

    Price: 3 ns a byte; 1 us a field where a quote stands inside of one that does not begin with it.
    """
    text, ends = records.data.text, records.ends
    quotes = _quotes(text, dialect)
    if quotes is None:
        return np.array([len(fields(record, dialect)) for record in split(text, ends)], dtype=np.int64)
    delimiters = _places(text, dialect.delimiter)
    between = delimiters[np.searchsorted(quotes, delimiters) % 2 == 0]
    return np.diff(np.searchsorted(between, ends), prepend=0) + 1


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


NULLS: Final = ("", "NA", "N/A", "null", "NULL")
"""Of every type but text. (Arrow's own list has more; "nan" is a number.)"""
_NO_NUMBER: Final = r"^\s*(\+|-?0[0-9xX])"
"""Reads as a number, and was none to whoever wrote it: +49, 007, 0x1f."""
_TRUE: Final = ("true", "True", "TRUE")
_FALSE: Final = ("false", "False", "FALSE")
_HEXADECIMAL: Final = r"^\s*-?0[xX]"
_FLOATS: Final = r"(?i)^\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)\s*$"
_LEAP_YEAR: Final = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_MONTH_AND_DAY: Final = r"((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE: Final = rf"(\d{{4}}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_TIME: Final = r"([01]\d|2[0-3])(:[0-5]\d){1,2}"
_UTF_8: Final = (
    r"^([\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$"
)
_DECIMALS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_TOO_LONG: Final = r"^\s*-?[0-9]{16,}\s*$"
"""Digits of which a float would drop some."""
_WORDS: Final = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_REMEDIES: Final = {",": "say format='csv'", "\t": "say format='tsv'"}
_SHOWN: Final = 40
_MOST_DIGITS: Final = 1_000
"""Of an integer that Python is asked to read: no type has as many."""
_Types: TypeAlias = dict[str, pa.DataType | None]


@final
class Delimited(Format):
    """Records of fields between delimiters, after RFC 4180; the first record is the header. A `Dialect` may say otherwise.

    A field that begins with a quote goes on to the next quote that is not doubled, over newlines too; other quotes are text.
    LF, CRLF and CR end records. A byte order mark and blank lines are passed over. Columns are told by name, in any order.

    Types that are not given are those that Arrow sees in the first 1,000 good rows; but text where a number has leading zeros or
    a plus, or more digits than it can hold, and where there are nulls alone. An empty field is null, and so are NA, N/A, null
    and NULL; in text they are what they are. White space around a number is no part of it. Dates and times are text, but where
    `schema=` asks for them.

    Later rows are held to the same: 007, +2 or 0x1f in a column of numbers, and 1 in one of true and false, are errors, as they
    would be text in the first rows. Where `schema=` asks for numbers or bools, 007, +2 and 1 are taken as such; 0x1f never is.

    Price: that of Arrow and half of it, 100 to 300 MB/s; half as fast where quotes stand inside of fields. A resume reads the
    header, then goes to its byte (a compressed shard is decompressed up to there). A record of several lines may hold 16 MB.
    """

    unit = "line"

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name: str = name
        self.extensions: tuple[str, ...] = (f".{name}",)
        self._dialect = dialect

    def under(self, options: Mapping[str, Any]) -> Delimited:
        """This format with some options, as `checked_options` has them."""
        return Delimited(self.name, self._dialect.under(options))

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None and self._dialect.types == "text":
            raise ValueError(f"give csv_options={{'types': 'text'}}, or the types by schema=, not both ({url})")
        if schema is not None and schema.names:
            rows = RecordRows(tuple(schema.names), schema, Dialect(","))
            try:
                rows.read(b",".join([b'""'] * len(schema)))
            except NotImplementedError as error:
                raise ValueError(f"schema= has a type that text cannot give: {error} ({url})") from error

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        ahead = Forward(file)
        try:
            names = _names(header_of(ahead, self._dialect)[0], self._dialect)
        except DataError:  # which is one again when the shard is read
            return None
        wanted = 1 if self._dialect.types == "text" else SAMPLE_ROWS
        texts = good_rows(_good_texts(ahead, names, columns, self._dialect), wanted, on_error)
        if not texts:
            return None
        if lacking := [name for name in columns or () if name not in names]:
            raise DataError(f"{where}: {_lacking(lacking[0], names, self._dialect)}")
        if self._dialect.types == "text":
            return _texts(columns or names)
        return _inferred(texts, names, columns or names, self._dialect)

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        shard = _Shard(file, request, self._dialect)
        return ForwardReader(file, request, shard.records(), shard.rows)


class _Shard:
    """The records of one shard, and their rows, which its header names the columns of."""

    def __init__(self, file: Bytes, request: ReadRequest, dialect: Dialect) -> None:
        self._ahead, self._request, self._dialect = Forward(file), request, dialect
        self._header = b"", 0
        self._rows: RecordRows | None = None

    def records(self) -> Iterator[Records[CsvText]]:
        """From the beginning on the header, or the blank lines before the rows, are the first, as one that has no rows."""
        self._header = header_of(self._ahead, self._dialect)
        if any(self._request.at):
            self._ahead.pass_newline(self._request.at[0], b"\n", b"\r")
        else:
            no_rows = CsvText(b"", np.empty(0, dtype=np.int64))
            yield Records(0, no_rows, np.array([self._ahead.offset]), np.array([self._header[1]]))
        yield from records_of(self._ahead, self._dialect)

    def rows(self, records: Records[CsvText]) -> Parsed:
        if records.data.unclosed is not None or not len(records.data.filled):  # one without rows may have any header
            errors = [] if records.data.unclosed is None else [(0, records.data.unclosed)]
            return Parsed(conform_rows([], self._request.schema), np.empty(0, dtype=np.int64), errors)
        self._rows = self._rows or self._under_header()
        parsed = self._rows.parse(records)
        if len(parsed.records) and self._rows.schema is not self._request.schema:
            place = self._request.place(self._header[1])
            raise DataError(f"{place}: no row was good when the columns were looked for, and one is now; begin anew")
        return parsed

    def _under_header(self) -> RecordRows:
        (text, lines), schema, closed = self._header, self._request.schema, self._request.closed
        try:
            names = _names(text, self._dialect)
            if closed and self._request.inferred and not schema.names:  # no row was good, and each says why
                schema = _texts(names)
            if lacking := [name for name in schema.names if name not in names]:
                raise DataError(_lacking(lacking[0], names, self._dialect))
            if closed and (unknown := [name for name in names if name not in schema.names]):
                raise DataError(
                    f"column {unknown[0]!r} of {_source(self._dialect)} is not in the schema ({', '.join(schema.names)}). "
                    f"Without schema=, the first {SAMPLE_ROWS:,} rows decide it; {UNKNOWN}"
                )
        except DataError as error:
            before = lines - (max(1, text.count(b"\n")) if self._dialect.header is True else 0)
            raise DataError(f"{self._request.place(before)}: {error}") from error
        return RecordRows(names, schema, self._dialect, self._request.inferred, self._request.on_error)


@dataclass(frozen=True)
class RecordRows(RecordParser[bytes]):
    """Parses records under a header to one schema, whose columns are all in it.

    It is Arrow that reads each record in any case.

    Args:
        inferred: whether the types are those of the first rows.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    dialect: Dialect
    inferred: bool = False
    on_error: OnError = "skip"

    def parse(self, records: Records[CsvText]) -> Parsed:
        """Never raises for what a record holds, but says which gave no row."""
        (text, rest, _), ends = records.data, records.ends
        errors: dict[int, str] = {}
        if self.schema.names:
            with suppress(*self.refused):
                block, odd = self._columns(text, len(rest))
                good = self._without(records, rest, odd, errors)
                block = block.take(array_of(np.searchsorted(rest, good))) if odd else block
                return Parsed(block, good, sorted(errors.items()))
        misfits = self._misfits(text, len(rest))
        if misfits is None:
            counts = num_fields(records, self.dialect)[rest]
            bad = counts != len(self.names)
            errors = dict(zip(rest[bad].tolist(), map(self._miscounted, counts[bad].tolist())))
            rest = self._before_errors(rest[~bad], errors)
            misfits = self._misfits(joined(text, ends, rest), len(rest))
        if misfits is not None:
            rest = self._without(records, rest, misfits, errors)
            with suppress(*self.refused):  # where that was all
                block, _ = self._columns(joined(text, ends, rest), len(rest), looked_at=True)
                return Parsed(block, rest, sorted(errors.items()))
        every = split(text, ends)
        parsed = self.rows({number: every[number] for number in rest.tolist()})  # of which few are bad, by other faults
        return Parsed(parsed.block, parsed.records, sorted((errors | dict(parsed.errors)).items()))

    def _without(
        self, records: Records[CsvText], numbers: NDArray[np.int64], odd: Mapping[int, pa.Field], errors: dict[int, str]
    ) -> NDArray[np.int64]:
        """The numbers of records but those of some rows, which become errors for what their column has."""
        if not odd:
            return numbers
        text, bad = records.data.text, numbers[[*odd]]
        starts, ends = np.append(0, records.ends)[bad].tolist(), records.ends[bad].tolist()
        for number, start, end, field in zip(bad.tolist(), starts, ends, odd.values()):
            errors[number] = _unfit(field, self._value(text[start:end], field), self.dialect.encoding)
        return self._before_errors(np.delete(numbers, [*odd]), errors)

    def _before_errors(self, numbers: NDArray[np.int64], errors: Mapping[int, str]) -> NDArray[np.int64]:
        return numbers[numbers < min(errors)] if self.on_error == "raise" and errors else numbers

    def block(self, records: Sequence[bytes]) -> Block:
        block, odd = self._columns(b"".join(records), len(records))
        if odd:
            raise ValueError("there is a number that Arrow has changed")
        return block

    def _columns(self, data: bytes, rows: int, looked_at: bool = False) -> tuple[Block, dict[int, pa.Field]]:
        """The rows of so many records, and those that have a number that Arrow has changed, with its column.

        Args:
            looked_at: whether `_misfits` has found all of these before.
        Raises:
            Exception: one of `refused`, where a record is bad.
        """
        if not rows:
            return conform_rows([], self.schema), {}
        data = self.dialect.decode(data)
        table = self.read(data)
        if table.num_rows != rows or (not looked_at and self._odd(data)):
            raise ValueError("a record is several rows, or has a number that is written as none")
        if any(not field.nullable and table.column(field.name).null_count for field in self.schema):
            raise ValueError("a column is null that may not be")
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        block = pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else conform_rows([], self.schema)
        return block, {} if looked_at else self._beyond(block, data)

    def read(self, data: bytes) -> pa.Table:
        types = {field.name: field.type for field in self.schema} or {self.names[0]: None}  # Arrow takes none for all
        return _read(data, self.names, types, self.dialect, words_only=self.inferred)

    def _as(self, kind: pa.DataType, data: bytes, names: list[str]) -> pa.Table:
        return _read(data, self.names, dict.fromkeys(names, kind), self.dialect)

    def _misfits(self, data: bytes, rows: int) -> dict[int, pa.Field] | None:
        """The rows whose value is surely none of its type, and the first column in which it is. Found by columns, as Arrow says
        of one of them at a time that it is bad. None where the records are not one row each."""
        if self.schema.names and rows:
            with suppress(*self.refused):
                data = self.dialect.decode(data)
                table = self._as(pa.binary(), data, self.schema.names)
                if table.num_rows == rows:
                    return _first_fields(
                        [*self.schema], lambda one: self._misfit(one, table.column(one.name).combine_chunks())
                    )
        return None

    def _misfit(self, field: pa.Field, values: pa.Array) -> NDArray[np.int64]:
        """The rows of a column whose value is surely none of its type."""
        kind = field.type
        if is_text(kind):
            with suppress(pa.ArrowInvalid):
                values.cast(pa.large_string())
                return np.empty(0, np.int64)
        if (form := _form(kind, self.inferred)) is None:
            return np.empty(0, np.int64)
        doubtful = np.flatnonzero(~_matching(values, _plain_form(kind) or form))
        values = values.take(array_of(doubtful))
        good = _matching(values, form)
        if _is_number(kind):
            good &= ~_matching(values, self._no_number)
            good[good] = ~_lost(kind, values.filter(pa.array(good)))
        if not is_text(kind):
            null = numpy_of(pc.is_in(values, pa.array(map(str.encode, NULLS), pa.binary())))
            good = good & ~null | null & field.nullable
        return doubtful[~good]

    @property
    def _no_number(self) -> str:
        return _NO_NUMBER if self.inferred else _HEXADECIMAL

    def _odd(self, data: bytes) -> bool:
        """Whether a number is written as those that are text where types are inferred, or as none that a schema asks for."""
        numbers = [field.name for field in self.schema if _is_number(field.type)]
        if not numbers or not _may_be_odd(data, self.dialect):
            return False
        return any(_any_match(column, self._no_number) for column in self._as(pa.string(), data, numbers).columns)

    def _beyond(self, block: Block, data: bytes) -> dict[int, pa.Field]:
        """The rows where Arrow made a number infinite, or rounded an integer, as it does without a word."""
        odd = [field for field in self.schema if pa.types.is_floating(field.type) and may_be_rounded(block[field.name])]
        if not odd:
            return {}
        digits = min(_digits(field.type) for field in odd)
        infinite = any(pc.any(pc.is_inf(block[field.name])).as_py() for field in odd)
        if not infinite and not _has_long_integers(data, digits):
            return {}
        texts = self._as(pa.string(), data, [field.name for field in odd])
        return _first_fields(
            odd, lambda one: np.flatnonzero(_changed(block[one.name], texts.column(one.name).combine_chunks()))
        )

    def _miscounted(self, count: int) -> str:
        header = "under a header of" if self.dialect.header is True else "where the columns are"
        return (
            f"{count:,} field{'s' * (count != 1)} {header} {len(self.names):,} ({', '.join(self.names)}); "
            "quote fields that hold a delimiter"
        )

    def _value(self, record: bytes, field: pa.Field) -> bytes:
        return fields(record, self.dialect)[self.names.index(field.name)]

    def reason(self, record: bytes, error: Exception) -> str:
        for field in self.schema:
            value = self._value(record, field)
            quoted = replace(self.dialect, quote='"', delimiter=",")
            alone = RecordRows((field.name,), pa.schema([field]), quoted, self.inferred)
            try:
                alone.block([b'"' + value.replace(b'"', b'""') + b'"'])
            except self.refused:
                return _unfit(field, value, self.dialect.encoding)
        return "Arrow does not take this record"


def _first_fields(fields: Sequence[pa.Field], bad: Callable[[pa.Field], NDArray[np.int64]]) -> dict[int, pa.Field]:
    """The rows that are bad in a column, each with its first one."""
    return {row: field for field in reversed(fields) for row in bad(field).tolist()}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _any_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _may_be_odd(data: bytes, dialect: Dialect) -> bool:
    """Whether somewhere a value may begin with a plus, or with a zero before a digit or an x. Much faster than Arrow reads."""
    if b"+" in data:
        return True
    values = np.frombuffer(b"\n\n" + data + b"\n", dtype=np.uint8)
    zeros = np.flatnonzero(values == ord("0"))
    after = values[zeros + 1]
    zeros = zeros[(after - ord("0") < 10) | (after == ord("x")) | (after == ord("X"))]  # bytes wrap around
    before = values[zeros - 1]
    before = np.where(before == ord("-"), values[zeros - 2], before)
    signs = f"\n\r\t {dialect.delimiter}{dialect.quote or ''}".encode()
    return bool(np.isin(before, np.frombuffer(signs, dtype=np.uint8)).any())


def _has_long_integers(data: bytes, digits: int) -> bool:
    """Whether there are so many digits in a row, or more, that are no part of a decimal fraction. Faster than Arrow reads."""
    values = np.frombuffer(b"\n" + data + b"\n", dtype=np.uint8)
    others = np.flatnonzero(values - ord("0") > 9)  # bytes wrap around
    long = np.flatnonzero(np.diff(others) > digits)
    before, after = values[others[long]], values[others[long + 1]]
    return bool(((before != ord(".")) & ~np.isin(after, np.frombuffer(b".eE", dtype=np.uint8))).any())


def _changed(numbers: pa.Array, texts: pa.Array) -> NDArray[np.bool_]:
    """Which floats are not what their texts say: those beyond the type, and integers that it rounds."""
    values = numpy_of(numbers.fill_null(0))
    changed = np.zeros(len(values), bool)
    large = np.flatnonzero(np.abs(values) >= _exact(numbers.type))
    if not len(large):
        return changed
    texts, infinite = pc.ascii_trim_whitespace(texts.take(array_of(large))), np.isinf(values[large])
    changed[large] = infinite & ~numpy_of(pc.match_substring(texts, "inf", ignore_case=True))
    whole = numpy_of(pc.utf8_is_digit(pc.ascii_ltrim(texts, "+-"))) & ~infinite
    large, texts = large[whole], texts.take(array_of(np.flatnonzero(whole)))
    floats = values[large]
    try:
        beyond = floats >= 2.0**63
        meant = numpy_of(texts.cast(pa.int64()))
        changed[large] = beyond | (np.where(beyond, 0, floats).astype(np.int64) != meant)
    except pa.ArrowInvalid:  # of more than 64 bits
        changed[large] = [int(text) != int(value) for text, value in zip(texts.to_pylist(), floats)]
    return changed


def _lost(kind: pa.DataType, values: pa.Array) -> NDArray[np.bool_]:
    """Which numbers are beyond their type, or integers that it rounds."""
    texts = pc.ascii_trim_whitespace(values.view(pa.string()))
    if pa.types.is_floating(kind):
        return _changed(texts.cast(kind), texts)
    with suppress(pa.ArrowInvalid):
        texts.cast(kind)
        return np.zeros(len(texts), bool)
    bounds = np.iinfo(dtype_of(kind))
    short = numpy_of(pc.less_equal(pc.utf8_length(texts), _MOST_DIGITS))
    return ~np.array(
        [fits and bounds.min <= int(text) <= bounds.max for fits, text in zip(short, texts.to_pylist())], bool
    )


def _matching(values: pa.Array, pattern: str) -> NDArray[np.bool_]:
    return numpy_of(pc.match_substring_regex(values, pattern))


def _form(kind: pa.DataType, words_only: bool) -> str | None:
    """What all texts look like that Arrow takes for a type; None where that is not known. The few of this form that it refuses
    all the same are found one by one."""
    test: Any = pa.types
    if is_text(kind):
        return _UTF_8
    if test.is_integer(kind):
        return rf"^\s*{'-?' * test.is_signed_integer(kind)}\d+\s*$"
    if test.is_floating(kind):
        return _FLOATS
    if test.is_boolean(kind):
        return f"^({'|'.join((*_TRUE, *_FALSE, *['0', '1'] * (not words_only)))})$"
    if test.is_date(kind):
        return rf"^\s*{_DATE}\s*$"
    if test.is_time(kind):
        return rf"^\s*{_TIME}(\.\d{{0,{_DECIMALS[kind.unit]}}})?\s*$"
    if test.is_timestamp(kind):
        zone = r"(Z|[+-]\d\d(:?\d\d)?)" if kind.tz else ""
        return rf"^{_DATE}([ T](\d\d|{_TIME}(\.\d{{0,{_DECIMALS[kind.unit]}}})?))?{zone}$"
    if test.is_decimal(kind):
        fraction = rf"(\.\d{{0,{max(0, kind.scale)}}}0*)?"
        return rf"^\s*[+-]?(0*\d{{0,{kind.precision}}}{fraction}|[\d.]+[eE][+-]?\d+)\s*$"
    return None


def _plain_form(kind: pa.DataType) -> str | None:
    """What most numbers look like, and only such as Arrow reads as they are; None for other types."""
    if not _is_number(kind):
        return None
    whole = rf"(0|[1-9]\d{{0,{_digits(kind) - 2}}})"
    if pa.types.is_integer(kind):
        return rf"^{'-?' * pa.types.is_signed_integer(kind)}{whole}$"
    exponent = r"(e[+-]?\d\d?)?" if kind == pa.float64() else ""
    return rf"^-?{whole}(\.\d+)?{exponent}$"


def _digits(kind: pa.DataType) -> int:
    """The digits of the smallest integer that a type may not have."""
    if pa.types.is_integer(kind):
        return len(str(np.iinfo(dtype_of(kind)).max))
    return len(str(_exact(kind)))


def _exact(kind: pa.DataType) -> int:
    """Up to there, floats have all integers."""
    return int(2 ** (np.finfo(dtype_of(kind)).nmant + 1))


_ENCODED: Final = "; say how the file is written, as csv_options={'encoding': 'latin-1'}"


def _unfit(field: pa.Field, value: bytes, encoding: str) -> str:
    try:
        text = value.decode(encoding)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{value[error.start]:02x} at byte {error.start:,} of column {field.name!r}"
        return f"invalid {encoding.upper()}: {byte}{_ENCODED}"
    if text in NULLS and not field.nullable:
        return MisfitError(field.name, "null", f"{type_name(field.type)} not null").told()
    shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
    asked = ""
    with suppress(ValueError, *UNFIT):
        asked = wider_asked(as_column([int(text)]).type, field.type, "string")
    return MisfitError(field.name, shown, type_name(field.type), asked=asked).told()


def _read(data: bytes, names: Sequence[str], types: _Types, dialect: Dialect, words_only: bool = False) -> pa.Table:
    """The columns of some names in their types, None: in the one that Arrow sees; `words_only`: 0 and 1 are no bools."""
    data = b"\n" + data  # at the beginning Arrow would take a byte order mark off a row
    read = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
    parse = pa.csv.ParseOptions(delimiter=dialect.delimiter, quote_char=dialect.quote or False, newlines_in_values=True)
    bools = {"true_values": _TRUE, "false_values": _FALSE} if words_only else {}
    known = {name: kind for name, kind in types.items() if kind is not None}
    convert = pa.csv.ConvertOptions(column_types=known, include_columns=list(types), null_values=NULLS, **bools)
    return pa.csv.read_csv(io.BytesIO(data), read_options=read, parse_options=parse, convert_options=convert)


def _names(header: bytes, dialect: Dialect) -> tuple[str, ...]:
    """The names of the columns.

    Args:
        header: the first record.
    Raises:
        DataError: one occurs twice; or they are not in the encoding; or a single one holds other delimiters.
    """
    if isinstance(dialect.header, tuple):
        return dialect.header
    found = fields(header, dialect)
    if not dialect.header:
        return tuple(f"f{number}" for number in range(len(found)))
    try:
        names = tuple(name.decode(dialect.encoding) for name in found)
    except UnicodeDecodeError as error:
        name = dialect.encoding.upper()
        byte = f"byte 0x{error.object[error.start]:02x} in a name"
        raise DataError(f"the header is no {name}: {byte}{_ENCODED}") from error
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise DataError(f"the header names {twice[0]!r} twice ({', '.join(names)}); rename one of them")
    quoted = dialect.quote is not None and dialect.quote.encode() in header
    others = [sign for sign in _WORDS if sign in names[0] and sign != dialect.delimiter]
    if len(names) == 1 and others and not quoted:
        remedy = _REMEDIES.get(others[0], f"say csv_options={{'delimiter': {others[0]!r}}}")
        own = _WORDS.get(dialect.delimiter, repr(dialect.delimiter))
        raise DataError(
            f"the header has 1 column, {names[0]!r}, as {own} divide it, but it holds {_WORDS[others[0]]}; {remedy}, or quote "
            "the name if it is one"
        )
    return names


def _source(dialect: Dialect) -> str:
    """What names the columns, in words."""
    if isinstance(dialect.header, bool):
        return "the header" if dialect.header else "the first record"
    return "csv_options"


def _lacking(name: str, names: Sequence[str], dialect: Dialect) -> str:
    source = _source(dialect)
    return f"there is no column {name!r} in {source} ({', '.join(names)}); correct columns= or schema=, or {source}"


# -- the types of first rows ---------------------------------------------------------------------------------------------


def _texts(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _good_texts(
    ahead: Forward, names: tuple[str, ...], columns: Sequence[str] | None, dialect: Dialect
) -> Iterator[bytes | None]:
    """The records, and None for those that are bad whatever their types."""
    rows = RecordRows(names, _texts(name for name in columns or names if name in names), dialect)
    with suppress(DataError):
        for records in records_of(ahead, dialect):
            if records.data.unclosed is not None:
                yield None
                continue
            every, good = split(records.data.text, records.ends), set(rows.parse(records).records.tolist())
            yield from (every[number] if number in good else None for number in records.data.filled.tolist())


def _inferred(texts: Sequence[bytes], names: Sequence[str], wanted: Sequence[str], dialect: Dialect) -> pa.Schema:
    data = dialect.decode(b"".join(texts))
    seen = _read(data, names, dict.fromkeys(wanted), dialect, words_only=True).schema
    as_text = _read(data, names, dict.fromkeys(wanted, pa.string()), dialect)
    return pa.schema([(name, _type(seen.field(name).type, as_text.column(name))) for name in wanted])


def _type(seen: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """The type that Arrow saw in a column; text where that type would change a value, or of dates and times, as which Arrow reads
    much that was written otherwise (times of another zone, or to the minute)."""
    odd = []
    if _is_number(seen):
        odd = [_NO_NUMBER, *[_TOO_LONG] * pa.types.is_floating(seen)]
    changes = any(_any_match(texts, pattern) for pattern in odd)
    return pa.string() if changes or pa.types.is_null(seen) or pa.types.is_temporal(seen) else seen
