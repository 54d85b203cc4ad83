"""Objects stay as they were written: a column of them is JSON text, of Arrow's own type for it.

A struct would give every row the keys of all, make floats of integers and refuse what differs from row to row. The text says
which keys there are, in which order, and what is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from math import isfinite
from types import NoneType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from brimful.tables.ragged import any_part, is_text, null_in, offsets_in

JSON: Final[pa.DataType] = pa.json_()
"""The type of a column of objects. It travels with the column everywhere, as no mark on a field would; files have it, too."""
_SCALARS: Final = (str, int, NoneType)
OBJECTS: Final = (dict, set, frozenset)
NO_ORDER: Final = "a set has no order, and each process would give it another: give sorted(value)"
_DECODER: Final = msgspec.json.Decoder()
_UNREAD: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec says of NaN, half a surrogate pair, 1e400, and of what is no JSON."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
MOST_LEVELS: Final = 100
"""Of structs in structs."""
_PLAIN: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)


def is_json(kind: pa.DataType) -> bool:
    """Whether a column is of JSON text that stands for objects."""
    return isinstance(kind, pa.JsonType)


def decoded(text: str | bytes) -> Any:
    """What JSON text says, exactly as `json.loads` has it. Price: .3 us for 200 bytes, a sixth of what that takes.

    Raises:
        ValueError: it is no JSON.

    >>> decoded('{"b": 2, "a": [null, 1.0]}')
    {'b': 2, 'a': [None, 1.0]}
    """
    try:
        return _DECODER.decode(text)
    except _UNREAD:
        return json.loads(text)


def values_in(array: pa.Array) -> list[Any]:
    """The values of a column as Python has them; of JSON what it says."""
    if is_json(array.type):
        with suppress(*_UNREAD):
            return _decoded(array)
    values: list[Any] = array.to_pylist()
    return [_said(value, array.type) for value in values] if any_part(array.type, is_json) else values


def _decoded(array: pa.Array) -> list[Any]:
    """What JSON says. (Python's own texts of the values would take twice as long.)"""
    if isinstance(array, pa.ChunkedArray):
        return list(chain.from_iterable(map(_decoded, array.chunks)))
    text, ends = memoryview(array.storage.buffers()[2] or b""), offsets_in(array.storage).tolist()
    if not array.null_count:
        return [_DECODER.decode(text[begin:end]) for begin, end in pairwise(ends)]
    null = null_in(array).tolist()
    return [None if no else _DECODER.decode(text[begin:end]) for no, (begin, end) in zip(null, pairwise(ends))]


def _said(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if is_json(kind):
        return decoded(value)
    if isinstance(value, dict):
        return {name: _said(one, kind.field(name).type) for name, one in value.items()}
    return [_said(one, kind.value_type) for one in value] if isinstance(value, list) else value


# -- objects become JSON -------------------------------------------------------------------------------------------------


def has_objects(values: Iterable[Any]) -> bool:
    """Whether some of the values are objects, or lists with objects in them. A set is taken for one: JSON has none.

    >>> has_objects([[1, 2], None]), has_objects([[[{"a": 1}]]])
    (False, True)
    """
    every = values if isinstance(values, list) else [*values]
    lists = False
    for kind in {*map(type, every)}:
        if issubclass(kind, OBJECTS):
            return True
        lists = lists or issubclass(kind, list)
    try:
        return lists and any(has_objects(value) for value in every if isinstance(value, list))
    except RecursionError:  # nothing else may be nested so deeply either
        return True


class NestedError(OverflowError):
    """A value holds itself, or is nested so deeply that neither Python nor Arrow can follow."""

    def __init__(self) -> None:
        super().__init__("it is nested too deeply, or holds itself")


def json_of(values: Sequence[Any], strict: bool = True) -> pa.Array:
    """Values as a column of JSON.

    Args:
        strict: JSON has no NaN and nothing infinite; else it has them as Python writes them.
    Raises:
        pa.ArrowInvalid: JSON would not give one of them back as it is; with the path of what is in the way.

    >>> json_of([{"b": 2, "a": [None, 1.0]}, None, "x"]).to_pylist()
    ['{"b":2,"a":[null,1.0]}', None, '"x"']
    """
    try:
        if odd := next(filter(None, (_odd(value, strict) for value in values)), None):
            raise pa.ArrowInvalid(f"JSON has no equal for {odd}")
        texts = [None if value is None else _ENCODER.encode(value) for value in values]
    except RecursionError:
        raise NestedError from None
    try:
        storage = pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half a surrogate pair
        texts = [None if value is None else json.dumps(value) for value in values]
        storage = pa.array(texts, pa.string())
    if isinstance(storage, pa.ChunkedArray):
        return pa.array(texts, pa.json_(pa.large_string()))
    return pa.ExtensionArray.from_storage(JSON, storage)


def refuse_nested(values: Iterable[Any]) -> None:
    """An error for what Arrow would take and may not: structs of more than MOST_LEVELS end the process, and a set has no order.

    Raises:
        NestedError, pa.ArrowInvalid: which of them.
    """
    for value in values:
        _go_through(value, MOST_LEVELS)


def _go_through(value: Any, levels: int) -> None:
    if not levels:
        raise NestedError
    if isinstance(value, set | frozenset):
        raise pa.ArrowInvalid(NO_ORDER)
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _go_through(inner, levels - 1)


def _odd(value: Any, strict: bool, path: str = "") -> str:
    """What of a value `json.loads(json.dumps(value))` would change or refuse, in words; "" where nothing is. (It makes a dict of
    each kind of dict, and so on.)"""
    if isinstance(value, _SCALARS) or (isinstance(value, float) and (not strict or isfinite(value))):
        return ""
    if isinstance(value, list):
        for at, one in enumerate(value):
            if odd := _odd(one, strict, f"{path}[{at}]"):
                return odd
        return ""
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                return f"the key {key!r}{_at(path)}"
            if odd := _odd(one, strict, f"{path}.{key}"):
                return odd
        return ""
    return f"{value if isinstance(value, float) else f'a {type(value).__name__}'}{_at(path)}"


def _at(path: str) -> str:
    return f" at {path.removeprefix('.')}" if path else ""


# -- other columns become JSON -------------------------------------------------------------------------------------------


def can_be_json(kind: pa.DataType) -> bool:
    """Whether all values of a type can be written as JSON and read again as they are: but for the key that a struct has more."""
    if is_json(kind) or is_text(kind) or any(test(kind) for test in _PLAIN):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_struct(kind):
        return all(can_be_json(field.type) for field in kind)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and can_be_json(kind.value_type)


def as_json_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as JSON of a type, but of more than 2 GiB as JSON with offsets of 64 bits. Price: none for JSON, 2 us a row for
    anything else.

    Raises:
        pa.ArrowInvalid: JSON has no equal for a value.
    """
    if not is_json(array.type):
        if not can_be_json(array.type):
            raise pa.ArrowTypeError(f"{array.type} is no JSON")
        array = json_of(array.to_pylist())
    if array.type == kind or array.nbytes >= 2**31:
        return array
    return pa.ExtensionArray.from_storage(kind, pc.cast(array.storage, kind.storage_type))
