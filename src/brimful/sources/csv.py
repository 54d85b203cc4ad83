"""CSV and TSV to rows: records are cut here, exactly as Arrow would cut them, and parsed by Arrow, a buffer of them at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from brimful.blocks.blocks import Block
from brimful.blocks.schema import OF_FILES, SAMPLE_ROWS, UNKNOWN, block_of, may_be_rounded, named
from brimful.core.errors import DataError, OnError
from brimful.sources.bytes import Bytes
from brimful.sources.format import BAD_RECORDS, Format, Parsed, Position, ShardReader, Wanted, good_rows, halved
from brimful.sources.forward import ForwardReader
from brimful.sources.records import CsvRecords, RecordReader, fields

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
_REFUSED: Final = (pa.ArrowException, ValueError, OverflowError)


class Delimited(Format):
    """Abstract: records of fields between delimiters, after RFC 4180; the first record is the header.

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

    delimiter: ClassVar[str]
    unit = "line"
    schema: ClassVar[pa.Schema | None] = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None and schema.names:
            rows = RecordRows(tuple(schema.names), schema, self.delimiter)
            try:
                rows.read(self.delimiter.encode().join([b'""'] * len(schema)))
            except NotImplementedError as error:
                raise ValueError(f"schema= has a type that text cannot give: {error} ({url})") from error

    def infer(
        self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError = "skip"
    ) -> pa.Schema | None:
        reader = RecordReader(file, self.delimiter)
        try:
            header = reader.header()
            names = _names(header[0], self.delimiter) if header is not None else ()
        except DataError:  # which is one again when the shard is read
            names = ()
        if not names:
            return None
        texts = good_rows(_records(reader, names, columns, self.delimiter), SAMPLE_ROWS, on_error)
        if not texts:
            return None
        if lacking := [name for name in columns or () if name not in names]:
            raise DataError(f"{where}: {_lacking(lacking[0], names)}")
        return _inferred(texts, names, columns or names, self.delimiter)

    def open(self, file: Bytes, wanted: Wanted) -> ShardReader:
        return DelimitedReader(file, wanted, self.delimiter)


@final
class Csv(Delimited):
    """Between commas."""

    name = "csv"
    extensions: ClassVar[tuple[str, ...]] = (".csv",)
    delimiter = ","


@final
class Tsv(Delimited):
    """Between tabs; with quotes, as in CSV."""

    name = "tsv"
    extensions: ClassVar[tuple[str, ...]] = (".tsv",)
    delimiter = "\t"


class DelimitedReader(ForwardReader[CsvRecords]):
    """The rows of one shard. Position: [byte, line]."""

    unit = "line"

    def __init__(self, file: Bytes, wanted: Wanted, delimiter: str) -> None:
        super().__init__(file, wanted)
        self._delimiter = delimiter
        self._records = RecordReader(file, delimiter)
        self._header: tuple[bytes, int] | None = None
        self._rows: RecordRows | None = None

    def cut(self) -> CsvRecords | None:
        if self._header is None:
            self._begin()
        return self._records.read()

    def rows(self, records: CsvRecords) -> Parsed:
        if records.unclosed is not None:
            return self._no_rows([(0, records.unclosed)])
        if not len(records.filled()):  # a shard without rows may have any header
            return self._no_rows([])
        if self._rows is None:
            if (bad := self._all_bad(records)) is not None:
                return bad
            self._rows = self._under_header()
        return self._rows.parse(records)

    def _no_rows(self, errors: list[tuple[int, str]]) -> Parsed:
        return Parsed(block_of([], self._wanted.schema), np.empty(0, dtype=np.int64), errors)

    def _begin(self) -> None:
        self._header = self._records.header() or (b"", 0)
        if any(self.at):
            self._records.seek(self.at[0])
        else:
            self.at: Position = (self._records.offset, self._header[1])

    def _all_bad(self, records: CsvRecords) -> Parsed | None:
        """Why each record is bad, where no row was good enough to tell what the columns are."""
        assert self._header is not None
        if self._wanted.schema.names or not self._wanted.closed:
            return None
        with suppress(DataError):
            names = _names(self._header[0], self._delimiter)
            texts = pa.schema([(name, pa.string()) for name in names])
            found = RecordRows(names, texts, self._delimiter, on_error=self._wanted.on_error).parse(records)
            if not len(found.records):
                return self._no_rows(found.errors)
        return None

    def _under_header(self) -> RecordRows:
        assert self._header is not None
        text, lines = self._header
        schema = self._wanted.schema
        try:
            names = _names(text, self._delimiter)
            if lacking := [name for name in schema.names if name not in names]:
                raise DataError(_lacking(lacking[0], names))
            if self._wanted.closed and (unknown := [name for name in names if name not in schema.names]):
                raise DataError(
                    f"column {unknown[0]!r} of the header is not in the schema ({', '.join(schema.names)}). Without schema=, the "
                    f"first {SAMPLE_ROWS:,} rows decide it; {UNKNOWN}"
                )
        except DataError as error:
            before = lines - max(1, text.count(b"\n"))
            raise DataError(f"{self.place(before)}: {error}") from error
        return RecordRows(names, schema, self._delimiter, self._wanted.inferred, self._wanted.on_error)


@dataclass(frozen=True)
class RecordRows:
    """Parses records under a header to one schema, whose columns are all in it.

    What a record gives does not depend on the records around it: it is Arrow that reads it in any case.

    Args:
        inferred: whether the types are those of the first rows.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    delimiter: str
    inferred: bool = False
    on_error: OnError = "skip"

    def parse(self, records: CsvRecords) -> Parsed:
        """Never raises for what a record holds, but says which gave no row."""
        filled = records.filled()
        if self.schema.names:
            with suppress(*_REFUSED):
                return Parsed(self._block(records.data, len(filled)), filled, [])
        every = records.split()
        return self.parsed({number: every[number] for number in filled.tolist()})

    def parsed(self, texts: dict[int, bytes]) -> Parsed:
        """As `parse`, of the records by their numbers."""
        return halved(texts, self.schema, self._joined, _REFUSED, self._reason, self._miscounted, self.on_error)

    def _joined(self, texts: Sequence[bytes]) -> Block:
        return self._block(b"".join(texts), len(texts))

    def _block(self, data: bytes, rows: int) -> Block:
        """The rows of so many records.

        Raises:
            Exception: one of _REFUSED, where one is bad.
        """
        if not rows:
            return block_of([], self.schema)
        table = self.read(data)
        if table.num_rows != rows or self._odd(data) or self._beyond(table, data):
            raise ValueError("a record is several rows, or has a number that Arrow would change")
        if any(not field.nullable and table.column(field.name).null_count for field in self.schema):
            raise ValueError("a column is null that may not be")
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else block_of([], self.schema)

    def read(self, data: bytes) -> pa.Table:
        wanted = self.schema.names or self.names[:1]  # Arrow takes none for all
        types = {field.name: field.type for field in self.schema}
        return _read(data, self.names, wanted, types, self.delimiter, words_only=self.inferred)

    def _odd(self, data: bytes) -> bool:
        """Whether a number is written as those that are text where types are inferred, or as none that a schema asks for."""
        numbers = [field.name for field in self.schema if _is_number(field.type)]
        if not numbers or not _may_be_odd(data, self.delimiter):
            return False
        texts = _read(data, self.names, numbers, dict.fromkeys(numbers, pa.string()), self.delimiter)
        return any(_any_match(column, _NO_NUMBER if self.inferred else _HEXADECIMAL) for column in texts.columns)

    def _beyond(self, table: pa.Table, data: bytes) -> bool:
        """Whether Arrow made a number infinite, or rounded an integer, as it does without a word."""
        floats = [field for field in self.schema if pa.types.is_floating(field.type)]
        odd = [field for field in floats if may_be_rounded(table.column(field.name).combine_chunks())]
        if not odd:
            return False
        texts = _read(
            data, self.names, [field.name for field in odd], {field.name: pa.string() for field in odd}, self.delimiter
        )
        return any(_changed(table.column(field.name), texts.column(field.name)) for field in odd)

    def _miscounted(self, number: int, text: bytes) -> str | None:
        """Why a record has too few or too many fields, the most frequent fault; None where it has as many as the header."""
        count = len(fields(text, self.delimiter))
        if count == len(self.names):
            return None
        return (
            f"{count:,} field{'s' * (count != 1)} under a header of {len(self.names):,} ({', '.join(self.names)}); "
            "quote fields that hold a delimiter"
        )

    def _reason(self, text: bytes) -> str:
        """Why a record alone is refused."""
        values = fields(text, self.delimiter)
        for field in self.schema:
            value = values[self.names.index(field.name)]
            alone = RecordRows((field.name,), pa.schema([field]), self.delimiter, self.inferred)
            try:
                alone._block(b'"' + value.replace(b'"', b'""') + b'"', 1)
            except _REFUSED:
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
        return f"column {field.name!r} is null here, which the schema does not allow"
    shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
    return f"column {field.name!r} is {named(field.type)} by the schema but {shown} here; {OF_FILES}"


def _read(
    data: bytes,
    names: Sequence[str],
    wanted: Sequence[str],
    types: dict[str, pa.DataType],
    delimiter: str,
    words_only: bool = False,
) -> pa.Table:
    """Columns of the wanted names; `words_only`: 0 and 1 are no bools."""
    data = b"\n" + data  # at the beginning Arrow would take a byte order mark off a row
    read = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    bools = {"true_values": _TRUE, "false_values": _FALSE} if words_only else {}
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(wanted), null_values=NULLS, **bools)
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


def _records(
    reader: RecordReader, names: tuple[str, ...], columns: Sequence[str] | None, delimiter: str
) -> Iterator[bytes | None]:
    """The records, and None for those that are bad whatever their types."""
    wanted = [name for name in columns or names if name in names]
    rows = RecordRows(names, pa.schema([(name, pa.string()) for name in wanted]), delimiter)
    with suppress(DataError):
        while (records := reader.read()) is not None:
            if records.unclosed is not None:
                yield None
                continue
            every, filled = records.split(), records.filled().tolist()
            for first in range(0, len(filled), BAD_RECORDS):  # which may be the end of it
                texts = {number: every[number] for number in filled[first : first + BAD_RECORDS]}
                good = set(rows.parsed(texts).records.tolist())
                yield from (text if number in good else None for number, text in texts.items())


def _inferred(texts: Sequence[bytes], names: Sequence[str], wanted: Sequence[str], delimiter: str) -> pa.Schema:
    data = b"".join(texts)
    seen = _read(data, names, wanted, {}, delimiter, words_only=True).schema
    as_text = _read(data, names, wanted, dict.fromkeys(wanted, pa.string()), delimiter)
    return pa.schema([(name, _type(seen.field(name).type, as_text.column(name))) for name in wanted])


def _type(seen: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """The type that Arrow saw in a column; text where that type would change a value."""
    odd = []
    if _is_number(seen):
        odd = [_NO_NUMBER, *[_TOO_LONG] * pa.types.is_floating(seen)]
    changes = any(_any_match(texts, pattern) for pattern in odd)
    return pa.string() if changes or pa.types.is_null(seen) else seen
