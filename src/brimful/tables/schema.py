"""Python values become Arrow columns. The first rows give the types, and every later row must fit them.

The type of a column must not depend on the rows beside it. So a source, and a user's function, has the types of its first 1,000
rows, whatever is read or resumed first. Later rows are cast to these types, or are an error with their place.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.plan.errors import DataError
from brimful.tables.arrays import (
    RaggedArrayType,
    column_of_arrays,
    common_shapes,
    dtype_in,
    fits_shape,
    in_shape,
    kind_of,
)
from brimful.tables.objects import (
    JSON,
    NO_ORDER,
    OBJECTS,
    NestedError,
    as_json_column,
    can_be_json,
    has_objects,
    is_json,
    json_of,
    refuse_nested,
)
from brimful.tables.plain import as_plain, inside, plain
from brimful.tables.ragged import any_part, array_of, is_list, list_array, numpy_of

SAMPLE_ROWS: Final = 1000
FIRST_ROWS: Final = 32
"""A function may take long: so many of its rows give the types, if no column is null or absent in them."""
OF_RESULTS: Final = "return one type in every sample"
OF_FILES: Final = "say its type in schema=, or leave the column out with columns="
_ASKED: Final = {
    OF_RESULTS: "return one type in every sample, or say it in this method's own schema= ({})",
    OF_FILES: "say its type in schema= ({}), or leave the column out with columns=",
}
"""The same where it is known which type helps."""
_EVERY: Final = "return it in every sample, None where there is nothing to say"
UNKNOWN: Final = "name it in schema=, or leave the column out with columns="
AS_JSON: Final = "json"
"""How schema= names the type of a column of objects."""
UNFIT: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)
"""Arrow raises these where values fit no type, or not the wanted one."""


Types: TypeAlias = pa.Schema | Mapping[str, pa.DataType | str]
"""What users give as schema=."""


def asked(types: Types | None) -> pa.Schema | None:
    """The types that a user gives by schema=.

    Raises:
        TypeError: they are no types.

    >>> asked({"id": pa.int64(), "meta": "json"}).field("meta").type == JSON
    True
    """
    if types is None or isinstance(types, pa.Schema):
        return types
    try:
        return pa.schema([(name, JSON if kind == AS_JSON else kind) for name, kind in types.items()])
    except (TypeError, ValueError, AttributeError) as error:
        words = f"schema takes pyarrow's types by column, as {{'id': pa.int64(), 'meta': 'json'}}: {error}"
        raise TypeError(words) from None


# -- columns of Python values --------------------------------------------------------------------------------------------


def as_column(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Values as a column of a type, or of the type that they have in common.

    Arrays of one dimension become lists, those of several dimensions what `column_of_arrays` says. Objects become JSON, where
    that gives them back as they are, else structs.

    Raises:
        pa.ArrowException, OverflowError, UnicodeEncodeError: they do not fit, or have nothing in common.

    >>> as_column([np.zeros((2, 3), np.float32)]).type.shape
    [2, 3]
    """
    try:
        return _column(values, kind)
    except (*UNFIT, ValueError, TypeError, RuntimeError) as error:  # Arrow's, numpy's, and torch's
        if any(map(_lists_arrays, values)):
            raise pa.ArrowInvalid(_LISTED) from error
        if isinstance(error, UNFIT):
            raise
        raise pa.ArrowInvalid(str(error)) from error


def _column(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and is_json(kind):
        return as_json_column(json_of(values, strict=False), kind)
    types = {*map(type, values)}
    if np.ma.MaskedArray in types:
        raise pa.ArrowInvalid(_MASKED)
    if kind is None and has_objects(values):
        with suppress(pa.ArrowInvalid):
            return json_of(values)
        refuse_nested(values)
    elif kind is not None and (types.intersection(OBJECTS) or (_is_deep(kind) and has_objects(values))):
        refuse_nested(values)
    first = next((value for value in values if value is not None), None)
    if not _is_array(first) and not isinstance(kind, pa.FixedShapeTensorType | RaggedArrayType):
        return _plain(values, kind)
    arrays = [None if value is None else np.asarray(value) for value in values]
    kinds = {(array.ndim, array.dtype.kind in "biuf") for array in arrays if array is not None}
    if kinds == {(0, True)}:
        return _plain([None if array is None else array[()] for array in arrays], kind)
    if len(kinds) == 1 and next(iter(kinds))[0] == 1 and (kind is None or kind_of(kind) is None):
        return _cast(_lists(arrays, kind), kind)
    own = None if kind is None else kind_of(kind)
    if all(numeric and ndim for ndim, numeric in kinds) and (kind is None or own is not None):
        if own is not None and len({array.dtype for array in arrays if array is not None}) > 1:  # as for lists
            arrays = [None if array is None else _as_type(array, own.value_type) for array in arrays]
        return _cast(column_of_arrays(arrays, kind), kind)
    return _plain([None if array is None else array.tolist() for array in arrays], kind)


def large(kind: pa.DataType) -> pa.DataType:
    """A type of text, bytes or lists with offsets of 64 bits: for more than 2 GiB of them.

    >>> large(pa.list_(pa.string()))
    LargeListType(large_list<item: large_string>)
    """
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if is_json(kind):
        return pa.json_(pa.large_string())
    if isinstance(kind, RaggedArrayType):
        return RaggedArrayType(kind.value_type, kind.shape, large=True)
    return pa.large_list(large(kind.value_type)) if pa.types.is_list(kind) else inside(kind, large)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not np.isscalar(value)


def _is_deep(kind: pa.DataType) -> bool:
    """Whether it is a type of lists of lists."""
    return is_list(kind) and is_list(kind.value_type)


def _lists_arrays(value: Any) -> bool:
    """Whether it is a list with arrays of several dimensions, of which Arrow makes no column."""
    return isinstance(value, list | tuple) and any(getattr(one, "ndim", 0) > 1 for one in value)


def _plain(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        own = pa.array(values)
        if isinstance(own, pa.ChunkedArray):  # more than 2 GiB
            own, kind = pa.array(values, large(own.type)), kind and large(kind)
    except UNFIT:
        if (unsigned := _unsigned(values)) is not None:  # beyond int64
            return _cast(pa.array(values, unsigned), kind)
        if not any(map(_is_array, values)):
            raise
        values = [np.asarray(value).tolist() if _is_array(value) else value for value in values]
        own = pa.array(values)
    if isinstance(own, pa.ExtensionArray):  # of uuid.UUID
        own = own.storage
    if pa.types.is_temporal(own.type):  # Arrow makes a date of what has a time too, and drops time zones
        kinds = {(type(value), getattr(value, "tzinfo", None) is None) for value in values if value is not None}
        if len(kinds) > 1:
            raise pa.ArrowTypeError("times of several kinds")
    if _mixed(values, own.type):
        raise pa.ArrowTypeError("values of several kinds")
    if kind is None or own.type == kind:
        return own
    if not fits(own.type, kind):
        raise pa.ArrowTypeError(f"{own.type} is not {kind}")
    return _checked(own, pa.array(values, kind) if pa.types.is_nested(kind) else own.cast(kind))


def _unsigned(values: Iterable[Any]) -> pa.DataType | None:
    """uint64, or lists of it, for values that are integers, or lists of them, or null; None for others."""
    there = [value for value in values if value is not None]
    kinds = {*map(type, there)}
    if kinds == {list} and (inner := _unsigned(chain.from_iterable(there))) is not None:
        return pa.list_(inner)
    return pa.uint64() if kinds == {int} else None


def _mixed(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether Arrow made bytes of strings, or numbers of bools. It does so only where other values are bytes or numbers, but a
    value must not depend on its neighbours."""
    if not any_part(kind, lambda part: pa.types.is_binary(part) or pa.types.is_floating(part)):
        return False
    there = [value for value in values if value is not None]
    if pa.types.is_binary(kind):
        return str in set(map(type, there))
    if pa.types.is_floating(kind):
        return not {bool, np.bool_}.isdisjoint(map(type, there))
    if is_list(kind):
        return _mixed(chain.from_iterable(there), kind.value_type)
    return pa.types.is_struct(kind) and any(_mixed((value.get(one.name) for value in there), one.type) for one in kind)


def _as_type(array: NDArray[Any], kind: pa.DataType) -> NDArray[Any]:
    return numpy_of(_cast(array_of(array.ravel()), kind)).reshape(array.shape)


def _lists(arrays: Sequence[NDArray[Any] | None], kind: pa.DataType | None) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum([0 if array is None else len(array) for array in arrays])))
    null = np.array([array is None for array in arrays])
    there = [array for array in arrays if array is not None]
    if len({array.dtype.kind == "b" for array in there if len(array)}) > 1:
        raise pa.ArrowTypeError("bool is no number")
    if kind is not None and is_list(kind) and len({array.dtype for array in there}) > 1:  # numpy would widen them all
        there = [_as_type(array, kind.value_type) for array in there]
    return list_array(np.concatenate(there), offsets, null)


def _cast(array: pa.Array, kind: pa.DataType | None) -> pa.Array:
    if kind is None or array.type == kind:
        return array
    if is_json(kind):
        return as_json_column(array, kind)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if not _alike(array.type, kind):
        if (own := plain(array.type)) == array.type:
            raise pa.ArrowTypeError(f"{type_name(own)} is not {type_name(kind)}")
        return _cast(as_plain(array, own), kind)
    if type(kind) is not type(array.type) and (own := kind_of(array.type)) is not None and kind_of(kind) is not None:
        return _cast(in_shape(array, kind), kind)
    if isinstance(kind, pa.FixedShapeTensorType | RaggedArrayType):
        made = array.storage.cast(kind.storage_type)
        parts = (
            (array.storage, made)
            if isinstance(kind, pa.FixedShapeTensorType)
            else (array.storage.field(0), made.field(0))
        )
        _checked(*parts)
        return pa.ExtensionArray.from_storage(kind, made)
    return _checked(array, array.cast(kind))


def _checked(array: pa.Array, made: pa.Array) -> pa.Array:
    """The result of a cast. Arrow silently makes a number infinite where its new type cannot hold it: that is an error here."""
    before, after = array, made
    while is_list(after.type) and is_list(before.type):
        before, after = before.flatten(), after.flatten()
    floats = pa.types.is_floating(after.type) and pa.types.is_floating(before.type)
    if floats and pc.sum(pc.is_inf(after)).as_py() != pc.sum(pc.is_inf(before)).as_py():
        raise pa.ArrowInvalid(f"a number is beyond {after.type}")
    return made


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a cast changes only how values are stored, not their kind: a number is no string. No key is left out."""
    if one == other or pa.types.is_null(one):
        return True
    if is_json(other):
        return can_be_json(one)
    if (own := kind_of(one)) is not None and (wanted := kind_of(other)) is not None:
        return fits_shape(own.shape, wanted.shape) and _alike(own.value_type, wanted.value_type)
    if is_list(one) and is_list(other):
        return _alike(one.value_type, other.value_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return all(
            other.get_field_index(field.name) >= 0 and _alike(field.type, other.field(field.name).type) for field in one
        )
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _alike(one.key_type, other.key_type) and _alike(one.item_type, other.item_type)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return bool(one.tz == other.tz)
    return one.id in _FAMILIES and _FAMILIES[one.id] == _FAMILIES.get(other.id)


_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FAMILIES: Final = {
    kind.id: number
    for number, kinds in enumerate(
        (
            (*_INTEGERS, pa.float16(), pa.float32(), pa.float64()),
            (pa.string(), pa.large_string()),
            (pa.binary(), pa.large_binary(), pa.binary(1)),
            (pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1)),
            (pa.duration("s"),),
            (pa.time32("s"), pa.time64("us")),
        )
    )
    for kind in kinds
}
"""The numbers of the kinds of values: a cast changes no value's kind."""


def type_name(kind: pa.DataType) -> str:
    """A type in words.

    >>> type_name(pa.fixed_shape_tensor(pa.uint8(), (2, 3))), type_name(pa.int64())
    ('an array of uint8 of shape (2, 3)', 'int64')
    """
    if (own := kind_of(kind)) is not None:
        return f"an array of {own.value_type} of shape {own.shape}"
    return str(kind).replace(str(JSON), "json")


# -- the types of first rows ---------------------------------------------------------------------------------------------


def types_of(rows: Sequence[Mapping[str, Any]]) -> tuple[pa.Schema, bool]:
    """The schema of the first rows, as `infer` has it, and whether it is complete: every row has every column, and no column is
    null in all of them."""
    found = _inferred(rows, list(dict.fromkeys(name for row in rows for name in row)))
    return settled(found), complete(found, rows)


def complete(schema: pa.Schema, rows: Iterable[Collection[str]]) -> bool:
    """Whether all rows (or blocks) have all columns of a schema, and each column has a type."""
    typed = not any(any_part(kind, pa.types.is_null) for kind in schema.types)
    return typed and all(len(row) == len(schema) for row in rows)


def first_rows(rows: Iterator[Any]) -> list[Any]:
    """The rows that give the types of all: the first 32, or up to 1,000 while a column is null or absent in them. Errors among
    them count for nothing."""
    held: list[Any] = []
    while more := list(islice(rows, min(len(held) or FIRST_ROWS, SAMPLE_ROWS - len(held)))):
        held += more
        if types_of(samples_in(held))[1]:
            break
    return held


def samples_in(found: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, Mapping)]


def infer(rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...] | None = None, where: str = "") -> pa.Schema:
    """The schema of the first rows: every key that occurs in them (or `columns`), numbers widened.

    A value that fits none before it does not count: its row is an error when it is read. Lists that are all empty count as lists
    of integers.

    Raises:
        DataError: one of `columns` never occurs.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns or ():
        if rows and name not in names:
            raise DataError(
                f"there is no column {name!r} in the first {len(rows):,} rows ({where}; "
                f"keys: {', '.join(names)}); correct columns=, or say its type in schema="
            )
    return settled(_inferred(rows, columns or names))


def _inferred(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, _common([row.get(name) for row in rows])) for name in names])


def _common(values: list[Any]) -> pa.DataType:
    there = [value for value in values if value is not None]
    kinds = {*map(type, there)}  # these two need no pa.array, which imports pandas: .3 s
    if kinds == {int} and max(map(int.bit_length, there)) < 64:
        return pa.int64()
    if kinds == {str} and not re.search(_HALF_PAIR, "".join(there)):
        return pa.string()
    try:
        return plain(as_column(values).type)
    except UNFIT:
        found = pa.schema([("", pa.null())])
        column = _as_structs if has_objects(values) else as_column  # JSON is for all of them, or for none
        fitting = []
        for value in values:
            with suppress(*UNFIT):
                field = pa.field("", column([value]).type)
                if not _apart(found, field):
                    found = unified([found, pa.schema([field])])
                    fitting.append(value)
        if _unsigned(fitting) is not None:
            with suppress(*UNFIT):
                return as_column(fitting).type  # Arrow has int64 for int64 and uint64
        return found.field(0).type


def _as_structs(values: Sequence[Any]) -> pa.Array:
    refuse_nested(values)
    return _plain(values, None)


def settled(schema: pa.Schema) -> pa.Schema:
    """A schema whose lists that never held a value are lists of integers, also inside of lists."""
    return pa.schema([field.with_type(_settled(field.type)) for field in schema], schema.metadata)


def _settled(kind: pa.DataType) -> pa.DataType:
    if not is_list(kind):
        return kind
    inner = pa.int64() if pa.types.is_null(kind.value_type) else _settled(kind.value_type)
    return kind if inner == kind.value_type else pa.list_(inner)


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of two schemas, numbers widened, arrays ragged where their shapes differ. What is JSON in one of them is JSON.

    Raises:
        pa.ArrowException: a column has two types without a common one.
    """
    of_json = [field.name for schema in schemas for field in schema if is_json(field.type)]
    common = common_shapes(schemas)
    if common:
        schemas = [
            pa.schema([field.with_type(common.get(field.name, field.type)) for field in schema]) for schema in schemas
        ]
    if not of_json:
        return pa.unify_schemas(schemas, promote_options="permissive")
    typed = [
        pa.schema(
            [field.with_type(JSON) if field.name in of_json and can_be_json(field.type) else field for field in schema]
        )
        for schema in schemas
    ]
    return pa.unify_schemas(typed, promote_options="permissive")


def united(schemas: Iterable[tuple[int, pa.Schema]], what: str) -> pa.Schema:
    """All columns of several schemas, numbers widened.

    Args:
        schemas: each with the number of its data set.
        what: the method that joins them.
    Raises:
        DataError: a column has two types without a common one.
    """
    whole = pa.schema([])
    for number, schema in schemas:
        if name := next((field.name for field in schema if _apart(whole, field)), None):
            raise DataError(
                f"{what}: column {name!r} is {type_name(schema.field(name).type)} in data set {number} and "
                f"{type_name(whole.field(name).type)} in those before it; convert it (map), or rename or drop it in one of them"
            )
        whole = unified([whole, schema.remove_metadata()])
    return whole


def _apart(schema: pa.Schema, field: pa.Field) -> bool:
    """Whether a schema has a column of this name whose type shares no common type with this one."""
    if field.name not in schema.names:
        return False
    kinds = schema.field(field.name).type, field.type
    if kinds[0] == kinds[1]:
        return False
    if any(map(is_json, kinds)) and not all(is_json(kind) or pa.types.is_nested(kind) for kind in kinds):
        return not any(map(pa.types.is_null, kinds))  # text, or numbers, are no objects
    try:
        common = unified([pa.schema([("", kind)]) for kind in kinds]).field(0).type
    except pa.ArrowException:
        return True
    return not all(_alike(kind, common) for kind in kinds)


# -- types as plain JSON -------------------------------------------------------------------------------------------------


def as_json(schema: pa.Schema) -> list[Any]:
    """The columns of a schema as plain JSON, for a state: each with its name and its type, in a list, as a dict may come back in
    another order. A type that has no name here is Arrow's own text. Metadata of columns are left out.

    >>> schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("image", pa.fixed_shape_tensor(pa.uint8(), (2, 3)))])
    >>> as_json(schema)
    [['input_ids', ['list', 'int32']], ['image', ['tensor', 'uint8', [2, 3]]]]
    >>> from_json(as_json(schema)).equals(schema)
    True
    """
    return [[field.name, _column_as_json(field)] for field in schema]


def from_json(columns: list[Any]) -> pa.Schema:
    """The schema of what `as_json` returned."""
    return pa.schema([_field(name, told) for name, told in columns])


def _column_as_json(field: pa.Field) -> Any:
    told = _field_as_json(field)
    return told if _field(field.name, told) == field else _in_arrow(field)


def _field_as_json(field: pa.Field) -> Any:
    return _type_as_json(field.type) if field.nullable else ["not_null", _type_as_json(field.type)]


def _type_as_json(kind: pa.DataType) -> Any:
    with suppress(ValueError):
        if pa.type_for_alias(str(kind)) == kind:
            return str(kind)
    if isinstance(kind, pa.FixedShapeTensorType):
        return ["tensor", _type_as_json(kind.value_type), [*kind.shape]]
    if isinstance(kind, RaggedArrayType) and not kind.large:
        return ["ragged_array", _type_as_json(kind.value_type), [*kind.shape]]
    if is_json(kind):
        return ["json"]
    if pa.types.is_struct(kind):
        return ["struct", *([field.name, _field_as_json(field)] for field in kind)]
    if pa.types.is_map(kind):
        return ["map", _type_as_json(kind.key_type), _field_as_json(kind.item_field)]
    if pa.types.is_fixed_size_list(kind):
        return ["fixed_size_list", _field_as_json(kind.value_field), kind.list_size]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ["list" if pa.types.is_list(kind) else "large_list", _field_as_json(kind.value_field)]
    if pa.types.is_dictionary(kind):
        return ["dictionary", _type_as_json(kind.index_type), _type_as_json(kind.value_type), kind.ordered]
    if pa.types.is_timestamp(kind):
        return ["timestamp", kind.unit, kind.tz]
    if pa.types.is_decimal(kind):
        return [f"decimal{kind.bit_width}", kind.precision, kind.scale]
    if pa.types.is_fixed_size_binary(kind):
        return ["fixed_size_binary", kind.byte_width]
    return _in_arrow(pa.field("", kind))


def _in_arrow(field: pa.Field) -> list[Any]:
    return ["arrow", base64.b64encode(pa.schema([field]).serialize()).decode()]


def _field(name: str, told: Any) -> pa.Field:
    """The field of a name and a type as JSON."""
    if told[0] == "not_null":
        return pa.field(name, _type(told[1]), nullable=False)
    if told[0] == "arrow":
        return _out_of_arrow(told[1]).with_name(name)
    return pa.field(name, _type(told))


def _type(told: Any) -> pa.DataType:
    return pa.type_for_alias(told) if isinstance(told, str) else _TYPES[told[0]](*told[1:])


def _out_of_arrow(text: str) -> pa.Field:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0)


_TYPES: Final[dict[str, Callable[..., pa.DataType]]] = {
    "json": lambda: JSON,
    "tensor": lambda inner, shape: pa.fixed_shape_tensor(_type(inner), shape),
    "ragged_array": lambda inner, shape: RaggedArrayType(_type(inner), shape),
    "struct": lambda *fields: pa.struct([_field(*one) for one in fields]),
    "map": lambda key, item: pa.map_(_type(key), _field("value", item)),
    "fixed_size_list": lambda inner, size: pa.list_(_field("item", inner), size),
    "list": lambda inner: pa.list_(_field("item", inner)),
    "large_list": lambda inner: pa.large_list(_field("item", inner)),
    "dictionary": lambda index, value, ordered: pa.dictionary(_type(index), _type(value), ordered),
    "timestamp": pa.timestamp,
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
    "fixed_size_binary": pa.binary,
    "arrow": lambda text: _out_of_arrow(text).type,
}
"""What makes a type of the words that follow its name."""


# -- later rows ----------------------------------------------------------------------------------------------------------


Extra: TypeAlias = Literal["raise", "drop"]


class MisfitError(ValueError):
    """A block, or one of several rows, does not fit a schema. Whoever catches it adds the place and the remedy.

    Args:
        column: the name of the column, which may have the wrong type, or may be too many.
        found: the type there, in words.
        wanted: the type by the schema, in words; None where the schema has no such column, or the type no such key.
        why: more words; the only ones if `wanted` is None.
        row: gives the number of the first row that does not fit, which takes a search in a block.
        asked: the type in schema= by which the value fits, as users write it; "" where nobody knows.
    """

    def __init__(
        self,
        column: str,
        found: str,
        wanted: str | None,
        why: str = "",
        row: Callable[[], int] = lambda: 0,
        asked: str = "",
    ) -> None:
        kinds = f"column {column!r} is {wanted} by the schema but {found} here{why and f' ({why})'}"
        super().__init__(why if wanted is None else kinds)
        self.column: str = column
        self.found: str = found
        self.wanted: str | None = wanted
        self.why: str = why
        self.row: Callable[[], int] = row
        self._asked = asked

    def told(self, remedy: str = OF_FILES) -> str:
        """The message with a remedy: this one where the type is another, one beside it where a column or a key is unknown."""
        if self.wanted is None:
            remedy = UNKNOWN if remedy == OF_FILES else _EVERY
        elif self._asked and remedy in _ASKED:
            remedy = _ASKED[remedy].format(f"{self.column!r}: {self._asked}")
        return f"{self}; {remedy}"


class UnheldError(MisfitError):
    """A value that no column can hold, of whatever type.

    Args:
        row: its number.
    """

    def __init__(self, column: str, value: Any, row: int = 0) -> None:
        found, why, asked = _cause(value, pa.null())
        kind = f"a value of type {type(value).__name__}" if found.endswith(_UNHELD) else found
        but = f" but one of type {asked}" if asked else ""
        words = f"column {column!r} has {kind}, which no column{but} can hold: {why or _HELD}"
        super().__init__(column, found, None, words, partial(int, row))

    def told(self, remedy: str = "") -> str:
        return str(self)


def unheld(column: str, values: Sequence[Any]) -> UnheldError | None:
    """The error for the first of the values that no column can hold; None where each has a type, but not all have one."""
    for row, value in enumerate(values):
        try:
            as_column([value])
        except UNFIT:
            return UnheldError(column, value, row)
    return None


def conform(block: pa.RecordBatch, schema: pa.Schema, *, exact: bool = False) -> pa.RecordBatch:
    """A block with the columns and types of a schema. Absent columns are null.

    Price: 1 us where the block is as the schema says.

    Args:
        exact: a float that a narrower type would round is an error too: nobody has asked for that type.
    Raises:
        MisfitError: the schema lacks a column, or a value has no equal in the type of its column.
    """
    if block.schema.equals(schema):
        return block
    if unknown := [field for field in block.schema if field.name not in schema.names]:
        name, found = unknown[0].name, type_name(unknown[0].type)
        raise MisfitError(name, found, None, f"column {name!r} is not in the schema ({', '.join(schema.names)})")
    columns = []
    for field in schema:
        place = block.schema.get_field_index(field.name)
        columns.append(
            pa.nulls(block.num_rows, field.type) if place < 0 else _fitted(block.column(place), field, exact)
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fitted(array: pa.Array, field: pa.Field, exact: bool) -> pa.Array:
    def cast(values: pa.Array) -> pa.Array:
        made = _cast(values, field.type)
        if exact:
            _refuse_rounding(values, made)
        return made

    with suppress(*UNFIT):
        return cast(array)

    def part(first: int, last: int) -> pa.Array:
        """Some rows by themselves: a slice shares the values inside its lists with other rows, and a null may hide a list."""
        return cast(as_plain(array, plain(array.type)).take(array_of(np.arange(first, last))))

    def row() -> int:
        first, last = 0, len(array)
        while last - first > 1:
            middle = (first + last) // 2
            try:
                part(first, middle)
                first = middle
            except UNFIT:
                last = middle
        return first

    try:
        return part(0, len(array))
    except UNFIT as error:
        words = type_name(array.type), type_name(field.type), str(error)
        raise MisfitError(field.name, *words, row, wider_asked(array.type, field.type)) from error


def wider_asked(own: pa.DataType, kind: pa.DataType, last: str = AS_JSON) -> str:
    """The type that has numbers of a type which another type of numbers lacks, as users write it; "" where they are none.

    Args:
        last: the type of a column whose numbers no type of 64 bits has: of integers below 0 and above 2^63, or beside floats.

    >>> wider_asked(pa.uint64(), pa.int64()), wider_asked(pa.list_(pa.float64()), pa.list_(pa.float32()))
    ("'uint64', or 'json' if others are negative", 'pa.list_(pa.float64())')
    """
    if (found := kind_of(own)) is not None and (wanted := kind_of(kind)) is not None and found.shape != wanted.shape:
        if len(found.shape) != len(wanted.shape):
            return ""
        sizes = tuple(size if size == one else None for size, one in zip(found.shape, wanted.shape))
        return f"bf.array_type({str(dtype_in(wanted.value_type))!r}, {sizes})"
    lists = 0
    while is_list(own) and is_list(kind):
        own, kind, lists = own.value_type, kind.value_type, lists + 1
    if pa.types.is_integer(own) and pa.types.is_floating(kind):  # which would round it
        if kind == pa.float64():
            return repr(last)
        own = pa.float64()
    if not any(test(own) and test(kind) for test in (pa.types.is_integer, pa.types.is_floating)):
        return ""
    inner = f"pa.{own.to_pandas_dtype().__name__}()" if lists else repr(str(own))
    asked = "pa.list_(" * lists + inner + ")" * lists
    apart = pa.uint64() in (own, kind) and (pa.types.is_signed_integer(own) or pa.types.is_signed_integer(kind))
    return f"{asked}, or {last!r} if others are {'negative' if own == pa.uint64() else 'beyond it'}" if apart else asked


def _refuse_rounding(array: pa.Array, made: pa.Array) -> None:
    """Raises Arrow's error where floats are others in the narrower type that they were cast to."""
    own, kind = array.type, made.type
    if is_list(own) and is_list(kind):
        _refuse_rounding(array.flatten(), made.flatten())
    elif pa.types.is_struct(own) and pa.types.is_struct(kind):
        for one, part in zip(own, array.flatten()):
            _refuse_rounding(part, made.flatten()[kind.get_field_index(one.name)])
    elif pa.types.is_floating(own) and pa.types.is_floating(kind) and own.bit_width > kind.bit_width:
        before, after = (numpy_of(values.drop_null()) for values in (array, made))
        changed = (before != after) & ~np.isnan(before)
        if changed.any():
            raise pa.ArrowInvalid(f"{before[changed][0]} would be rounded to {after[changed][0]}")


def fits(own: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of a type may be cast to another. Arrow would silently cast a float to an integer, a number to a text, and
    leave out a key: these may not.

    >>> fits(pa.int64(), pa.int8()), fits(pa.float64(), pa.int8()), fits(pa.int64(), pa.string())
    (True, False, False)
    """
    return own == kind or (_alike(own, kind) and not _rounds(own, kind))


def conform_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, extra: Extra = "raise") -> pa.RecordBatch:
    """Rows as a block of a schema. Absent values are null.

    Args:
        extra: what becomes of keys that are not in the schema.
    Returns:
        The types are those of the schema, but for offsets of 64 bits in a column of more than 2 GiB.
    Raises:
        MisfitError: a row does not fit, or has a key that is not in the schema.
    """
    with suppress(*UNFIT):
        if extra == "drop" or set().union(*rows) <= set(schema.names):
            if not schema.names:
                return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
            columns = [as_column([row.get(field.name) for row in rows], field.type) for field in schema]
            if all(field.nullable or not column.null_count for field, column in zip(schema, columns)):
                held = pa.schema([field.with_type(column.type) for field, column in zip(schema, columns)])
                return pa.RecordBatch.from_arrays(columns, schema=held)
    for number, row in enumerate(rows):
        if error := misfit(row, schema, extra):
            error.row = partial(int, number)
            raise error
    raise MisfitError("", "", None, "these rows fit one by one only")


def misfit(row: Mapping[str, Any], schema: pa.Schema, extra: Extra = "raise") -> MisfitError | None:
    """Why a row does not fit a schema; None where it fits."""
    if extra == "raise" and (unknown := [name for name in row if name not in schema.names]):
        words = (
            f"key {unknown[0]!r} is not in the schema ({', '.join(schema.names)}), which the first {SAMPLE_ROWS:,} rows "
            "decide where none is given"
        )
        return MisfitError(unknown[0], _type_of(row[unknown[0]]), None, words)
    for field in schema:
        value = row.get(field.name)
        if error := unknown_key(field.name, value, field.type) or _unfit(value, field):
            return error
    return None


def unknown_key(name: str, value: Any, kind: pa.DataType) -> MisfitError | None:
    """The error for a key inside a value that the column's type does not have, and would drop; None where there is none."""
    if pa.types.is_list(kind) and isinstance(value, list) and pa.types.is_nested(kind.value_type):
        return next(filter(None, (unknown_key(f"{name}[]", inner, kind.value_type) for inner in value)), None)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for key, inner in value.items():
            if kind.get_field_index(key) < 0:
                words = f"key {key!r} of column {name!r} is not in the schema ({kind})"
                return MisfitError(name, _type_of(inner), None, words)
            if error := unknown_key(f"{name}.{key}", inner, kind.field(key).type):
                return error
    return None


def _unfit(value: Any, field: pa.Field) -> MisfitError | None:
    kind, wanted = field.type, type_name(field.type)
    if type(value) is _HELD_AS.get(kind.id) and not (_is_long(value) or _is_half(value)):
        return None
    with suppress(*UNFIT):
        as_column([value], kind)
        return None if field.nullable or value is not None else MisfitError(field.name, "null", f"{wanted} not null")
    if pa.types.is_null(kind) and (failure := unheld(field.name, [value])) is not None:
        return failure
    found, why, type_asked = _cause(value, kind)
    if pa.types.is_null(kind) and type_asked and not why:
        why = f"it was null in the first {SAMPLE_ROWS:,} rows, or as many as there were"
    return MisfitError(field.name, found, wanted, why, asked=type_asked)


def _cause(value: Any, kind: pa.DataType) -> tuple[str, str, str]:
    """Why a value does not fit a type: what it is, more words, and the type that would hold it, as users write it."""
    if type(value) is int and pa.types.is_floating(kind):
        return f"the integer {value}, which it would round,", "", wider_asked(pa.int64(), kind)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return "an integer", f"{value:,} is beyond 64 bits", "'json'"
    if type(value) is int and value >= 2**63 and pa.types.is_integer(kind):
        return "an integer", f"{value:,} is beyond {kind}", wider_asked(pa.uint64(), kind)
    if _is_half(value):
        why = "it was cut within a character; on_error='skip' leaves such rows out"
        return "text with half a surrogate pair", why, "'json'"
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        return "a tensor of bfloat16", NO_BFLOAT16, ""
    if getattr(value, "requires_grad", False):
        return "a tensor that needs gradients", "return tensor.detach()", ""
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array", _MASKED, ""
    if isinstance(value, set | frozenset):
        return "a set", NO_ORDER, ""
    if _lists_arrays(value):
        return "a list of arrays", _LISTED, ""
    found = _type_of(value, kind)
    odd = ""
    if isinstance(value, dict | list):
        try:
            json_of([value])
        except (pa.ArrowInvalid, NestedError) as error:
            odd = str(error)
    if has_objects([value]) and not any_part(kind, pa.types.is_struct):
        return "an object", odd, "" if odd else "'json'"
    if isinstance(value, list) and found.endswith(_UNHELD) and not odd:
        whole = _unsigned(value) is not None
        return (
            found,
            "no type of 64 bits has all its integers" if whole else "its values are of several kinds",
            "'json'",
        )
    if pa.types.is_null(kind):
        return found, "", _AS_WRITTEN.get(type(value), "")
    with suppress(*UNFIT):
        return found, "", wider_asked(as_column([value]).type, kind)
    return found, "", ""


def _is_half(value: Any) -> bool:
    return type(value) is str and not value.isascii() and bool(re.search(_HALF_PAIR, value))


def _is_long(value: Any) -> bool:
    return type(value) is int and value.bit_length() > 63


_HELD_AS: Final = {pa.int64().id: int, pa.float64().id: float, pa.bool_().id: bool, pa.string().id: str}
"""The types that have all values of a type of Python, but for integers of more than 64 bits and half a surrogate pair."""
_OWN: Final = {int: "int64", float: "double", bool: "bool", str: "string"}
_HALF_PAIR: Final = r"[\ud800-\udfff]"
_UNHELD: Final = "that no column can hold"
_HELD: Final = "give text, bytes, numbers, dates, arrays, lists of these, or dicts of these"
_AS_WRITTEN: Final = {
    str: "pa.string()",
    int: "pa.int64()",
    float: "pa.float64()",
    bool: "pa.bool_()",
    bytes: "pa.binary()",
}


_MASKED: Final = "a column has no masks: return array.filled(value), and the mask as a column of its own"
_LISTED: Final = (
    "arrays of several dimensions in a list have no type: return np.stack or np.concatenate of them, and their sizes as a "
    "column of their own"
)
NO_BFLOAT16: Final = (
    "columns have no such type: return tensor.float(), which changes no value, and ask batches for "
    "dtypes={name: 'bfloat16'}"
)


def rows_rounded(block: pa.RecordBatch) -> NDArray[np.int64]:
    """The rows that have floats so large that an integer may have been rounded to them, int64 (n,)."""
    found = np.zeros(block.num_rows, bool)
    for array in block.columns:
        found |= _may_be_rounded(array)
    return np.flatnonzero(found)


def may_be_rounded(array: pa.Array) -> bool:
    """Whether a column has such floats."""
    return bool(_may_be_rounded(array).any())


def _may_be_rounded(array: pa.Array) -> NDArray[np.bool_]:
    kind, found = array.type, np.zeros(len(array), bool)
    if is_list(kind):
        inside = _may_be_rounded(array.flatten())
        if inside.any():
            found[numpy_of(pc.list_parent_indices(array))[inside]] = True
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            found |= _may_be_rounded(part)
    elif pa.types.is_floating(kind):
        values = numpy_of(array.fill_null(0) if array.null_count else array)
        found = np.abs(values) >= 2 ** (np.finfo(values.dtype).nmant + 1)
    return found


def has_floats(kind: pa.DataType) -> bool:
    """Whether a type is floats, or has floats inside."""
    return any_part(kind, pa.types.is_floating)


def _rounds(own: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow would make integers of floats."""
    if pa.types.is_integer(kind):
        return bool(pa.types.is_floating(own))
    if pa.types.is_list(kind) and pa.types.is_list(own):
        return _rounds(own.value_type, kind.value_type)
    if pa.types.is_struct(kind) and pa.types.is_struct(own):
        return any(_rounds(one.type, kind.field(one.name).type) for one in own)
    return False


def _type_of(value: Any, kind: pa.DataType = JSON) -> str:
    """The type of a value in words, beside one that it does not fit."""
    if type(value) in _OWN and not (_is_long(value) or _is_half(value)):
        return _OWN[type(value)]
    try:
        return type_name((_as_structs([value]) if any_part(kind, pa.types.is_struct) else as_column([value])).type)
    except UNFIT:
        return f"{type(value).__name__} {_UNHELD}"
