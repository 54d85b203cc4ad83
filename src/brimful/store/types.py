"""The types of stored columns: those of the first rows; for tokens the smallest type that holds the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from brimful.core.stage import Stage
from brimful.plan.errors import DataError
from brimful.tables.blocks import Block, visible
from brimful.tables.origins import where
from brimful.tables.ragged import is_ragged, list_array, null_in, numpy_of, offsets_of

_NO_CAST = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


def vocabularies(stage: Stage[Any]) -> dict[str, int]:
    """The number of token ids by column, for columns that a chain tokenizes, where the tokenizers say it."""
    found = {name: max(one.num_ids for one in made) for name, made in stage.tokenizers().items()}
    return {name: size for name, size in found.items() if size}


def stored_schema(block: Block, num_ids: Mapping[str, int]) -> pa.Schema:
    """The columns of a store that begins with these rows.

    Integers keep their type. Lists that were all empty become lists of int64. Lists of numbers have 32-bit offsets.

    Args:
        num_ids: the number of token ids, for columns where it is known. They get the smallest type that holds all ids, unless
            these rows already hold other integers.
    """
    return pa.schema([(name, _stored(block.column(name), num_ids.get(name))) for name in block.schema.names])


def _stored(array: pa.Array, num_ids: int | None) -> pa.DataType:
    kind = array.type
    if pa.types.is_dictionary(kind):  # all record batches of a file would have to share a dictionary
        return kind.value_type
    if not is_ragged(kind):
        return kind
    values = pa.int64() if pa.types.is_null(kind.value_type) else kind.value_type
    if num_ids and pa.types.is_integer(values) and _castable(array.flatten(), _smallest(num_ids)):
        values = _smallest(num_ids)
    return pa.list_(values, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(values)


def _smallest(num_ids: int) -> pa.DataType:
    """The type of so many token ids, from 0 on."""
    return next((kind for kind in (pa.uint8(), pa.uint16()) if num_ids <= 1 << kind.bit_width), pa.int32())


def conform(block: Block, schema: pa.Schema, num_ids: Mapping[str, int]) -> Block:
    """A block with the columns and types of a schema; absent columns are null.

    Raises:
        DataError: the block has a column that the schema lacks, or a value that the schema's type cannot hold; with the first row
            that has such a value, and both types.
    """
    for name in visible(block).schema.names:
        if name not in schema.names:
            raise DataError(
                f"column {name!r} is new ({where(block, 0)}): the rows before have {', '.join(schema.names)}; give all rows "
                "the same columns"
            )
    columns = []
    for name, kind in zip(schema.names, schema.types):
        place = block.schema.get_field_index(name)
        array = pa.nulls(block.num_rows, kind) if place < 0 else block.column(place)
        try:
            columns.append(_cast(array, kind))
        except _NO_CAST as error:
            row = next((row for row in range(len(array)) if not _castable(array.slice(row, 1), kind)), 0)
            remedy = "cast it to one type before it is stored"
            if name in num_ids:
                remedy = f"its tokenizer has {num_ids[name]:,} ids: store other integers in a column of another name"
            raise DataError(
                f"column {name!r} is {kind} in the rows before and {array.type} here, which cannot be cast to it: {error} "
                f"({where(block, row)}); {remedy}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array in another type that means the same, without the values between its lists."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    same = array.type.equals(kind)
    if not same:  # Arrow would make a text of a number
        pa.unify_schemas([pa.schema([("", each)]) for each in (kind, array.type)], promote_options="permissive")
    if same and not (array.null_count and is_ragged(kind)):
        return array
    if not is_ragged(kind) or pa.types.is_null(array.type) or pa.types.is_fixed_size_list(kind):
        return array.cast(kind)
    counts = pc.list_value_length(array)  # to fill nulls imports pandas, .4 s
    offsets = offsets_of(numpy_of(counts.fill_null(0) if array.null_count else counts))
    return list_array(array.flatten().cast(kind.value_type), offsets, null_in(array))


def _castable(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        _cast(array, kind)
    except _NO_CAST:
        return False
    return True
