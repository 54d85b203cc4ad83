"""CBOR to rows: items one after the other (RFC 8742), each a map."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from types import NoneType
from typing import Any, ClassVar, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block, Sample
from brimful.blocks.schema import SAMPLE_ROWS, UNFIT, block_of, fitting, infer, misfit
from brimful.core.errors import DataError, OnError, StateError
from brimful.sources.bytes import Bytes
from brimful.sources.format import BAD_RECORDS, Format, Parsed, ShardReader, Wanted, good_rows, halved
from brimful.sources.forward import RECORD_BYTES, Forward, ForwardReader
from brimful.sources.lines import BUFFER_BYTES

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
    extensions: ClassVar[tuple[str, ...]] = (".cbor",)
    unit = "row"
    schema: ClassVar[pa.Schema | None] = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        try:
            from cbor2 import shareable_decoder  # noqa: F401  # of version 6
        except ImportError as error:
            raise ImportError(f"CBOR needs cbor2 of version 6 or later: pip install 'brimful[cbor]' ({url})") from error

    def infer(
        self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError = "skip"
    ) -> pa.Schema | None:
        rows = good_rows(_rows(file), SAMPLE_ROWS, on_error)
        return infer(rows, columns, where) if rows else None

    def open(self, file: Bytes, wanted: Wanted) -> ShardReader:
        return CborReader(file, wanted)


def _rows(file: Bytes) -> Iterator[Sample | None]:
    with suppress(DataError):
        for items in _read_items(Forward(file), 0):
            yield from map(items.samples.get, range(len(items.ends)))


class Items(NamedTuple):
    """Whole items: the offset of the first, where each ends from there on, int64 (n,), the samples by their numbers, and why
    others are none."""

    offset: int
    ends: NDArray[np.int64]
    samples: dict[int, Sample]
    errors: dict[int, str]

    @property
    def units(self) -> NDArray[np.int64]:
        return np.ones(len(self.ends), dtype=np.int64)


class CborReader(ForwardReader[Items]):
    """The rows of one shard. Position: [byte, row]."""

    unit = "row"

    def __init__(self, file: Bytes, wanted: Wanted) -> None:
        super().__init__(file, wanted)
        self._items = _read_items(Forward(file), wanted.at[0])
        self._schema, self._closed, self._on_error = wanted.schema, wanted.closed, wanted.on_error

    def cut(self) -> Items | None:
        return next(self._items, None)

    def rows(self, records: Items) -> Parsed:
        samples = records.samples
        if not self._closed:
            samples = {number: self._chosen(sample) for number, sample in samples.items()}
        every: dict[int, Any] = {**dict.fromkeys(range(len(records.ends))), **samples}
        return halved(
            every,
            self._schema,
            self._block,
            UNFIT,
            self._reason,
            lambda number, _: records.errors.get(number),
            self._on_error,
        )

    def _chosen(self, sample: Sample) -> Sample:
        return {name: sample[name] for name in self._schema.names if name in sample}

    def _block(self, samples: Sequence[Sample]) -> Block:
        block = fitting(samples, self._schema) if samples else block_of([], self._schema)
        if block is None or _null_where_none_may_be(block):
            raise pa.ArrowInvalid("a sample does not fit")
        return block

    def _reason(self, sample: Sample) -> str:
        if message := misfit(sample, self._schema, self._closed):
            return message
        name = _null_where_none_may_be(block_of([sample], self._schema))
        return f"column {name!r} is null here, which the schema does not allow"


def _null_where_none_may_be(block: Block) -> str | None:
    fields = (field.name for field in block.schema if not field.nullable and block.column(field.name).null_count)
    return next(fields, None)


def _read_items(file: Forward, at: int) -> Iterator[Items]:
    """The items of a file from a byte on, about 256 KB of whole ones at a time, more where one is longer.

    Raises:
        StateError: the file has no such byte.
        DataError: what follows is no whole item; or was not decompressed, or has changed.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole item before it.
    """
    if at:
        file.seek(at - 1)
        file.fill(1)
        if not file.cut(1) and file.error is None:
            raise StateError(f"there is no byte {at:,}, where this state goes on: the shard was edited")
    while (items := _next_items(file)) is not None:
        yield items


def _next_items(file: Forward) -> Items | None:
    for size, last in file.growing(BUFFER_BYTES):
        items = _items(file.offset, file.first(size))
        if len(items.ends):
            file.cut(int(items.ends[-1]))
            return items
        if size > RECORD_BYTES:
            raise DataError(f"no item ends within {RECORD_BYTES:,} bytes of byte {file.offset:,}; {_DAMAGED}")
        if last:
            raise DataError(
                f"the shard ends within the row that begins at byte {file.offset:,}, after {size:,} bytes of it; "
                "it was not written to its end, or is damaged"
            )
    return None


def _items(offset: int, data: bytes) -> Items:
    """The items that end within the data, up to the first that cbor2 refuses; the data begin with an item.

    Raises:
        DataError: cbor2 refuses the first.
    """
    from cbor2 import CBORDecodeEOF, CBORDecoder

    samples: dict[int, Sample] = {}
    errors: dict[int, str] = {}
    ends: list[int] = []
    file = io.BytesIO(data)
    decoder = CBORDecoder(file, allow_duplicate_keys=False, semantic_decoders=dict.fromkeys(_SHARED, _shared))
    place = 0
    while place < len(data):
        try:
            value = decoder.decode()
        except CBORDecodeEOF:
            break
        except Exception as error:
            if ends:  # first what lies before it
                break
            why = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            raise DataError(f"{why} at byte {offset + place:,}; {_DAMAGED}") from error
        end = file.tell()
        if end - place > RECORD_BYTES:
            break
        try:
            samples[len(ends)] = _sample(value)
        except DataError as error:
            errors[len(ends)] = str(error)
        ends.append(end)
        place = end
        if len(errors) == BAD_RECORDS:  # which may be the end of it
            break
    return Items(offset, np.array(ends, dtype=np.int64), samples, errors)


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
