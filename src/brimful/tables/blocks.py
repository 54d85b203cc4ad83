"""Blocks of rows become samples, and samples blocks; a user's function is called on each sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.stage import BLOCK_ROWS
from brimful.plan.errors import DataError
from brimful.tables.arrays import arrays_in, kind_of
from brimful.tables.objects import is_json, values_in
from brimful.tables.origins import HIDDEN, ORIGIN, where
from brimful.tables.ragged import EMPTY, array_of, column_of, is_ragged, numpy_of, with_column
from brimful.tables.schema import UNFIT, MisfitError, as_column, conform, large, unheld, unified

Sample: TypeAlias = dict[str, Any]


Block: TypeAlias = pa.RecordBatch


KEY: Final = f"{HIDDEN}key"
"""A hidden column of random 64-bit keys, for functions that draw random numbers."""


UNIT: Final = f"{HIDDEN}unit"
"""A hidden column of integers: neighbours with equal ones are a unit (`tables/units.py`)."""


def visible(block: Block) -> Block:
    """The columns that users see."""
    names = [name for name in block.schema.names if not name.startswith(HIDDEN)]
    return block if len(names) == len(block.schema.names) else block.select(names)


OBJECT_ROWS: Final = 64
"""So many rows with objects become samples at once."""
WIDE: Final = {"uint8": "int32", "int8": "int32", "uint16": "int32", "int16": "int32", "uint32": "int64"}
"""The types in which samples have lists of integers of few bits, as a store has tokens: -100 and a difference must fit."""


def samples(block: Block) -> list[Sample]:
    """The rows of a block as dicts. Lists of numbers become numpy arrays of at least 32 bits, which the caller may change, and
    arrays of more dimensions are in their own type. JSON becomes what it says.

    >>> samples(from_samples([{"input_ids": [1, 2], "id": 7}]))
    [{'input_ids': array([1, 2]), 'id': 7}]
    """
    names = [name for name in block.schema.names if not name.startswith(HIDDEN)]
    if not names:
        return [{} for _ in range(block.num_rows)]
    columns = [_tried_values(block, name) for name in names]
    return [dict(zip(names, row)) for row in zip(*columns)]


def samples_in_turn(block: Block) -> Iterator[Sample]:
    """The same one after the other. Objects are made a few rows at a time: of thousands at once, Python's collector looks at each
    several times, which costs as much as to make them."""
    size = OBJECT_ROWS if any(map(is_json, block.schema.types)) else max(1, block.num_rows)
    for first in range(0, block.num_rows, size):
        yield from samples(block.slice(first, size))


_UNKNOWN_TO_PYTHON: Final = (OverflowError, ValueError, RecursionError)
"""A time that Python does not know, bytes that are not UTF-8, JSON that is nested too deeply."""


def _tried_values(block: Block, name: str) -> list[Any]:
    array = block.column(name)
    try:
        return _values(array)
    except _UNKNOWN_TO_PYTHON:
        for row in range(block.num_rows):
            try:
                values_in(array.slice(row, 1))
            except _UNKNOWN_TO_PYTHON as error:
                raise DataError(
                    f"column {name!r} holds what Python cannot ({where(block, row)}): {error}; leave it out (drop), or "
                    "convert it where blocks are (map_blocks)"
                ) from error
        raise


def _values(array: pa.Array) -> list[Any]:
    if isinstance(array.type, pa.FixedShapeTensorType) and not pa.types.is_boolean(array.type.value_type):
        if array.null_count:
            return [np.array(value.to_numpy()) if value.is_valid else None for value in array]
        # Arrow 26 takes other rows where the values begin at an offset
        moved = array.take(array_of(np.arange(len(array))))
        return list(np.array(moved.to_numpy_ndarray()))
    if kind_of(array.type) is not None:
        if (found := arrays_in(array)) is not None:
            return found
        if len(array) > 1:  # a row must not depend on what its neighbours lack
            return [value for row in range(len(array)) for value in _values(array.slice(row, 1))]
    if not is_ragged(array.type) or pa.types.is_fixed_size_list(array.type):
        return values_in(array)
    bounds = array.offsets.to_pylist()
    first = bounds[0]
    inner = array.values[first : bounds[-1]]
    if array.null_count or inner.null_count:  # a row must not depend on what its neighbours lack
        dtype = _wide(numpy_of(inner.drop_null()).dtype)
        return [row if row is None or None in row else np.array(row, dtype=dtype) for row in array.to_pylist()]
    flat = numpy_of(inner)
    values = flat.astype(_wide(flat.dtype))  # a copy, which the caller may change
    return [values[start - first : end - first] for start, end in pairwise(bounds)]


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(WIDE.get(dtype.name, dtype))


def as_sample(row: Any) -> Sample:
    """A row of a user's list: a dict as it is, another mapping as a dict, a string as {"text": string}, integers as
    {"input_ids": integers}.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(row, str):
        return {"text": row}
    if isinstance(row, list | tuple) and all(
        issubclass(kind, int | np.integer) and kind is not bool for kind in {*map(type, row)}
    ):
        return {"input_ids": list(row)}
    if isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind in "iu":
        return {"input_ids": row}
    row = as_dict(row)
    if not isinstance(row, dict):
        hint = "; of a tensor, its .tolist()" if hasattr(row, "tolist") and not isinstance(row, np.ndarray) else ""
        raise TypeError(f"a sample must be a dict, a string or a list of token ids (got {type(row).__name__}){hint}")
    return row


def as_dict(sample: Any) -> Any:
    """Any other mapping, such as what a tokenizer returns, as a dict."""
    return dict(sample) if not isinstance(sample, dict) and isinstance(sample, Mapping) else sample


def from_samples(rows: Sequence[Sample]) -> Block:
    """Dicts as a block. The columns stand in the order of their first appearance; absent values are null.

    Raises:
        TypeError: the values of a column have no common type, or a row is not a dict with strings as keys.
        UnheldError: no column can hold a value.
    """
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError(f"a sample must be a dict (got {type(row).__name__})")
        names.update(dict.fromkeys(row))
    if odd := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"the keys of a sample must be strings (got {odd[0]!r})")
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns.append(as_column(values))
        except UNFIT as error:
            if (failure := unheld(name, values)) is not None:
                raise failure from error
            raise TypeError(f"the values of column {name!r} have no common type: {error}") from error
    return pa.RecordBatch.from_arrays(columns, list(names))


def concat(blocks: Iterable[Block]) -> Block:
    """Blocks as one. Columns are matched by name; absent ones become null, and numbers are widened where the blocks differ.

    Raises:
        DataError: a column has two types without a common one, or a value has no equal in it; with both types and the place.
    """
    kept = [block for block in blocks if block.num_rows]
    if len(kept) <= 1:
        return kept[0] if kept else EMPTY
    with suppress(pa.ArrowInvalid):  # the blocks differ, or 32-bit offsets overflow
        return pa.concat_batches(kept)
    schema = kept[0].schema
    if all(block.schema.equals(schema) for block in kept):
        schema = pa.schema([pa.field(field.name, large(field.type)) for field in schema])
    for block in kept[1:]:
        try:
            schema = unified([schema, block.schema])
        except pa.ArrowException as error:
            raise DataError(f"a column changes its type: {error} ({where(block, 0)})") from error
    for number, block in enumerate(kept):
        try:
            kept[number] = conform(block, schema)
        except MisfitError as error:
            words = f"{error.column!r} is {error.wanted} elsewhere and {error.found} here: {error.why}"
            raise DataError(f"a column changes its type: {words} ({where(block, error.row())})") from error
    return pa.concat_batches(kept)


def rows_at(number: int) -> int:
    """The rows of the next block after `number` rows: half as many, as a power of two from 16 to 2,048.

    >>> [rows_at(number) for number in (0, 32, 64, 200, 10_000)]
    [16, 16, 32, 64, 2048]
    """
    return max(1, min(max(16, 1 << number.bit_length() >> 2), BLOCK_ROWS // 2))


def with_origin(out: Block, block: Block, parents: NDArray[np.int64]) -> Block:
    """`out` with the origins, and the units, of the rows `parents` of `block`."""
    for name in (ORIGIN, UNIT):
        if block.schema.get_field_index(name) >= 0 and out.num_rows:
            column = column_of(block, name)
            same = len(parents) == len(column) and bool((parents[1:] > parents[:-1]).all())
            out = with_column(out, name, column if same else column.take(array_of(parents)))
    return out


def begins(block: Block) -> str:
    """Where the first row of a block comes from, in brackets; "" where nobody knows."""
    index = block.schema.get_field_index(ORIGIN)
    known = block.num_rows and index >= 0 and block.column(index)[0].is_valid
    return f" (read from {where(block, 0)} on)" if known else ""
