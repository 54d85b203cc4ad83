"""The columns of a source: inferred from its first rows, and held against each row after them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from brimful.errors import DataError
from brimful.rows import Block, Sample

SAMPLE_ROWS: Final = 1000
_REMEDY: Final = "give schema=, or convert it when the shard is written"
_UNFIT: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)


def infer(rows: Sequence[Sample], columns: tuple[str, ...] | None, where: str) -> pa.Schema:
    """The schema of the first rows: every key that occurs in them (or `columns`), numbers widened.

    A value that goes with none before it does not count: who reads its row finds that it does not fit.

    Raises:
        DataError: one of `columns` never occurs.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns or ():
        if rows and name not in names:
            raise DataError(
                f"there is no column {name!r} in the first {len(rows):,} rows ({where}; "
                f"keys: {', '.join(names)}); correct columns=, or give schema="
            )
    return pa.schema([(name, _common([row.get(name) for row in rows])) for name in columns or names])


def _common(values: list[Any]) -> pa.DataType:
    try:
        return pa.array(values).type
    except _UNFIT:
        kinds = pa.schema([("", pa.null())])
        for value in values:
            with suppress(*_UNFIT):
                one = pa.schema([("", pa.array([value]).type)])
                kinds = pa.unify_schemas([kinds, one], promote_options="permissive")
        return kinds.field(0).type


def misfit(row: Sample, schema: pa.Schema, closed: bool) -> str | None:
    """Why a row does not fit a schema, if it does not; `closed`: it may have no other keys."""
    if closed and (unknown := next((name for name in row if name not in schema.names), None)):
        return (
            f"key {unknown!r} is not in the schema ({', '.join(schema.names)}), which the first {SAMPLE_ROWS:,} rows "
            "decide where none is given; give schema=, or columns= to leave it out"
        )
    for field in schema:
        value = row.get(field.name)
        if message := unknown_key(field.name, value, field.type) or _unfit(field.name, value, field.type):
            return message
    return None


def unknown_key(name: str, value: Any, kind: pa.DataType) -> str | None:
    """A key inside of a value that its column's type does not know and would drop."""
    if pa.types.is_list(kind) and isinstance(value, list) and pa.types.is_nested(kind.value_type):
        return next(filter(None, (unknown_key(f"{name}[]", inner, kind.value_type) for inner in value)), None)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for key, inner in value.items():
            if kind.get_field_index(key) < 0:
                return f"key {key!r} of column {name!r} is not in the schema ({kind}); give schema="
            if message := unknown_key(f"{name}.{key}", inner, kind.field(key).type):
                return message
    return None


def _unfit(name: str, value: Any, kind: pa.DataType) -> str | None:
    try:
        own = pa.array([value]).type
        fits = own == kind or (len(pa.array([value], kind)) == 1 and not _cuts(own, kind))
    except _UNFIT:
        fits = False
    return None if fits else f"column {name!r} is {kind} by the schema but {_type_of(value)} here; {_REMEDY}"


def _cuts(own: pa.DataType, kind: pa.DataType) -> bool:
    """Whether floats would become integers, which Arrow does without a word."""
    if pa.types.is_integer(kind):
        return bool(pa.types.is_floating(own))
    if pa.types.is_list(kind) and pa.types.is_list(own):
        return _cuts(own.value_type, kind.value_type)
    if pa.types.is_struct(kind) and pa.types.is_struct(own):
        return any(_cuts(field.type, kind.field(field.name).type) for field in own)
    return False


def _type_of(value: Any) -> str:
    try:
        return str(pa.array([value]).type)
    except _UNFIT:
        return f"{type(value).__name__} that no column can hold"


def block_of(rows: Sequence[Sample], schema: pa.Schema) -> Block:
    """Rows that fit a schema as a block of it."""
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
