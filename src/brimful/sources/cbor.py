"""CBOR to rows: items one after the other (RFC 8742), each a map."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from itertools import islice
from types import NoneType
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block, Sample
from brimful.blocks.schema import SAMPLE_ROWS, block_of, fitting, infer, misfit
from brimful.core.errors import DataError, StateError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format
from brimful.sources.forward import Forward
from brimful.sources.halved import halved
from brimful.sources.lines import BUFFER_BYTES
from brimful.sources.reader import Parsed, Reader, Wanted

ITEM_BYTES: Final = 1 << 26
"""An item is not longer: so much is read, and held, for the end of one whose length is damaged."""
_SCALARS: Final = frozenset({str, bytes, int, float, bool, NoneType, date})
_SHARED: Final = (28, 29)
"""Tags of values that stand in several places, or inside of themselves."""
_DAMAGED: Final = "the shard is damaged, and nothing after this can be found"


@final
class Cbor(Format):
    """Maps whose keys are strings: each a row. Needs cbor2 (the extra `cbor`).

    Byte strings are binary, times (tags 0 and 1) timestamps in UTC, days (tags 100 and 1004) dates, undefined is null. What else
    has a tag is no value of a row. An item that is damaged, or breaks off, ends the shard.

    Price: Python, once a value. A row may hold 64 MB.
    """

    name = "cbor"
    extensions = (".cbor",)
    unit = "row"
    schema = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        try:
            from cbor2 import shareable_decoder  # noqa: F401  # of version 6
        except ImportError as error:
            raise ImportError(f"CBOR needs cbor2 of version 6 or later: pip install 'brimful[cbor]' ({url})") from error

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
        rows = list(islice(_good_rows(file), SAMPLE_ROWS))
        return infer(rows, columns, where) if rows else None

    def open(self, file: Bytes, wanted: Wanted) -> Reader:
        return CborReader(file, wanted)


def _good_rows(file: Bytes) -> Iterator[Sample]:
    items = ItemReader(file, 0)
    with suppress(DataError):
        while (more := items.read()) is not None:
            yield from more.samples.values()


class Items(NamedTuple):
    """Whole items: the offset of the first, where each ends, the samples by their numbers, and why others are none."""

    offset: int
    ends: list[int]
    samples: dict[int, Sample]
    errors: dict[int, str]


class CborReader(Reader):
    """The rows of one shard. Position: [byte, row]."""

    unit = "row"

    def __init__(self, file: Bytes, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._items = ItemReader(file, wanted.at[0])
        self._schema, self._closed = wanted.schema, wanted.closed

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        try:
            items = self._items.read()
        except Exception as error:
            raise self.located(error) from error.__cause__ or error
        if items is None:
            return None
        samples = items.samples if self._closed else {n: self._chosen(one) for n, one in items.samples.items()}
        ends = items.offset + np.array(items.ends)
        positions = np.column_stack((ends, self.at[-1] + 1 + np.arange(len(ends))))
        return halved(samples, self._schema, self._block, self._reason, items.errors), positions

    def close(self) -> None:
        self._items.close()

    def _chosen(self, sample: Sample) -> Sample:
        return {name: sample[name] for name in self._schema.names if name in sample}

    def _block(self, samples: Sequence[Sample]) -> Block | None:
        block = fitting(samples, self._schema) if samples else block_of([], self._schema)
        return None if block is None or _null_where_none_may_be(block) else block

    def _reason(self, sample: Sample) -> str:
        if message := misfit(sample, self._schema, self._closed):
            return message
        name = _null_where_none_may_be(block_of([sample], self._schema))
        return f"column {name!r} is null here, which the schema does not allow"


def _null_where_none_may_be(block: Block) -> str | None:
    fields = (field.name for field in block.schema if not field.nullable and block.column(field.name).null_count)
    return next(fields, None)


class ItemReader:
    """Reads a file forward from `offset`, about 256 KB of whole items at a time, more where one is longer.

    A read error (a truncated archive) is raised after the last whole item before it has been handed out.
    """

    def __init__(self, file: Bytes, offset: int) -> None:
        self._bytes, self._at = Forward(file), offset

    def read(self) -> Items | None:
        """The next items; None at the end.

        Raises:
            StateError: the file has no such offset.
            DataError: what follows is no whole item; or was not decompressed, or has changed.
            Exception: what the store raised.
        """
        self._begin()
        ahead, size = self._bytes, BUFFER_BYTES
        while True:
            ahead.fill(size + 1)
            data = bytes(ahead.data[:size])
            all_read = len(ahead.data) <= size
            last = all_read and ahead.ended
            items = _items(ahead.offset, data)
            if items.ends:
                ahead.cut(items.ends[-1])
                return items
            if last and not data:
                return None
            if len(data) > ITEM_BYTES:
                raise DataError(f"no item ends within {ITEM_BYTES:,} bytes of byte {ahead.offset:,}; {_DAMAGED}")
            if all_read and ahead.error is not None:
                raise ahead.error
            if last:
                raise DataError(
                    f"the shard ends within the row that begins at byte {ahead.offset:,}, after {len(data):,} bytes of it; "
                    "it was not written to its end, or is damaged"
                )
            size *= 2

    def close(self) -> None:
        self._bytes.close()

    def _begin(self) -> None:
        at, self._at = self._at, 0
        if at:
            self._bytes.seek(at - 1)
            self._bytes.fill(1)
            if not self._bytes.cut(1) and self._bytes.error is None:
                raise StateError(f"there is no byte {at:,}, where this state goes on: the shard was edited")


def _items(offset: int, data: bytes) -> Items:
    """The items that end within the data, which begin with one.

    Raises:
        DataError: the first of them is no item.
    """
    from cbor2 import CBORDecodeEOF

    items = Items(offset, [], {}, {})
    file = io.BytesIO(data)
    decoder, place = _decoder(file), 0
    while place < len(data):
        value: Any = None
        why = ""
        try:
            value = decoder.decode()
            end: int | None = file.tell()
        except CBORDecodeEOF:
            break
        except Exception as error:  # of what a value means, or of how items are built
            why = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            try:
                end = item_end(data, place)
            except DataError as damage:
                if items.ends:  # first what lies before it
                    break
                raise DataError(f"{damage} at byte {offset + place:,}; {_DAMAGED}") from error
            file.seek(end or 0)
            decoder = _decoder(file)
        if end is None or end - place > ITEM_BYTES:
            break
        try:
            if why:
                raise DataError(why)
            items.samples[len(items.ends)] = _sample(value)
        except DataError as error:
            items.errors[len(items.ends)] = str(error)
        items.ends.append(end)
        place = end
    return items


def _decoder(file: io.BytesIO) -> Any:
    from cbor2 import CBORDecoder

    refuse = dict.fromkeys(_SHARED, _refuse)
    return CBORDecoder(file, allow_duplicate_keys=False, semantic_decoders=refuse)


def _refuse(*_: Any) -> Any:
    raise ValueError("values that stand in several places cannot be taken")


def _sample(value: Any) -> Sample:
    """An item as a row.

    Raises:
        DataError: it is none.
    """
    if type(value) is not dict:
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
    from cbor2 import undefined

    if value is undefined:
        return None
    raise DataError(
        f"a {kind.__name__} is no value of a row; write strings, bytes, numbers, times, lists and maps of them"
    )


# -- where an item ends --------------------------------------------------------------------------------------------------

_BYTES, _TEXT, _LIST, _MAP, _TAG, _OTHER = range(2, 8)
"""Kinds of items: the first three bits of each. (0 and 1 are integers.)"""
_UNTIL_BREAK: Final = 31


def item_end(data: bytes, place: int) -> int | None:
    """Where the item ends that begins at a place, whatever its values mean; None where the data end before it does.

    Raises:
        DataError: it is none.

    >>> item_end(bytes.fromhex("8201820203 05"), 0), item_end(bytes.fromhex("61"), 0)
    (5, None)
    """
    around = [
        (0, 1)
    ]  # of each item around this place: its kind, and how many are left in it (until a break: -1 and less)
    while around:
        kind_around, left = around.pop()
        if not left:
            continue
        if place >= len(data):
            return None
        first = data[place]
        kind, value = first >> 5, first & 31
        place += 1
        if kind == _OTHER and value == _UNTIL_BREAK:
            if left > 0 or (kind_around == _MAP and left % 2 == 0):
                raise DataError("a break where an item must be")
            continue
        around.append((kind_around, left - 1))
        if 24 <= value <= 27:
            size = 1 << (value - 24)
            if place + size > len(data):
                return None
            value = int.from_bytes(data[place : place + size], "big")
            place += size
        elif value == _UNTIL_BREAK and _BYTES <= kind <= _MAP:
            value = -1
        elif value > 27:
            raise DataError(f"0x{first:02x} begins no item")
        if (kind == _OTHER and first & 31 == 24 and value < 32) or (
            kind_around in (_BYTES, _TEXT) and (kind != kind_around or value < 0)
        ):
            raise DataError(f"0x{first:02x} begins no item here")
        if kind in (_BYTES, _TEXT) and value >= 0:
            place += value
            if place > len(data):
                return None
        elif _BYTES <= kind <= _TAG:
            around.append((kind, {_MAP: 2 * value if value > 0 else value, _TAG: 1}.get(kind, value)))
    return place
