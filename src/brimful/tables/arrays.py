"""Columns of arrays: numbers in one or more dimensions, each of one size in all rows, or ragged.

The type says the shape, None for a ragged dimension. No row says anything about another one.

(3, 80)          Arrow's tensors of a fixed shape
(None, 80)       lists of lists of a fixed size: only the first dimension is ragged
(None, None, 3)  `RaggedArrayType`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.tables.ragged import (
    array_of,
    dtype_of,
    in_lists,
    inner_shape,
    list_array,
    null_in,
    numpy_of,
    offsets_of,
)

Shape: TypeAlias = tuple[int | None, ...]
"""The size of each dimension; None where it is ragged."""


if TYPE_CHECKING:  # pyarrow has no types

    class ExtensionType:
        storage_type: pa.DataType

        def __init__(self, storage_type: pa.DataType, extension_name: str) -> None: ...

else:
    ExtensionType = pa.ExtensionType


class RaggedArrayType(ExtensionType):
    """Arrays of any number of ragged dimensions. Rows are stored as in Arrow's `variable_shape_tensor`: a struct of the values
    of an array, and of its shape.

    Args:
        large: the offsets have 64 bits, for a column of more than 2^31 values.
    """

    def __init__(self, value_type: pa.DataType, shape: Shape, large: bool = False) -> None:
        self.value_type: pa.DataType = value_type
        self.shape: Shape = tuple(shape)
        self.large = large
        data = pa.large_list(value_type) if large else pa.list_(value_type)
        stored = pa.struct([("data", data), ("shape", pa.list_(pa.int32(), len(shape)))])
        super().__init__(stored, "brimful.ragged_array")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps({"uniform_shape": self.shape}).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RaggedArrayType:
        data = storage_type.field("data").type
        return cls(data.value_type, json.loads(serialized)["uniform_shape"], pa.types.is_large_list(data))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RaggedArrayType):
            return False
        return bool(self.storage_type == other.storage_type) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash((str(self.storage_type), self.shape))

    def __str__(self) -> str:
        return f"array<{self.value_type}, {self.shape}>"


pa.register_extension_type(RaggedArrayType(pa.int64(), (None, None)))


def array_type(dtype: Any, shape: Sequence[int | None]) -> pa.DataType:
    """The type of a column of arrays, for `schema=`: in pyarrow's words where it has some.

    Args:
        dtype: the type of the numbers: numpy's, its name, or pyarrow's.
        shape: the size of each dimension, None where it is ragged.
    Raises:
        ValueError: `shape` has no dimension, or a size below 1.
        TypeError: `dtype` is no type of numbers.

    >>> import brimful as bf
    >>> bf.array_type("float32", (None, 80)), bf.array_type("uint8", (32, 32, 3)).shape
    (ListType(list<item: fixed_size_list<item: float>[80]>), [32, 32, 3])
    >>> data = bf.from_sequence([{"size": 2}, {"size": 3}])
    >>> def image(sample):
    ...     return {"image": np.ones((sample["size"], 4, 3), np.uint8)}
    >>> images = data.map(image, schema={"image": bf.array_type("uint8", (None, None, 3))})
    >>> [sample["image"].shape for sample in images]
    [(2, 4, 3), (3, 4, 3)]
    """
    try:
        kind = dtype if isinstance(dtype, pa.DataType) else pa.from_numpy_dtype(np.dtype(dtype))
        dtype_in(kind)
    except (KeyError, TypeError, pa.ArrowException):
        raise TypeError(f"array_type takes a type of numbers, such as 'float32' (got {dtype!r})") from None
    sizes: Shape = tuple(shape)
    if not sizes or any(size is not None and not (isinstance(size, int) and size > 0) for size in sizes):
        raise ValueError(
            "array_type takes a shape of at least 1 dimension, each of at least 1 value, or None where it is ragged "
            f"(got {shape!r})"
        )
    if None not in sizes:
        return pa.fixed_shape_tensor(kind, sizes)
    if None in sizes[1:] or sizes[0] is not None:
        return RaggedArrayType(kind, sizes)
    for size in reversed(sizes[1:]):
        assert size is not None, "which the branch above takes"
        kind = pa.list_(kind, size)
    return pa.list_(kind)


class ArrayKind(NamedTuple):
    """What a type of columns says of its arrays."""

    value_type: pa.DataType
    shape: Shape


def kind_of(kind: pa.DataType) -> ArrayKind | None:
    """What a type says of arrays of more dimensions than a list has, or of tensors of any; None where it is of no arrays.

    >>> kind_of(pa.list_(pa.list_(pa.int8(), 3))), kind_of(pa.list_(pa.int8()))
    (ArrayKind(value_type=DataType(int8), shape=(None, 3)), None)
    """
    if isinstance(kind, pa.FixedShapeTensorType | RaggedArrayType):
        return ArrayKind(kind.value_type, tuple(kind.shape))
    if not (inner := inner_shape(kind)):
        return None
    kind = kind.value_type
    for _ in inner:
        kind = kind.value_type
    return ArrayKind(kind, (None, *inner))


def dtype_in(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of numbers or truth values."""
    return np.dtype(np.bool_) if pa.types.is_boolean(kind) else dtype_of(kind)


def column_of_arrays(arrays: Sequence[NDArray[Any] | None], kind: pa.DataType | None = None) -> pa.Array:
    """Arrays of numbers as a column, of a type or of the one that they have in common: a dimension that differs is ragged, and so
    is one that is empty in all.

    Raises:
        pa.ArrowException: they do not fit, or have nothing in common.

    >>> column_of_arrays([np.zeros((2, 80), np.float32), np.zeros((3, 80), np.float32)]).type
    ListType(list<item: fixed_size_list<item: float>[80]>)
    """
    there = [array for array in arrays if array is not None]
    dims = sorted({array.ndim for array in there})
    if kind is None:
        if len(dims) != 1:
            raise pa.ArrowTypeError(f"arrays of {' and '.join(map(str, dims))} dimensions")
        if len({array.dtype.kind == "b" for array in there}) > 1:
            raise pa.ArrowTypeError("bool is no number")
        dtype = np.result_type(*{array.dtype for array in there}).newbyteorder("=")
        sizes = [{*each} for each in zip(*(array.shape for array in there))]
        kind = array_type(dtype, [one.pop() or None if len(one) == 1 else None for one in sizes])
    own = kind_of(kind)
    assert own is not None
    for array in there:
        if not fits_shape(array.shape, own.shape):
            raise pa.ArrowTypeError(f"an array of shape {array.shape} is none of shape {own.shape}")
    null = np.array([array is None for array in arrays], dtype=np.bool_)
    blank = np.zeros([size or 0 for size in own.shape], there[0].dtype) if null.any() and there else None
    filled = [blank if array is None else array for array in arrays]
    shapes = np.array([one.shape for one in filled if one is not None], np.int64).reshape(-1, len(own.shape))
    if not there:
        return pa.nulls(len(arrays), kind)
    values = np.concatenate([one.ravel() for one in filled if one is not None])
    return composed(array_of(values), shapes, null, kind)


def fits_shape(shape: Shape, wanted: Shape) -> bool:
    """Whether arrays of a shape are some of another one, which may be ragged where it is not.

    >>> fits_shape((2, 80), (None, 80)), fits_shape((None, 80), (2, 80)), fits_shape((80,), (None, 80))
    (True, False, False)
    """
    return len(shape) == len(wanted) and all(size in (None, one) for one, size in zip(shape, wanted))


def common_shapes(schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """The columns of arrays whose shapes, or numbers, differ from one schema to another: the type that has them all, by name.

    >>> one, other = (pa.schema([("x", array_type("int8", shape))]) for shape in ((2, 3), (4, 3)))
    >>> common_shapes([one, other])
    {'x': ListType(list<item: fixed_size_list<item: int8>[3]>)}
    """
    found: dict[str, list[ArrayKind]] = {}
    for schema in schemas:
        for field in schema:
            if (own := kind_of(field.type)) is not None:
                found.setdefault(field.name, []).append(own)
    common = {}
    for name, kinds in found.items():
        if len({*kinds}) > 1 and len({len(kind.shape) for kind in kinds}) == 1:
            numbers = [pa.schema([("", kind.value_type)]) for kind in kinds]
            value_type = pa.unify_schemas(numbers, promote_options="permissive").field(0).type
            sizes = zip(*(kind.shape for kind in kinds))
            common[name] = array_type(value_type, [each[0] if len({*each}) == 1 else None for each in sizes])
    return common


def in_shape(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of arrays in the shape of a type that has them all; numbers stay in their type.

    Raises:
        pa.ArrowInvalid: there is a null, for which the column has values.
    """
    values, starts, shapes = spans_of(array)
    null = null_in(array)
    if null.any() or not len(array):
        arrays = arrays_in(array)
        if arrays is None:
            raise pa.ArrowInvalid("there is a null inside an array")
        return column_of_arrays(arrays, kind)
    first, last = starts[0], starts[-1] + shapes[-1].prod()
    return composed(values[first:last], shapes, null, kind)


def composed(values: pa.Array, shapes: NDArray[np.int64], null: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """A column of arrays of values that lie end to end, in the type that these have."""
    mask = array_of(null) if null.any() else None
    if isinstance(kind, RaggedArrayType):
        data = list_array(values, offsets_of(shapes.prod(axis=1)))
        own = RaggedArrayType(values.type, kind.shape, pa.types.is_large_list(data.type))
        sizes = pa.FixedSizeListArray.from_arrays(array_of(shapes.ravel().astype(np.int32)), shapes.shape[1])
        stored = pa.StructArray.from_arrays([data, sizes], fields=list(own.storage_type), mask=mask)
        return pa.ExtensionArray.from_storage(own, stored)
    if isinstance(kind, pa.FixedShapeTensorType):
        stored = pa.FixedSizeListArray.from_arrays(values, prod(kind.shape), mask=mask)
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, kind.shape), stored)
    return list_array(in_lists(values, inner_shape(kind)), offsets_of(shapes[:, 0]), null)


class ArraySpans(NamedTuple):
    """Array i is `values[starts[i] : starts[i] + prod(shapes[i])]`, in the shape shapes[i], int64 (n, ndim)."""

    values: pa.Array
    starts: NDArray[np.int64]
    shapes: NDArray[np.int64]


def spans_of(array: pa.Array) -> ArraySpans:
    """The arrays of a column, without a copy. A null has no values, or any."""
    kind = array.type
    if isinstance(kind, RaggedArrayType):
        data, shape = array.storage.field("data"), array.storage.field("shape")
        ndim = len(kind.shape)
        sizes = shape.values[shape.offset * ndim :][: len(array) * ndim]
        shapes = numpy_of(sizes.fill_null(0) if sizes.null_count else sizes).reshape(-1, ndim).astype(np.int64)
        return ArraySpans(data.values, numpy_of(data.offsets)[:-1].astype(np.int64), shapes)
    if isinstance(kind, pa.FixedShapeTensorType):
        stored, shape = array.storage, tuple(kind.shape)
        values = stored.values[stored.offset * prod(shape) :][: len(array) * prod(shape)]
        return ArraySpans(values, np.arange(len(array)) * prod(shape), np.tile(np.array(shape), (len(array), 1)))
    offsets, values, inner = numpy_of(array.offsets).astype(np.int64), array.values, []
    while pa.types.is_fixed_size_list(values.type):
        inner.append(values.type.list_size)
        values = values.values[values.offset * inner[-1] :][: len(values) * inner[-1]]
    shapes = np.column_stack((np.diff(offsets), np.tile(np.array(inner, np.int64), (len(array), 1))))
    return ArraySpans(values, offsets[:-1] * prod(inner), shapes)


def arrays_in(array: pa.Array) -> list[NDArray[Any] | None] | None:
    """The arrays of a column, which the caller may change; None where one has a null inside."""
    if not isinstance(array, pa.ExtensionArray):
        inside = array.values
        while pa.types.is_fixed_size_list(inside.type):
            if inside.null_count:
                return None
            inside = inside.values
    values, starts, shapes = spans_of(array)
    there = ~null_in(array)
    ends = starts + shapes.prod(axis=1)
    first, last = (int(starts[there].min()), int(ends[there].max())) if there.any() else (0, 0)
    own = values[first:last]
    if own.null_count:  # those of a null row do not count
        nulls = np.append(0, np.cumsum(null_in(own)))
        if (nulls[ends[there] - first] > nulls[starts[there] - first]).any():
            return None
        own = own.fill_null(False if pa.types.is_boolean(own.type) else 0)
    flat = numpy_of(own).copy()
    bounds = zip((starts - first).tolist(), (ends - first).tolist(), shapes.tolist(), there.tolist())
    return [flat[begin:end].reshape(shape) if valid else None for begin, end, shape, valid in bounds]
