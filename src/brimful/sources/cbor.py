"""CBOR to rows: items one after the other (RFC 8742), each a map."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError
from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import Bytes
from brimful.sources.format import BAD_RECORDS, Format, ReadRequest, SampleParser, ShardReader, good_rows
from brimful.sources.forward import BUFFER_BYTES, RECORD_BYTES, Forward, ForwardReader, Records
from brimful.tables.blocks import Sample
from brimful.tables.schema import SAMPLE_ROWS, infer

if TYPE_CHECKING:
    from cbor2 import CBORDecoder

_SCALARS: Final = frozenset({str, bytes, int, float, bool, NoneType, date})
_SHARED: Final = (28, 29)
"""Tags of values that stand in several places, or inside of themselves."""
_SHARED_VALUE: Final = object()
_SELF_DESCRIBED: Final = 55799
"""The tag that says of what it stands before that it is CBOR, and nothing else; mostly at the beginning of a file."""
_STRINGS, _LIST, _MAP, _TAG, _SIMPLE = (2, 3), 4, 5, 6, 7
_BREAK, _NO_LENGTH = 0xFF, 31
_MOST_LEVELS: Final = 10_000
"""Of containers in containers, through which the end of an item is looked for."""
_DAMAGED: Final = "the shard is damaged, and nothing after this can be found"


@final
class Cbor(Format):
    """Maps whose keys are strings: each a row. Needs cbor2 (the extra `cbor`).

    Byte strings are binary, times (tags 0 and 1) timestamps in UTC, days (tags 100 and 1004) dates, undefined is null. What else
    has a tag is no value of a row. An item that cbor2 refuses (text that is no UTF-8, a key twice, a time that is none) is a
    bad row. One that is not well-formed, or breaks off, ends the shard.

    Price: Python, once a value. A row may hold 256 MB.
    """

    name = "cbor"
    extensions: tuple[str, ...] = (".cbor",)
    unit = "row"

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        try:
            from cbor2 import shareable_decoder  # noqa: F401  # of version 6
        except ImportError as error:
            raise ImportError(f"CBOR needs cbor2 of version 6 or later: pip install 'brimful[cbor]' ({url})") from error

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        rows = good_rows(_samples(file), SAMPLE_ROWS, on_error)
        return infer(rows, columns, where) if rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        parser = SampleParser(request.schema, request.closed, request.on_error)
        items = _items_of(file, request.at[0])
        return ForwardReader(file, request, items, lambda some: parser.rows(dict(enumerate(some.data))))


Item: TypeAlias = Sample | str
"""A sample, or the reason why an item is none."""


def _samples(file: Bytes) -> Iterator[Sample | None]:
    with suppress(DataError):
        for items in _items_of(file, 0):
            yield from (None if isinstance(item, str) else item for item in items.data)


def _items_of(file: Bytes, at: int) -> Iterator[Records[list[Item]]]:
    """The items of a file from a byte on, about 256 KB of whole ones at a time, more where one is longer.

    Raises:
        StateError: the file has no such byte.
        DataError: what follows is no whole item; or was not decompressed, or has changed.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole item before it.
    """
    ahead = Forward(file)
    if at:
        ahead.seek(at - 1)
        ahead.fill(1)
        if not ahead.cut(1) and ahead.error is None:
            raise StateError(f"there is no byte {at:,}, where this state goes on: the shard was edited")
    while (items := _next_items(ahead)) is not None:
        yield items


def _next_items(ahead: Forward) -> Records[list[Item]] | None:
    for size, last in ahead.growing(BUFFER_BYTES):
        items = _items(ahead.offset, ahead.first(size))
        if items.data:
            ahead.cut(int(items.ends[-1]))
            return items
        if size > RECORD_BYTES:
            raise DataError(f"no item ends within {RECORD_BYTES:,} bytes of byte {ahead.offset:,}; {_DAMAGED}")
        if last:
            raise DataError(
                f"the shard ends within the row that begins at byte {ahead.offset:,}, after {size:,} bytes of it; "
                "it was not written to its end, or is damaged"
            )
    return None


def _items(offset: int, data: bytes) -> Records[list[Item]]:
    """The items that end within the data, up to the first that is not well-formed; the data begin with an item.

    Raises:
        DataError: the first is not well-formed.
    """
    from cbor2 import CBORDecodeEOF

    items: list[Item] = []
    ends: list[int] = []
    bad = place = 0
    file = io.BytesIO(data)
    decoder = _decoder(file)
    while place < len(data) and bad < BAD_RECORDS:  # which may be the end of it
        value, why = None, ""
        try:
            value = decoder.decode()
        except CBORDecodeEOF:
            break
        except Exception as error:
            why = f"{f'{error}: {error.__cause__}' if error.__cause__ else error} at byte {offset + place:,}"
            try:
                end = _end_of(data, place)
            except ValueError:
                if ends:  # first what lies before it
                    break
                raise DataError(f"{why}; {_DAMAGED}") from error
            if end is None:
                break
            file.seek(end)
            decoder = _decoder(file)  # the other has read ahead
        if file.tell() - place > RECORD_BYTES:
            break
        try:
            items.append(why or _sample(value))
        except DataError as error:
            items.append(str(error))
        bad += isinstance(items[-1], str)
        place = file.tell()
        ends.append(place)
    return Records(offset, items, np.array(ends, dtype=np.int64), np.ones(len(ends), dtype=np.int64))


def _decoder(file: io.BytesIO) -> CBORDecoder:
    from cbor2 import CBORDecoder

    semantic = {**dict.fromkeys(_SHARED, _shared), _SELF_DESCRIBED: lambda value, _: value}
    return CBORDecoder(file, allow_duplicate_keys=False, semantic_decoders=semantic)


def _end_of(data: bytes, at: int) -> int | None:
    """Where the item that begins at a byte ends, whatever its values mean (RFC 8949, appendix C); None: beyond the data.

    Raises:
        ValueError: it is not well-formed, or nested too deeply.

    >>> _end_of(bytes.fromhex("a1 61ff 9f 01 ff 00"), 0)
    6
    """
    levels = [
        (_LIST, 1)
    ]  # the type of each container, and how many items are to come; without a length -1, then -2, ...
    while levels:
        kind, left = levels.pop()
        if not left:
            continue
        if at >= len(data):
            return None
        major, info = divmod(data[at], 32)
        at += 1
        if data[at - 1] == _BREAK and left < 0 and (kind != _MAP or left % 2):
            continue
        size = 1 << info - 24 if 23 < info < 28 else 0
        if at + size > len(data):
            return None
        count = int.from_bytes(data[at : at + size], "big") if size else info
        at += size
        levels.append((kind, left - 1))
        of_string = kind in _STRINGS
        if info == _NO_LENGTH and major in (*_STRINGS, _LIST, _MAP) and not of_string:
            levels.append((major, -1))
        elif info > 27 or (of_string and major != kind) or (major == _SIMPLE and size == 1 and count < 32):
            raise ValueError(f"byte {at:,} is not well-formed")
        elif major in _STRINGS:
            at += count
        elif major in (_LIST, _MAP, _TAG):
            levels.append((_LIST, {_LIST: count, _MAP: 2 * count, _TAG: 1}[major]))
        if len(levels) > _MOST_LEVELS:
            raise ValueError(f"more than {_MOST_LEVELS:,} levels")
    return at if at <= len(data) else None


def _shared(*_: Any) -> object:
    """cbor2 puts this in the place of a shared value, which could contain itself."""
    return _SHARED_VALUE


def _sample(value: Any) -> Sample:
    """An item as a row.

    Raises:
        DataError: it is none.
    """
    if type(value) is not dict and value is not _SHARED_VALUE:
        raise DataError(f"a row must be a map (got {type(value).__name__})")
    sample: Sample = _plain(value)
    return sample


def _plain(value: Any) -> Any:
    """A value as Arrow takes it."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return value if _SCALARS.issuperset(map(type, value)) else [_plain(inner) for inner in value]
    if kind is dict:
        if odd := [key for key in value if type(key) is not str]:
            raise DataError(f"keys must be strings (got {odd[0]!r})")
        return {key: _plain(inner) for key, inner in value.items()}
    if kind is datetime:
        try:
            return value.astimezone(UTC)
        except OverflowError as error:
            raise DataError(f"{value} is beyond the times that there are in UTC") from error
    if value is _SHARED_VALUE:
        raise DataError("values that stand in several places cannot be taken")
    from cbor2 import undefined

    if value is undefined:
        return None
    raise DataError(
        f"a {kind.__name__} is no value of a row; write strings, bytes, numbers, times, lists and maps of them"
    )
