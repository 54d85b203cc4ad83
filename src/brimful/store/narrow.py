"""The smallest types that fit: a token of a vocabulary of up to 65,536 takes two bytes.

The schema of a store only ever widens while it is written: a value that does not fit, a column that is new. Files that
were written before that are cast when the rest is done, so that in the end all are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from brimful.encoders import Encoder, FastEncoder, TiktokenEncoder, TransformersEncoder
from brimful.errors import DataError
from brimful.ragged import array_of, is_ragged, numpy_of
from brimful.rows import Block
from brimful.store.pipeline import all_below
from brimful.stream import Stage

TYPES: Final = (pa.uint8(), pa.int8(), pa.uint16(), pa.int16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64())
UNKNOWN_BITS: Final = 16
"""Integers of which only some have been seen take no less: a first file without a value above 255 says little."""


def smallest(low: int, high: int, least_bits: int = 8) -> pa.DataType:
    """The smallest integer type that holds the integers from `low` to `high`.

    >>> smallest(0, 65_535), smallest(-100, 30_521), smallest(0, 128_255), smallest(0, 200, least_bits=16)
    (DataType(uint16), DataType(int16), DataType(int32), DataType(uint16))
    """
    for kind in TYPES:
        least, most = bounds(kind)
        if kind.bit_width >= least_bits and least <= low and high <= most:
            return kind
    raise DataError(f"no integer type holds both {low:,} and {high:,}")


def bounds(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    limits = np.iinfo(kind.to_pandas_dtype())
    return int(limits.min), int(limits.max)


def vocabularies(stage: Stage[Any]) -> dict[str, int]:
    """The number of token ids of each column that a chain tokenises, where its tokenizer says it."""
    found: dict[str, int] = {}
    for below in all_below(stage):
        found |= vocabularies(below)
    encoder = getattr(stage, "encoder", None)
    if isinstance(encoder, Encoder) and (size := _num_ids(encoder)):
        found[str(vars(stage)["output"])] = size
    return found


def _num_ids(encoder: Encoder) -> int:
    if isinstance(encoder, FastEncoder):
        return max(Tokenizer.from_str(encoder.serialized).get_vocab().values(), default=-1) + 1
    if isinstance(encoder, TransformersEncoder):
        return max(encoder.tokenizer.get_vocab().values(), default=-1) + 1
    if isinstance(encoder, TiktokenEncoder):
        return int(encoder.tokenizer.n_vocab)
    return 0


def plain(block: Block) -> Block:
    """A block without dictionaries, which record batches of one file would have to share."""
    for place, field in enumerate(block.schema):
        if pa.types.is_dictionary(field.type):
            block = block.set_column(place, field.name, block.column(place).dictionary_decode())
    return block


def widened(schema: pa.Schema, block: Block, num_ids: Mapping[str, int], place: str) -> pa.Schema:
    """The schema that holds what `schema` holds, and a block.

    Args:
        num_ids: of the columns of which it is known: they begin with the type that fits all ids.
        place: where the block came from, in words.
    Raises:
        DataError: where a column has two types that nothing unites, with both named and the place of the second.
    """
    fields = {field.name: field for field in schema}
    for name, array in zip(block.schema.names, block.columns):
        old = fields.get(name)
        kind = _joined(None if old is None else old.type, array, num_ids.get(name), place, name)
        if old is None or not kind.equals(old.type):
            fields[name] = pa.field(name, kind)
    return pa.schema(list(fields.values()))


def settled(schema: pa.Schema, num_ids: Mapping[str, int]) -> pa.Schema:
    """A schema in which lists that never held a value are lists of tokens."""
    fields = []
    for field in schema:
        if is_ragged(field.type) and pa.types.is_null(field.type.value_type):
            size = num_ids.get(field.name)
            field = field.with_type(pa.list_(smallest(0, size - 1) if size else smallest(0, 0, UNKNOWN_BITS)))
        fields.append(field)
    return pa.schema(fields)


def conform(block: Block, schema: pa.Schema) -> Block:
    """A block with the columns and types of a schema, lists without gaps; absent columns are null."""
    columns = []
    for field in schema:
        place = block.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(block.num_rows, field.type))
        elif is_ragged(field.type):
            columns.append(_compact(block.column(place), field.type))
        else:
            columns.append(block.column(place).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _compact(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list column, its values cast; what lies between and outside its lists is left behind."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_fixed_size_list(kind):
        return array.cast(kind)
    counts = numpy_of(pc.list_value_length(array).fill_null(0))
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    mask = array.is_null() if array.null_count else None
    flat, wanted = array.flatten(), kind.value_type
    values = pa.nulls(len(flat)) if pa.types.is_null(wanted) else flat.cast(wanted)
    return pa.ListArray.from_arrays(array_of(offsets), values, mask=mask)


def _joined(old: pa.DataType | None, array: pa.Array, size: int | None, place: str, name: str) -> pa.DataType:
    """The type that holds what a column of type `old` holds and an array; `size`: how many token ids there are."""
    old = None if old is not None and pa.types.is_null(old) else old
    new = array.type
    if not is_ragged(new) or (old is not None and not is_ragged(old)):
        values = None
    elif _is_integers(new) and (old is None or _is_integers(old)):
        seen = pc.min_max(array.flatten())
        values = _integers(None if old is None else old.value_type, seen["min"].as_py(), seen["max"].as_py(), size)
        if pa.types.is_null(values) and pa.types.is_fixed_size_list(new):
            values = smallest(0, 0, UNKNOWN_BITS)  # a cast to nothing is more than Arrow does
    else:
        values = new.value_type if old is None else _united(old.value_type, new.value_type, place, name)
    if values is None:
        return new if old is None or old.equals(new) else _united(old, new, place, name)
    if pa.types.is_fixed_size_list(new) and (old is None or getattr(old, "list_size", None) == new.list_size):
        return pa.list_(values, new.list_size)
    return pa.list_(values)


def _integers(old: pa.DataType | None, low: int | None, high: int | None, size: int | None) -> pa.DataType:
    """The type of integers that were of type `old`, null where none was seen, and now go from `low` to `high`."""
    if low is None or high is None:
        return pa.null() if old is None else old
    if old is not None and not pa.types.is_null(old):
        least, most = bounds(old)
        return old if least <= low and high <= most else smallest(min(low, least), max(high, most))
    return smallest(min(low, 0), max(high, size - 1)) if size else smallest(low, high, UNKNOWN_BITS)


def _is_integers(kind: pa.DataType) -> bool:
    """Whether a column is a list of integers, or of nothing at all."""
    return is_ragged(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type))


def _united(old: pa.DataType, new: pa.DataType, place: str, name: str) -> pa.DataType:
    schemas = [pa.schema([("", kind)]) for kind in (old, new)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise DataError(f"column {name!r} changes its type from {old} to {new} ({place}); cast it to one") from error
