"""Columns in the few types that the rest of the library knows, so that files and memory give the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brimful.tables.arrays import RaggedArrayType
from brimful.tables.objects import JSON, as_json_column, is_json
from brimful.tables.ragged import any_part, array_of, list_array, null_in, numpy_of, offsets_in, offsets_of

_TESTS: Final[Any] = pa.types
_VIEWS: Final = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without dictionaries, runs, views and extensions, and with offsets of 32 bits. Arrays and JSON stay.

    >>> plain(pa.large_list(pa.string_view())), plain(pa.bool8()), plain(pa.uuid())
    (ListType(list<item: string>), DataType(bool), FixedSizeBinaryType(fixed_size_binary[16]))
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind
    if isinstance(kind, RaggedArrayType):
        return RaggedArrayType(kind.value_type, kind.shape)
    if is_json(kind):
        return JSON
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if _TESTS.is_dictionary(kind) or _TESTS.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if _TESTS.is_large_string(kind) or _TESTS.is_string_view(kind):
        return pa.string()
    if _TESTS.is_large_binary(kind) or _TESTS.is_binary_view(kind):
        return pa.binary()
    return pa.list_(plain(kind.value_type)) if _is_list(kind) else inside(kind, plain)


def inside(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type whose parts have been changed.

    >>> inside(pa.struct({"a": pa.int8()}), lambda kind: pa.int64())
    StructType(struct<a: int64>)
    """
    if _TESTS.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if _TESTS.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type), kind.list_size)
    if _TESTS.is_list(kind):
        return pa.list_(change(kind.value_type))
    if _TESTS.is_large_list(kind):
        return pa.large_list(change(kind.value_type))
    if _TESTS.is_struct(kind):
        return pa.struct([(field.name, change(field.type)) for field in kind])
    return kind


def as_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array in its plain type.

    Raises:
        NotImplementedError: Arrow does not know how.
    """
    if array.type == kind:
        return array
    if is_json(kind):
        return as_json_column(array, kind)
    own, null = array.type, null_in(array)
    if isinstance(kind, RaggedArrayType):
        return pa.ExtensionArray.from_storage(kind, array.storage.cast(kind.storage_type))
    if isinstance(array, pa.ExtensionArray):
        return as_plain(array.storage, kind)
    if _TESTS.is_run_end_encoded(own):
        which = np.searchsorted(numpy_of(array.run_ends), array.offset + np.arange(len(array)), side="right")
        return as_plain(array.values, kind).take(array_of(which))
    if _TESTS.is_dictionary(own):
        return pa.DictionaryArray.from_arrays(array.indices, as_plain(array.dictionary, kind)).dictionary_decode()
    if not any_part(own, _is_peculiar):
        return array.cast(kind)
    mask = pa.array(null) if null.any() else None
    if _TESTS.is_struct(own):
        parts = [as_plain(part, field.type) for field, part in zip(kind, array.flatten())]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if _TESTS.is_fixed_size_list(own):
        values = array.values[array.offset * own.list_size :][: len(array) * own.list_size]
        return pa.FixedSizeListArray.from_arrays(as_plain(values, kind.value_type), own.list_size, mask=mask)
    if _TESTS.is_map(own):
        bounds = offsets_in(array)
        keys, items = (part[bounds[0] : bounds[-1]] for part in (array.keys, array.items))
        return pa.MapArray.from_arrays(
            pa.array((bounds - bounds[0]).astype(np.int32)),
            as_plain(keys, kind.key_type),
            as_plain(items, kind.item_type),
            mask=mask,
        )
    if _is_list(own):
        offsets = offsets_of(numpy_of(pc.list_value_length(array).fill_null(0)))
        return list_array(as_plain(array.flatten(), kind.value_type), offsets, null)
    return array.cast(kind)  # a view


def without_extensions(block: pa.RecordBatch) -> pa.RecordBatch:
    """A block without runs and views, of which Arrow cannot take rows, and without extensions but JSON. All other columns stay,
    without a copy."""
    for place, field in enumerate(block.schema):
        if any_part(field.type, _is_peculiar):
            kind = _VIEWS.get(field.type) or plain(field.type)  # of any size
            block = block.set_column(place, field.name, as_plain(block.column(place), kind))
    return block


def _is_peculiar(kind: pa.DataType) -> bool:
    """Whether a type is of runs or views, or an extension but those that stay."""
    if isinstance(kind, pa.BaseExtensionType):
        text = is_json(kind) and not pa.types.is_string_view(kind.storage_type)
        return not (text or isinstance(kind, pa.FixedShapeTensorType | RaggedArrayType))
    views = (_TESTS.is_string_view, _TESTS.is_binary_view, _TESTS.is_list_view, _TESTS.is_large_list_view)
    return any(test(kind) for test in (_TESTS.is_run_end_encoded, *views))


def _is_list(kind: pa.DataType) -> bool:
    """Whether a type is of lists of any length."""
    tests = (_TESTS.is_list, _TESTS.is_large_list, _TESTS.is_list_view, _TESTS.is_large_list_view)
    return any(test(kind) for test in tests)
