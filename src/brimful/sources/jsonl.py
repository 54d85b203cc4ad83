"""JSON lines to rows: Arrow parses whole buffers; one that it refuses is halved until the bad lines stand alone."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, Final, final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Errors, Format, Parsed, ReadRequest, RecordParser, ShardReader, good_rows, in_order
from brimful.sources.forward import ForwardReader, Records, joined, lines_of, split
from brimful.tables.blocks import Block, Sample
from brimful.tables.objects import JSON, has_objects, is_json
from brimful.tables.ragged import any_part, array_of, is_list
from brimful.tables.schema import SAMPLE_ROWS, conform_rows, has_floats, infer, misfit, rows_rounded, unknown_key

_SPACE: Final = b" \t\r\n"
_LONG: Final = re.compile(rb"(?<![\d.])\d{8,}(?![\d.eE])")
"""Shorter integers are exact in all floats that JSON gives."""
_NULL: Final = b"null"
_TEXTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes lines to the texts of their values."""
_UNREAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_DIGITS: Final = 4_300
_HUGE: Final = re.compile(rb"\d{%d}" % _DIGITS)
"""Python reads no longer integers."""


@final
class Jsonl(Format):
    """Lines of JSON: each an object, or blank. Columns whose values are objects, or hold some, stay JSON."""

    name = "jsonl"
    extensions: tuple[str, ...] = (".jsonl", ".ndjson")
    unit = "line"

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None:
            JsonLines(schema, closed=True)  # has types that JSON can give, or says so

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        rows = good_rows(_rows(file), SAMPLE_ROWS, on_error)
        return types_of_lines(rows, columns, where) if rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        rows = JsonLines(request.schema, request.closed, request.on_error)
        return ForwardReader(file, request, lines_of(file, request.at[0]), rows.parse)


def types_of_lines(rows: Sequence[Sample], columns: tuple[str, ...] | None, where: str) -> pa.Schema:
    """The schema of first rows: a column with an object is JSON, whatever else stands in it (NaN too).

    Raises:
        DataError: one of `columns` never occurs.
    """
    schema = infer(rows, columns, where)
    of_json = [field for field in schema if has_objects(row.get(field.name) for row in rows)]
    return pa.schema([field.with_type(JSON) if field in of_json else field for field in schema])


def _rows(file: Bytes) -> Iterator[Sample | None]:
    with suppress(DataError):
        for lines in lines_of(file, 0):
            for line in split(lines.data, lines.ends):
                if line.strip():
                    try:
                        yield decode(line)
                    except DataError:
                        yield None


class _RoundedError(ValueError):
    """An integer would be rounded to a float; why, in words."""


@dataclass(frozen=True)
class JsonLines(RecordParser[bytes]):
    """Parses lines to one schema; `closed`: a key that is not in it is an error, else it is left out.

    Arrow reads each line, but for columns of JSON: of these msgspec cuts the text out. What either refuses and Python's own json
    takes (half a surrogate pair, NaN) is read by that.
    """

    schema: pa.Schema
    closed: bool
    on_error: OnError = "skip"
    refused: ClassVar[Errors] = (*RecordParser.refused, RecursionError)

    def __post_init__(self) -> None:
        try:
            with suppress(pa.ArrowInvalid):  # a column that must not be null
                self._read(b"{}", 1)
        except NotImplementedError as error:
            raise ValueError(f"schema= has a type that JSON lines cannot give: {error}") from error

    def parse(self, lines: Records[bytes]) -> Parsed:
        filled, whole = _objects(lines)
        if not self._may_lose_keys:
            with suppress(*self.refused):
                if whole.all():
                    return self._parsed(lines, filled)
            with suppress(*self.refused):
                odd = self._refused(lines, filled, whole)
                sure = self._parsed(lines, np.setdiff1d(filled, [*odd], assume_unique=True))
                return in_order(sure, self.rows(odd))
        every = enumerate(split(lines.data, lines.ends))
        return self.rows({number: text for number, line in every if (text := line.strip(_SPACE))})

    def _refused(self, lines: Records[bytes], filled: NDArray[np.int64], whole: NDArray[np.bool_]) -> dict[int, bytes]:
        """The lines that are no objects, or of which msgspec says that they do not fit the schema."""
        found: dict[int, bytes] = {}
        every, decode = split(lines.data, lines.ends), self._checked.decode
        for number, good in zip(filled.tolist(), whole.tolist()):
            try:
                if good:
                    decode(every[number])
                    continue
            except _UNREAD:
                pass
            if text := every[number].strip(_SPACE):
                found[number] = text
        return found

    def _parsed(self, lines: Records[bytes], numbers: NDArray[np.int64]) -> Parsed:
        """The rows of some lines, each between { and }, without those whose integers would be rounded."""
        starts = np.append(0, lines.ends)

        def texts(rows: NDArray[np.int64]) -> list[bytes]:
            some = numbers[rows]
            bounds = zip(starts[some].tolist(), lines.ends[some].tolist())
            return [lines.data[start:end] for start, end in bounds]

        block = self._block(joined(lines.data, lines.ends, numbers), len(numbers))
        if not (rounded := self._rounded(block, texts)):
            return Parsed(block, numbers, [])
        good = np.delete(np.arange(len(numbers)), [*rounded])
        errors = [*zip(numbers[[*rounded]].tolist(), rounded.values())]
        return Parsed(block.take(array_of(good)), numbers[good], errors)

    def block(self, records: Sequence[bytes]) -> Block:
        if not all(text.startswith(b"{") and text.endswith(b"}") for text in records):
            raise ValueError("a line is no object")
        try:
            block = self._block(b"\n".join(records), len(records))
        except self.refused:
            others = len(records) > 1 and not (self._objects and all(map(_is_unread, records)))
            if others or (self.closed and not self._objects):
                raise
        else:
            for why in self._rounded(block, lambda rows: [records[row] for row in rows.tolist()]).values():
                raise _RoundedError(why)
            return block
        rows = [*map(decode, records)]
        if self.closed and not all(map(frozenset(self.schema.names).issuperset, rows)):
            raise ValueError("a key is not in the schema")
        typed = conform_rows(rows, self._typed, extra="drop")
        return self._joined(typed, [[_dumped(row.get(name)) for row in rows] for name in self._objects])

    def doubtful(self, records: Mapping[int, bytes]) -> Mapping[int, str | None]:
        found: dict[int, str | None] = {}
        for number, record in records.items():
            try:
                self._checked.decode(record)
            except _UNREAD:
                found[number] = self._seen(record) if self._is_simple else None
                if found[number] is not None and self.on_error == "raise":
                    break
        return found

    def _block(self, data: bytes, rows: int) -> Block:
        """The rows of lines that each begin with { and end with }.

        Inside of an object no { follows a }, so that each line ends between two objects; as many objects as lines are then
        one a line. (Of a line `null`, to Arrow a row of nulls, or a crash, nothing comes here.)

        Raises:
            Exception: one of `refused`, where they are not one object each.
        """
        if not rows:
            return conform_rows([], self.schema)
        if not self._objects:
            return self._read(data, rows)
        lines = _TEXTS.decode_lines(data)
        if len(lines) != rows:
            raise ValueError("a line holds several objects")
        if self.closed and not all(map(frozenset(self.schema.names).issuperset, lines)):
            raise ValueError("a key is not in the schema")
        typed = self._read(data, rows) if self._typed.names else None
        return self._joined(typed, [[_text(line.get(name)) for line in lines] for name in self._objects])

    def _joined(self, typed: Block | None, texts: Sequence[Sequence[bytes | None]]) -> Block:
        """The columns of a schema: typed ones, and those of JSON by their texts."""
        columns = {} if typed is None else dict(zip(typed.schema.names, typed.columns))
        for name, column in zip(self._objects, texts):
            if any(text is not None and len(text) > _DIGITS and _HUGE.search(text) for text in column):
                raise ValueError("an integer has more digits than Python reads")
            text = pa.array(column, pa.binary()).cast(
                self.schema.field(name).type.storage_type
            )  # refuses what is no UTF-8
            columns[name] = pa.ExtensionArray.from_storage(self.schema.field(name).type, text)
        made = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        if any(made.column(name).null_count and not self.schema.field(name).nullable for name in self._objects):
            raise ValueError("a value is null")
        return made

    def _read(self, data: bytes, rows: int) -> Block:
        """The columns that Arrow reads."""
        read = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        unknown = "error" if self.closed and not self._objects else "ignore"
        parse = pa.json.ParseOptions(explicit_schema=self._typed, unexpected_field_behavior=unknown)
        # Arrow's own pool keeps what each thread has used: of 64 streams, 1 GB more. No slower by the system's.
        pool = pa.system_memory_pool()
        table = pa.json.read_json(io.BytesIO(data), read_options=read, parse_options=parse, memory_pool=pool)
        table.validate(full=True)  # UTF-8
        if table.num_rows != rows:
            raise ValueError("a line holds several objects")
        return table.combine_chunks().to_batches()[0]

    def reason(self, record: bytes, error: Exception | None = None) -> str:
        if isinstance(error, _RoundedError):
            return str(error)
        if (seen := self._seen(record)) is not None:
            return seen
        try:
            self._read(record, 1)
        except self.refused as refused:
            return str(refused).removesuffix(" in row 0")
        return "invalid JSON"

    def _seen(self, record: bytes) -> str | None:
        """Why a line is bad, by Python's own json; None where it finds nothing."""
        try:
            row = decode(record)
        except DataError as error:
            return str(error)
        row |= {name: "" for name in self._objects if row.get(name) is not None}  # which may be anything
        found = misfit(row, self.schema, "raise" if self.closed else "drop")
        return None if found is None else found.told()

    @cached_property
    def _is_simple(self) -> bool:
        """Whether a value fits a type for Arrow's JSON wherever it does in Python: a text may be a time for the former."""
        tests = (*(test for test, _ in _PYTHON_TYPES), pa.types.is_null, pa.types.is_list, is_json)
        return not any(any_part(kind, lambda part: not any(test(part) for test in tests)) for kind in self.schema.types)

    @cached_property
    def _may_lose_keys(self) -> bool:
        """Whether keys may be left out of objects inside of columns too, where Arrow leaves out what it does not know."""
        return not self.closed and any(any_part(kind, pa.types.is_struct) for kind in self.schema.types)

    def known(self, record: bytes) -> str | None:
        """Why a line is bad that is no object, or of which Arrow would leave out a key without a word: only where it may."""
        if not self._may_lose_keys:
            return None
        if not (record.startswith(b"{") and record.endswith(b"}")):
            return self.reason(record)
        with suppress(DataError):
            row = decode(record)
            lost = (unknown_key(one.name, row.get(one.name), one.type) for one in self.schema)
            error = next(filter(None, lost), None)
            return error.told() if error else None
        return None

    def _rounded(self, block: Block, lines: Callable[[NDArray[np.int64]], list[bytes]]) -> dict[int, str]:
        """The rows that have an integer that was rounded to a float, and why that is bad. `lines`: those of some rows."""
        rows = rows_rounded(block.select(self._floats.names))
        if not len(rows):
            return {}
        some = lines(rows)
        with suppress(msgspec.MsgspecError, RecursionError):
            found = self._float_texts.decode_lines(b"\n".join(some))
            texts = [*map(msgspec.structs.astuple, found)]
            if len(found) == len(some):
                if not _LONG.search(b",".join(text for one in texts for text in one if text is not None)):
                    return {}
                may_be = [any(map(_LONG.search, filter(None, one))) for one in texts]  # for other faults Arrow is asked
                rows, some = rows[may_be], [*compress(some, may_be)]
        misfits = (misfit(decode(one), self._floats, "drop") for one in some)
        return {row: error.told() for row, error in zip(rows.tolist(), misfits) if error}

    @cached_property
    def _float_texts(self) -> msgspec.json.Decoder[Any]:
        """Decodes lines to the texts of their floats, as they are written."""
        try:
            return msgspec.json.Decoder(_record(dict.fromkeys(self._floats.names, msgspec.Raw), False))
        except ValueError:  # a name with quotes
            return msgspec.json.Decoder(_record({}, True))

    @cached_property
    def _floats(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if has_floats(field.type)])

    @cached_property
    def _objects(self) -> list[str]:
        """The columns of JSON."""
        return [field.name for field in self.schema if is_json(field.type)]

    @cached_property
    def _typed(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if not is_json(field.type)])

    @cached_property
    def _checked(self) -> msgspec.json.Decoder[Any]:
        """Decodes lines as near to the schema as msgspec can say it; it takes no names with quotes."""
        kinds = {field.name: _python_type(field.type) for field in self.schema}
        try:
            return msgspec.json.Decoder(_record(kinds, self.closed))
        except ValueError:
            return _TEXTS


def _record(kinds: Mapping[str, Any], closed: bool) -> type[msgspec.Struct]:
    """A line's values by their types; None where a key is absent."""
    fields = [(f"c{number}", _or_null(kind), None) for number, kind in enumerate(kinds.values())]
    names = {f"c{number}": name for number, name in enumerate(kinds)}
    return msgspec.defstruct("Line", fields, rename=names, forbid_unknown_fields=closed, gc=False)


def _python_type(kind: pa.DataType) -> Any:
    for test, own in _PYTHON_TYPES:
        if test(kind):
            return own
    return list[_or_null(_python_type(kind.value_type))] if is_list(kind) else msgspec.Raw  # type: ignore[misc]


def _or_null(kind: Any) -> Any:
    return kind if kind is msgspec.Raw else kind | None  # which is anything


_PYTHON_TYPES: Final = (
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_string, str),
)


def _text(raw: msgspec.Raw | None) -> bytes | None:
    text = _NULL if raw is None else bytes(raw)
    return None if text == _NULL else text


def _dumped(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value).encode()


def _objects(lines: Records[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers of the lines that are not blank, and which of these begin with { and end with }."""
    data = np.frombuffer(lines.data, dtype=np.uint8)
    first = np.concatenate((np.zeros(1, np.int64), lines.ends[:-1]))
    last = lines.ends - 1
    last -= data[last] == ord("\n")
    last -= (last >= first) & (data[last] == ord("\r"))
    filled = np.flatnonzero(last >= first)
    return filled, (data[first[filled]] == ord("{")) & (data[last[filled]] == ord("}"))


def _is_unread(line: bytes) -> bool:
    """Whether msgspec reads a line by no types."""
    with suppress(*_UNREAD):
        _TEXTS.decode(line)
        return False
    return True


def decode(line: bytes) -> Sample:
    """One line as a dict.

    Raises:
        DataError: where it is no UTF-8, no JSON or no object; the message says what and at which byte or column.
    """
    try:
        row: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,} of the line") from error
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg.removesuffix(' at')} at column {error.colno:,}") from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply") from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise DataError(f"invalid JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"a line must hold an object (got {type(row).__name__})")
    try:
        "".join(row).encode()
    except UnicodeEncodeError as error:
        raise DataError("a key has half a surrogate pair, and can be no name of a column") from error
    return row
