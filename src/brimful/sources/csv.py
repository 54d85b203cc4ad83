"""CSV and TSV to rows: records are cut here, exactly as Arrow would cut them, and parsed by Arrow, a buffer of them at a time."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.format import BAD_RECORDS, Format, Parsed, ReadRequest, RecordParser, ShardReader, good_rows
from brimful.sources.forward import BUFFER_BYTES, Forward, ForwardReader, Records, split
from brimful.tables.blocks import Block
from brimful.tables.schema import SAMPLE_ROWS, UNKNOWN, MisfitError, conform_rows, may_be_rounded, type_name

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


NULLS: Final = ("", "NA", "N/A", "null", "NULL")
"""Of every type but text. (Arrow's own list has more; "nan" is a number.)"""
_NO_NUMBER: Final = r"^\s*(\+|-?0[0-9xX])"
"""Reads as a number, and was none to whoever wrote it: +49, 007, 0x1f."""
_TRUE: Final = ("true", "True", "TRUE")
_FALSE: Final = ("false", "False", "FALSE")
_HEXADECIMAL: Final = r"^\s*-?0[xX]"
_BEFORE_VALUES: Final = b'\n\r\t "'
"""And the delimiter."""
_INTEGER: Final = r"^-?[0-9]+$"
_TOO_LONG: Final = r"^\s*-?[0-9]{16,}\s*$"
"""Digits of which a float would drop some."""
_WORDS: Final = {",": "commas", "\t": "tabs", ";": "semicolons"}
_REMEDIES: Final = {
    ",": "say format='csv'",
    "\t": "say format='tsv'",
    ";": "write the file with commas or tabs, or read it by a function (format=)",
}
_SHOWN: Final = 40
_Types: TypeAlias = dict[str, pa.DataType | None]


@final
class Delimited(Format):
    """Records of fields between delimiters, after RFC 4180; the first record is the header.

    A field that begins with a quote goes on to the next quote that is not doubled, over newlines too; other quotes are text.
    LF, CRLF and CR end records. A byte order mark and blank lines are passed over. Columns are told by name, in any order.

    Types that are not given are those that Arrow sees in the first 1,000 good rows; but text where a number has leading zeros or
    a plus, or more digits than it can hold, and where there are nulls alone. An empty field is null, and so are NA, N/A, null
    and NULL; in text they are what they are. White space around a number is no part of it.

    Later rows are held to the same: 007, +2 or 0x1f in a column of numbers, and 1 in one of true and false, are errors, as they
    would be text in the first rows. Where `schema=` asks for numbers or bools, 007, +2 and 1 are taken as such; 0x1f never is.

    Price: that of Arrow and half of it, 100 to 300 MB/s; half as fast where quotes stand inside of fields. A resume reads the
    header, then goes to its byte (a compressed shard is decompressed up to there). A record of several lines may hold 16 MB.
    """

    unit = "line"

    def __init__(self, name: str, delimiter: str) -> None:
        self.name: str = name
        self.extensions: tuple[str, ...] = (f".{name}",)
        self._delimiter = delimiter

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None and schema.names:
            rows = RecordRows(tuple(schema.names), schema, self._delimiter)
            try:
                rows.read(self._delimiter.encode().join([b'""'] * len(schema)))
            except NotImplementedError as error:
                raise ValueError(f"schema= has a type that text cannot give: {error} ({url})") from error

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        ahead = Forward(file)
        try:
            names = _names(header_of(ahead, self._delimiter)[0], self._delimiter)
        except DataError:  # which is one again when the shard is read
            return None
        texts = good_rows(_good_texts(ahead, names, columns, self._delimiter), SAMPLE_ROWS, on_error)
        if not texts:
            return None
        if lacking := [name for name in columns or () if name not in names]:
            raise DataError(f"{where}: {_lacking(lacking[0], names)}")
        return _inferred(texts, names, columns or names, self._delimiter)

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        shard = _Shard(file, request, self._delimiter)
        return ForwardReader(file, request, shard.records(), shard.rows)


class _Shard:
    """The records of one shard, and their rows, which its header names the columns of."""

    def __init__(self, file: Bytes, request: ReadRequest, delimiter: str) -> None:
        self._ahead, self._request, self._delimiter = Forward(file), request, delimiter
        self._header = b"", 0
        self._rows: RecordRows | None = None

    def records(self) -> Iterator[Records[CsvText]]:
        """From the beginning on the header is the first, as one that has no rows."""
        self._header = header_of(self._ahead, self._delimiter)
        if any(self._request.at):
            self._ahead.pass_newline(self._request.at[0], b"\n", b"\r")
        else:
            no_rows = CsvText(b"", np.empty(0, dtype=np.int64))
            yield Records(0, no_rows, np.array([self._ahead.offset]), np.array([self._header[1]]))
        yield from records_of(self._ahead, self._delimiter)

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
            names = _names(text, self._delimiter)
            if closed and self._request.inferred and not schema.names:  # no row was good, and each says why
                schema = _texts(names)
            if lacking := [name for name in schema.names if name not in names]:
                raise DataError(_lacking(lacking[0], names))
            if closed and (unknown := [name for name in names if name not in schema.names]):
                raise DataError(
                    f"column {unknown[0]!r} of the header is not in the schema ({', '.join(schema.names)}). Without schema=, the "
                    f"first {SAMPLE_ROWS:,} rows decide it; {UNKNOWN}"
                )
        except DataError as error:
            before = lines - max(1, text.count(b"\n"))
            raise DataError(f"{self._request.place(before)}: {error}") from error
        return RecordRows(names, schema, self._delimiter, self._request.inferred, self._request.on_error)


@dataclass(frozen=True)
class RecordRows(RecordParser[bytes]):
    """Parses records under a header to one schema, whose columns are all in it.

    It is Arrow that reads each record in any case.

    Args:
        inferred: whether the types are those of the first rows.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    delimiter: str
    inferred: bool = False
    on_error: OnError = "skip"

    def parse(self, records: Records[CsvText]) -> Parsed:
        """Never raises for what a record holds, but says which gave no row."""
        text, filled = records.data.text, records.data.filled
        if self.schema.names:
            with suppress(*self.refused):
                return Parsed(self._block(text, len(filled)), filled, [])
        every = split(text, records.ends)
        return self.rows({number: every[number] for number in filled.tolist()})

    def block(self, records: Sequence[bytes]) -> Block:
        return self._block(b"".join(records), len(records))

    def _block(self, data: bytes, rows: int) -> Block:
        """The rows of so many records.

        Raises:
            Exception: one of `refused`, where one is bad.
        """
        if not rows:
            return conform_rows([], self.schema)
        table = self.read(data)
        if table.num_rows != rows or self._odd(data) or self._beyond(table, data):
            raise ValueError("a record is several rows, or has a number that Arrow would change")
        if any(not field.nullable and table.column(field.name).null_count for field in self.schema):
            raise ValueError("a column is null that may not be")
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else conform_rows([], self.schema)

    def read(self, data: bytes) -> pa.Table:
        types = {field.name: field.type for field in self.schema} or {self.names[0]: None}  # Arrow takes none for all
        return _read(data, self.names, types, self.delimiter, words_only=self.inferred)

    def _as_texts(self, data: bytes, names: list[str]) -> pa.Table:
        return _read(data, self.names, dict.fromkeys(names, pa.string()), self.delimiter)

    def _odd(self, data: bytes) -> bool:
        """Whether a number is written as those that are text where types are inferred, or as none that a schema asks for."""
        numbers = [field.name for field in self.schema if _is_number(field.type)]
        if not numbers or not _may_be_odd(data, self.delimiter):
            return False
        texts = self._as_texts(data, numbers)
        return any(_any_match(column, _NO_NUMBER if self.inferred else _HEXADECIMAL) for column in texts.columns)

    def _beyond(self, table: pa.Table, data: bytes) -> bool:
        """Whether Arrow made a number infinite, or rounded an integer, as it does without a word."""
        floats = [field for field in self.schema if pa.types.is_floating(field.type)]
        odd = [field for field in floats if may_be_rounded(table.column(field.name).combine_chunks())]
        if not odd:
            return False
        texts = self._as_texts(data, [field.name for field in odd])
        return any(_changed(table.column(field.name), texts.column(field.name)) for field in odd)

    def known(self, record: bytes) -> str | None:
        """Why a record has too few or too many fields, the most frequent fault; None where it has as many as the header."""
        count = len(fields(record, self.delimiter))
        if count == len(self.names):
            return None
        return (
            f"{count:,} field{'s' * (count != 1)} under a header of {len(self.names):,} ({', '.join(self.names)}); "
            "quote fields that hold a delimiter"
        )

    def reason(self, record: bytes, error: Exception) -> str:
        values = fields(record, self.delimiter)
        for field in self.schema:
            value = values[self.names.index(field.name)]
            alone = RecordRows((field.name,), pa.schema([field]), self.delimiter, self.inferred)
            try:
                alone.block([b'"' + value.replace(b'"', b'""') + b'"'])
            except self.refused:
                return _unfit(field, value)
        return "Arrow does not take this record"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _any_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _may_be_odd(data: bytes, delimiter: str) -> bool:
    """Whether somewhere a value may begin with a plus, or with a zero before a digit or an x. Much faster than Arrow reads."""
    if b"+" in data:
        return True
    values = np.frombuffer(b"\n\n" + data + b"\n", dtype=np.uint8)
    zeros = np.flatnonzero(values == ord("0"))
    after = values[zeros + 1]
    zeros = zeros[(after - ord("0") < 10) | (after == ord("x")) | (after == ord("X"))]  # bytes wrap around
    before = values[zeros - 1]
    before = np.where(before == ord("-"), values[zeros - 2], before)
    return bool(np.isin(before, np.frombuffer(_BEFORE_VALUES + delimiter.encode(), dtype=np.uint8)).any())


def _changed(numbers: pa.ChunkedArray, texts: pa.ChunkedArray) -> bool:
    """Whether floats are not what their texts say."""
    meant = pc.match_substring(texts, "inf", ignore_case=True)
    if pc.any(pc.and_not(pc.is_inf(numbers), meant)).as_py():
        return True
    texts = pc.utf8_trim_whitespace(texts)
    integers = texts.filter(pc.match_substring_regex(texts, _INTEGER))
    try:
        integers.cast(pa.int64()).cast(numbers.type)
    except pa.ArrowInvalid:
        return True
    return False


def _unfit(field: pa.Field, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: byte 0x{value[error.start]:02x} at byte {error.start:,} of column {field.name!r}"
    if text in NULLS and not field.nullable:
        return MisfitError(field.name, "null", f"{type_name(field.type)} not null").told()
    shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
    return MisfitError(field.name, shown, type_name(field.type)).told()


def _read(data: bytes, names: Sequence[str], types: _Types, delimiter: str, words_only: bool = False) -> pa.Table:
    """The columns of some names in their types, None: in the one that Arrow sees; `words_only`: 0 and 1 are no bools."""
    data = b"\n" + data  # at the beginning Arrow would take a byte order mark off a row
    read = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    bools = {"true_values": _TRUE, "false_values": _FALSE} if words_only else {}
    known = {name: kind for name, kind in types.items() if kind is not None}
    convert = pa.csv.ConvertOptions(column_types=known, include_columns=list(types), null_values=NULLS, **bools)
    return pa.csv.read_csv(io.BytesIO(data), read_options=read, parse_options=parse, convert_options=convert)


def _names(header: bytes, delimiter: str) -> tuple[str, ...]:
    """The names of the columns.

    Raises:
        DataError: one occurs twice; or they are no UTF-8; or a single one holds other delimiters.
    """
    try:
        names = tuple(name.decode() for name in fields(header, delimiter))
    except UnicodeDecodeError as error:
        raise DataError(f"the header is no UTF-8: byte 0x{error.object[error.start]:02x} in a name") from error
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise DataError(f"the header names {twice[0]!r} twice ({', '.join(names)}); rename one of them")
    if len(names) == 1 and b'"' not in header and (other := next((sign for sign in _WORDS if sign in names[0]), None)):
        raise DataError(
            f"the header has 1 column, {names[0]!r}, as {_WORDS[delimiter]} divide it, but it holds {_WORDS[other]}; "
            f"{_REMEDIES[other]}, or quote the name if it is one"
        )
    return names


def _lacking(name: str, names: Sequence[str]) -> str:
    return f"there is no column {name!r} in the header ({', '.join(names)}); correct columns= or schema=, or the header"


# -- the types of first rows ---------------------------------------------------------------------------------------------


def _texts(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _good_texts(
    ahead: Forward, names: tuple[str, ...], columns: Sequence[str] | None, delimiter: str
) -> Iterator[bytes | None]:
    """The records, and None for those that are bad whatever their types."""
    rows = RecordRows(names, _texts(name for name in columns or names if name in names), delimiter)
    with suppress(DataError):
        for records in records_of(ahead, delimiter):
            if records.data.unclosed is not None:
                yield None
                continue
            every, filled = split(records.data.text, records.ends), records.data.filled.tolist()
            for first in range(0, len(filled), BAD_RECORDS):  # which may be the end of it
                texts = {number: every[number] for number in filled[first : first + BAD_RECORDS]}
                good = set(rows.rows(texts).records.tolist())
                yield from (text if number in good else None for number, text in texts.items())


def _inferred(texts: Sequence[bytes], names: Sequence[str], wanted: Sequence[str], delimiter: str) -> pa.Schema:
    data = b"".join(texts)
    seen = _read(data, names, dict.fromkeys(wanted), delimiter, words_only=True).schema
    as_text = _read(data, names, dict.fromkeys(wanted, pa.string()), delimiter)
    return pa.schema([(name, _type(seen.field(name).type, as_text.column(name))) for name in wanted])


def _type(seen: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """The type that Arrow saw in a column; text where that type would change a value."""
    odd = []
    if _is_number(seen):
        odd = [_NO_NUMBER, *[_TOO_LONG] * pa.types.is_floating(seen)]
    changes = any(_any_match(texts, pattern) for pattern in odd)
    return pa.string() if changes or pa.types.is_null(seen) else seen
