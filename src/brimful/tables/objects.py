"""Objects stay as they were written: a column of them is JSON text, of Arrow's own type for it.

A struct would give every row the keys of all, make floats of integers and refuse what differs from row to row. The text says
which keys there are, in which order, and what is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from types import NoneType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

JSON: Final[pa.DataType] = pa.json_()
"""The type of a column of objects. It travels with the column everywhere, as no mark on a field would; files have it, too."""
_SCALARS: Final = frozenset({str, int, bool, NoneType})
_DECODER: Final = msgspec.json.Decoder()
_UNREAD: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec says of NaN, half a surrogate pair, 1e400, and of what is no JSON."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PLAIN: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


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
    values: list[Any] = array.to_pylist()
    if not is_json(array.type):
        return [_said(value, array.type) for value in values] if _holds_json(array.type) else values
    try:
        return [None if value is None else _DECODER.decode(value) for value in values]
    except _UNREAD:
        return [_said(value, array.type) for value in values]


def _said(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if is_json(kind):
        return decoded(value)
    if isinstance(value, dict):
        return {name: _said(one, kind.field(name).type) for name, one in value.items()}
    return [_said(one, kind.value_type) for one in value] if isinstance(value, list) else value


def _holds_json(kind: pa.DataType) -> bool:
    return is_json(kind) or any(_holds_json(kind.field(number).type) for number in range(kind.num_fields))


# -- objects become JSON -------------------------------------------------------------------------------------------------


def has_objects(values: Iterable[Any]) -> bool:
    """Whether some of the values are objects, or lists with objects in them.

    >>> has_objects([[1, 2], None]), has_objects([[[{"a": 1}]]])
    (False, True)
    """
    return any(type(value) is dict or (type(value) is list and _holds_objects(value)) for value in values)


def _holds_objects(values: list[Any]) -> bool:
    kinds = {*map(type, values)}
    return dict in kinds or (list in kinds and has_objects(values))


def json_of(values: Sequence[Any]) -> pa.Array:
    """Values as a column of JSON.

    Raises:
        pa.ArrowInvalid: JSON would not give one of them back as it is; with the path of what is in the way.

    >>> json_of([{"b": 2, "a": [None, 1.0]}, None, "x"]).to_pylist()
    ['{"b":2,"a":[null,1.0]}', None, '"x"']
    """
    try:
        if odd := next(filter(None, map(_odd, values)), None):
            raise pa.ArrowInvalid(f"JSON has no equal for {odd}")
        texts = [None if value is None else _ENCODER.encode(value) for value in values]
    except RecursionError:
        raise pa.ArrowInvalid("JSON has no equal for what is nested so deeply, or holds itself") from None
    try:
        storage = pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half a surrogate pair
        texts = [None if value is None else json.dumps(value) for value in values]
        storage = pa.array(texts, pa.string())
    if isinstance(storage, pa.ChunkedArray):
        return pa.array(texts, pa.json_(pa.large_string()))
    return pa.ExtensionArray.from_storage(JSON, storage)


def _odd(value: Any, path: str = "") -> str:
    """What of a value `json.loads(json.dumps(value))` would change or refuse, in words; "" where nothing is."""
    kind = type(value)
    if kind in _SCALARS or (kind is float and isfinite(value)):
        return ""
    if kind is list:
        return next(filter(None, (_odd(one, f"{path}[{at}]") for at, one in enumerate(value))), "")
    if kind is dict:
        if unnamed := [key for key in value if type(key) is not str]:
            return f"the key {unnamed[0]!r}{_at(path)}"
        return next(filter(None, (_odd(one, f"{path}.{key}") for key, one in value.items())), "")
    return f"{value if kind is float else f'a {kind.__name__}'}{_at(path)}"


def _at(path: str) -> str:
    return f" at {path.removeprefix('.')}" if path else ""


# -- other columns become JSON -------------------------------------------------------------------------------------------


def can_be_json(kind: pa.DataType) -> bool:
    """Whether all values of a type can be written as JSON and read again as they are: but for the key that a struct has more."""
    if is_json(kind) or any(test(kind) for test in (*_PLAIN, *_TEXT)):
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
