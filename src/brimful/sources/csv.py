"""CSV and TSV to rows: records are cut here, exactly as Arrow would cut them, and parsed by Arrow, a buffer of them at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.schema import OF_FILES, SAMPLE_ROWS, UNKNOWN, block_of, may_be_rounded, named
from brimful.core.errors import DataError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format
from brimful.sources.halved import halved
from brimful.sources.reader import Parsed, Reader, Wanted
from brimful.sources.records import RecordReader, Records, fields

NULLS: Final = ("", "NA", "N/A", "null", "NULL")
"""Of every type but text. (Arrow's own list has more; "nan" is a number.)"""
_NO_NUMBER: Final = r"^\s*(\+|-?0[0-9xX])"
"""Reads as a number, and was none to whoever wrote it: +49, 007, 0x1f."""
_INTEGER: Final = r"^-?[0-9]+$"
_TOO_LONG: Final = r"^\s*-?[0-9]{16,}\s*$"
"""Digits of which a float would drop some."""
_SHOWN: Final = 40
_REFUSED: Final = (pa.ArrowException, ValueError, OverflowError)


class Delimited(Format):
    """Abstract: records of fields between delimiters, after RFC 4180; the first record is the header.

    A field that begins with a quote goes on to the next quote that is not doubled, over newlines too; other quotes are text.
    LF, CRLF and CR end records. A byte order mark and blank lines are passed over. Columns are told by name, in any order.

    Types that are not given are those that Arrow sees in the first 1,000 good rows; but text where a number has leading zeros or
    a plus, or more digits than it can hold, and where there are nulls alone. An empty field is null, and so are NA, N/A, null
    and NULL; in text they are what they are.

    Price: that of Arrow and half of it, 100 to 300 MB/s; half as fast where quotes stand inside of fields. A resume reads the
    header, then goes to its byte (a compressed shard is decompressed up to there). A record of several lines may hold 16 MB.
    """

    delimiter: ClassVar[str]
    unit = "line"
    schema = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None and schema.names:
            try:
                _read(
                    b",".join([b'""'] * len(schema)),
                    schema.names,
                    schema.names,
                    dict(zip(schema.names, schema.types)),
                    ",",
                )
            except NotImplementedError as error:
                raise ValueError(f"schema= has a type that text cannot give: {error} ({url})") from error

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
        reader = RecordReader(file, self.delimiter)
        try:
            header = reader.header()
            names = _names(header[0], self.delimiter) if header is not None else ()
        except DataError:  # which is one again when the shard is read
            names = ()
        if not names:
            return None
        texts = list(islice(_good(reader, names, columns, self.delimiter), SAMPLE_ROWS))
        if not texts:
            return None
        if lacking := [name for name in columns or () if name not in names]:
            raise DataError(f"{where}: {_lacking(lacking[0], names)}")
        return _inferred(texts, names, columns or names, self.delimiter)

    def open(self, file: Bytes, wanted: Wanted) -> Reader:
        return DelimitedReader(file, wanted, self.delimiter)


@final
class Csv(Delimited):
    """Between commas."""

    name = "csv"
    extensions = (".csv",)
    delimiter = ","


@final
class Tsv(Delimited):
    """Between tabs; with quotes, as in CSV."""

    name = "tsv"
    extensions = (".tsv",)
    delimiter = "\t"


class DelimitedReader(Reader):
    """The rows of one shard. Position: [byte, line]."""

    unit = "line"

    def __init__(self, file: Bytes, wanted: Wanted, delimiter: str) -> None:
        super().__init__(wanted)
        self._wanted, self._delimiter = wanted, delimiter
        self._records = RecordReader(file, delimiter)
        self._header: tuple[bytes, int] | None = None
        self._rows: RecordRows | None = None

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        try:
            if self._header is None:
                self._begin()
            records = self._records.read()
        except Exception as error:
            raise self.located(error) from error.__cause__ or error
        if records is None:
            return None
        positions = np.column_stack((records.offset + records.ends, self.at[-1] + np.cumsum(records.num_lines())))
        if records.unclosed is not None:
            return Parsed(block_of([], self._wanted.schema), NO_RECORDS, [(0, records.unclosed)]), positions
        if not len(records.filled()):  # a shard without rows may have any header
            return Parsed(block_of([], self._wanted.schema), NO_RECORDS, []), positions
        if self._rows is None:
            if (bad := self._all_bad(records)) is not None:
                return bad, positions
            self._rows = self._under_header()
        return self._rows.parse(records), positions

    def close(self) -> None:
        self._records.close()

    def _begin(self) -> None:
        self._header = self._records.header() or (b"", 0)
        if any(self.at):
            self._records.seek(self.at[0])
        else:
            self.at = (self._records.offset, self._header[1])

    def _all_bad(self, records: Records) -> Parsed | None:
        """Why each record is bad, where no row was good enough to tell what the columns are."""
        assert self._header is not None
        if self._wanted.schema.names or not self._wanted.closed:
            return None
        with suppress(DataError):
            names = _names(self._header[0], self._delimiter)
            texts = pa.schema([(name, pa.string()) for name in names])
            found = RecordRows(names, texts, self._delimiter).parse(records)
            if not len(found.records):
                return Parsed(block_of([], self._wanted.schema), NO_RECORDS, found.errors)
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
                    f"column {unknown[0]!r} of the header is not in the schema ({', '.join(schema.names)}), which the "
                    f"first {SAMPLE_ROWS:,} rows decide where none is given; {UNKNOWN}"
                )
        except DataError as error:
            before = lines - max(1, text.count(b"\n"))
            raise DataError(f"{self.place(before)}: {error}") from error
        return RecordRows(names, schema, self._delimiter)


NO_RECORDS: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class RecordRows:
    """Parses records under a header to one schema, whose columns are all in it.

    What a record gives does not depend on the records around it: it is Arrow that reads it in any case.
    """

    names: tuple[str, ...]
    schema: pa.Schema
    delimiter: str

    def parse(self, records: Records) -> Parsed:
        """Never raises for what a record holds, but says which gave no row."""
        filled = records.filled()
        block = self._block(records.data, len(filled)) if self.schema.names else None
        if block is not None:
            return Parsed(block, filled, [])
        every = records.split()
        texts = {number: every[number] for number in filled.tolist()}
        errors = {number: why for number, text in texts.items() if (why := self._miscounted(text))}  # the most frequent
        return halved(texts, self.schema, self._joined, self._reason, errors)

    def _joined(self, texts: Sequence[bytes]) -> Block | None:
        return self._block(b"".join(texts), len(texts))

    def _block(self, data: bytes, rows: int) -> Block | None:
        """The rows of so many records; None where one is bad."""
        if not rows:
            return block_of([], self.schema)
        try:
            table = self._read(data)
        except _REFUSED:
            return None
        if table.num_rows != rows or self._beyond(table, data):
            return None
        if any(not field.nullable and table.column(field.name).null_count for field in self.schema):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else block_of([], self.schema)

    def _read(self, data: bytes) -> pa.Table:
        wanted = self.schema.names or self.names[:1]  # Arrow takes none for all
        return _read(data, self.names, wanted, {field.name: field.type for field in self.schema}, self.delimiter)

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

    def _miscounted(self, text: bytes) -> str | None:
        """What is wrong with how many fields a record has, if something is."""
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
            alone = RecordRows((field.name,), pa.schema([field]), self.delimiter)
            if alone._block(b'"' + value.replace(b'"', b'""') + b'"', 1) is None:
                return _unfit(field, value)
        return "Arrow does not take this record"


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
    data: bytes, names: Sequence[str], wanted: Sequence[str], types: dict[str, pa.DataType], delimiter: str
) -> pa.Table:
    data = b"\n" + data  # at the beginning Arrow would take a byte order mark off a row
    read = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(wanted), null_values=NULLS)
    return pa.csv.read_csv(io.BytesIO(data), read_options=read, parse_options=parse, convert_options=convert)


def _names(header: bytes, delimiter: str) -> tuple[str, ...]:
    """The names of the columns.

    Raises:
        DataError: one occurs twice; or they are no UTF-8.
    """
    try:
        names = tuple(name.decode() for name in fields(header, delimiter))
    except UnicodeDecodeError as error:
        raise DataError(f"the header is no UTF-8: byte 0x{error.object[error.start]:02x} in a name") from error
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise DataError(f"the header names {twice[0]!r} twice ({', '.join(names)}); rename one of them")
    return names


def _lacking(name: str, names: Sequence[str]) -> str:
    return f"there is no column {name!r} in the header ({', '.join(names)}); correct columns= or schema=, or the header"


# -- the types of first rows ---------------------------------------------------------------------------------------------


def _good(
    reader: RecordReader, names: tuple[str, ...], columns: Sequence[str] | None, delimiter: str
) -> Iterator[bytes]:
    """The records that are not bad, whatever their types."""
    wanted = [name for name in columns or names if name in names]
    rows = RecordRows(names, pa.schema([(name, pa.string()) for name in wanted]), delimiter)
    with suppress(DataError):
        while (records := reader.read()) is not None:
            if records.unclosed is None:
                texts = records.split()
                yield from (texts[number] for number in rows.parse(records).records.tolist())


def _inferred(texts: Sequence[bytes], names: Sequence[str], wanted: Sequence[str], delimiter: str) -> pa.Schema:
    data = b"".join(texts)
    seen = _read(data, names, wanted, {}, delimiter).schema
    as_text = _read(data, names, wanted, dict.fromkeys(wanted, pa.string()), delimiter)
    return pa.schema([(name, _type(seen.field(name).type, as_text.column(name))) for name in wanted])


def _type(seen: pa.DataType, texts: pa.ChunkedArray) -> pa.DataType:
    """What Arrow saw in a column, or text where that would change what it says."""
    odd = []
    if pa.types.is_integer(seen) or pa.types.is_floating(seen):
        odd = [_NO_NUMBER, *[_TOO_LONG] * pa.types.is_floating(seen)]
    changes = any(pc.any(pc.match_substring_regex(texts, pattern)).as_py() for pattern in odd)
    return pa.string() if changes or pa.types.is_null(seen) else seen
