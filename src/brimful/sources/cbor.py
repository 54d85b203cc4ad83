"""CBOR to rows: items one after the other (RFC 8742), each a map."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from types import NoneType
from typing import Any, Final, TypeAlias, final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError
from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import Bytes
from brimful.sources.format import BAD_RECORDS, Format, ReadRequest, SampleParser, ShardReader, good_rows
from brimful.sources.forward import BUFFER_BYTES, RECORD_BYTES, Forward, ForwardReader, Records
from brimful.tables.blocks import Sample
from brimful.tables.schema import SAMPLE_ROWS, infer

_SCALARS: Final = frozenset({str, bytes, int, float, bool, NoneType, date})
_SHARED: Final = (28, 29)
"""Tags of values that stand in several places, or inside of themselves."""
_SHARED_VALUE: Final = object()
_DAMAGED: Final = "the shard is damaged, and nothing after this can be found"


@final
class Cbor(Format):
    """Maps whose keys are strings: each a row. Needs cbor2 (the extra `cbor`).

    Byte strings are binary, times (tags 0 and 1) timestamps in UTC, days (tags 100 and 1004) dates, undefined is null. What else
    has a tag is no value of a row. An item that cbor2 refuses, or that breaks off, ends the shard.

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
    """The items that end within the data, up to the first that cbor2 refuses; the data begin with an item.

    Raises:
        DataError: cbor2 refuses the first.
    """
    from cbor2 import CBORDecodeEOF, CBORDecoder

    items: list[Item] = []
    ends: list[int] = []
    bad = place = 0
    file = io.BytesIO(data)
    decoder = CBORDecoder(file, allow_duplicate_keys=False, semantic_decoders=dict.fromkeys(_SHARED, _shared))
    while place < len(data) and bad < BAD_RECORDS:  # which may be the end of it
        try:
            value = decoder.decode()
        except CBORDecodeEOF:
            break
        except Exception as error:
            if ends:  # first what lies before it
                break
            why = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            raise DataError(f"{why} at byte {offset + place:,}; {_DAMAGED}") from error
        if file.tell() - place > RECORD_BYTES:
            break
        try:
            items.append(_sample(value))
        except DataError as error:
            items.append(str(error))
            bad += 1
        place = file.tell()
        ends.append(place)
    return Records(offset, items, np.array(ends, dtype=np.int64), np.ones(len(ends), dtype=np.int64))


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
