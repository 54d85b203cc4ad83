"""JSON lines to blocks: Arrow parses whole buffers; a buffer that it refuses is read line by line, to name the line."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from brimful.errors import DataError
from brimful.rows import Block
from brimful.sources.lines import Lines

SAMPLE_ROWS = 1000


@dataclass(frozen=True)
class Parsed:
    """Rows of some lines: the block, and for each row the number of its line among them, counted from 0.

    `errors`: (line, message) of the lines that gave no row.
    """

    block: Block
    rows: NDArray[np.int64]
    errors: list[tuple[int, str]]


@dataclass(frozen=True)
class JsonLines:
    """Parses lines to one schema. `columns`: take these alone; None: any other key is an error."""

    schema: pa.Schema
    columns: tuple[str, ...] | None

    def parse(self, lines: Lines) -> Parsed:
        options = pa.json.ParseOptions(
            explicit_schema=self.schema,
            unexpected_field_behavior="error" if self.columns is None else "ignore",
        )
        read = pa.json.ReadOptions(use_threads=False, block_size=len(lines.data) + 1)
        filled = np.flatnonzero(np.diff(lines.ends, prepend=0) > _blank_sizes(lines))
        try:
            table = pa.json.read_json(io.BytesIO(lines.data), read_options=read, parse_options=options)
            table.validate(full=True)
        except (pa.ArrowException, NotImplementedError):
            return self._one_by_one(lines)
        if table.num_rows != len(filled) or not table.schema.equals(self.schema):
            return self._one_by_one(lines)
        batches = table.combine_chunks().to_batches()
        return Parsed(batches[0], filled, []) if batches else Parsed(_empty(self.schema), filled, [])

    def _one_by_one(self, lines: Lines) -> Parsed:
        rows, numbers, errors = [], [], []
        for number, line in enumerate(lines.split()):
            if line.strip():
                try:
                    rows.append(self._row(decode(line)))
                    numbers.append(number)
                except ValueError as error:
                    errors.append((number, str(error)))
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in self.schema]
        block = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return Parsed(block, np.array(numbers, dtype=np.int64), errors)

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        names = self.schema.names
        if self.columns is None:
            for name in row:
                if name not in names:
                    raise DataError(
                        f"key {name!r} is not in the schema ({', '.join(names)}), which the first "
                        f"{SAMPLE_ROWS:,} rows decide where none is given; give schema=, or columns= to leave it out"
                    )
        for field in self.schema:
            _check(field.name, row.get(field.name), field.type)
        return row


def _empty(schema: pa.Schema) -> Block:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _blank_sizes(lines: Lines) -> NDArray[np.int64]:
    """The size up to which a line is blank: its newline, and a carriage return before it."""
    data = np.frombuffer(lines.data, dtype=np.uint8)
    newline = data[lines.ends - 1] == 10
    before = data[np.maximum(lines.ends - 2, 0)] == 13
    sizes: NDArray[np.int64] = newline + (newline & before & (lines.ends > 1)).astype(np.int64)
    return sizes


def decode(line: bytes) -> dict[str, Any]:
    """One line as a dict.

    Raises:
        DataError: where it is no UTF-8, no JSON or no object; the message says what and at which byte or column.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,} of the line") from error
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg} at column {error.colno:,}") from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply") from error
    if not isinstance(row, dict):
        raise DataError(f"a line must hold an object (got {type(row).__name__})")
    return row


def _check(name: str, value: Any, kind: pa.DataType) -> None:
    """Refuses a value that its column's type cannot hold as it is, and keys that a struct's type would drop."""
    if value is None:
        return
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for key, inner in value.items():
            if kind.get_field_index(key) < 0:
                raise DataError(f"key {key!r} of column {name!r} is not in the schema ({kind}); give schema=")
            _check(f"{name}.{key}", inner, kind.field(key).type)
        return
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(value, list):
        if not pa.types.is_primitive(kind.value_type):
            for inner in value:
                _check(f"{name}[]", inner, kind.value_type)
            return
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        raise DataError(f"column {name!r} is {kind} by the schema but {_type_of(value)} here; {_REMEDY}") from error


_REMEDY = "give schema=, or convert it when the shard is written"


def _type_of(value: Any) -> str:
    try:
        return str(pa.array([value]).type)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return f"{type(value).__name__} that no column can hold"


def infer(rows: Sequence[dict[str, Any]], places: Sequence[str], columns: tuple[str, ...] | None) -> pa.Schema:
    """The schema of the first rows: every key that occurs in them (or `columns`), numbers widened.

    Raises:
        DataError: where a column has two types, both named; where one of `columns` never occurs.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns or ():
        if rows and name not in names:
            raise DataError(
                f"there is no column {name!r} in the first {len(rows):,} rows ({places[0]} on; "
                f"keys: {', '.join(names)}); correct columns=, or give schema="
            )
    names = names if columns is None else list(columns)
    return pa.schema([pa.field(name, _infer(name, [row.get(name) for row in rows], places)) for name in names])


def _infer(name: str, values: list[Any], places: Sequence[str]) -> pa.DataType:
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        known = [(row, _type_of(value)) for row, value in enumerate(values) if value is not None]
        row, kind = next(((row, kind) for row, kind in known if kind != known[0][1]), known[0])
        raise DataError(
            f"column {name!r} is {known[0][1]} at {places[known[0][0]]}, but {kind} at {places[row]}; {_REMEDY}"
        ) from error
