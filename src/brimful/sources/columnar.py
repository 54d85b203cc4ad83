"""The rows of shards that hold them by columns: what Arrow decodes at once, cut into pieces that each have a position."""

from __future__ import annotations

import io
import re
import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import Bytes, PrefetchedFile
from brimful.sources.format import Errors, Format, Parsed, Piece, Position, RecordParser, ShardReader, parse_by_halves
from brimful.tables.blocks import Block
from brimful.tables.plain import inside, plain, without_extensions
from brimful.tables.ragged import EMPTY, array_of
from brimful.tables.schema import UNFIT, UNKNOWN, MisfitError, conform, fits, type_name

ROWS: Final = 4096
BUFFER_BYTES: Final = 1 << 20
"""Rows are handed on in pieces of about so many bytes."""
PIECE_BYTES: Final = 1 << 28
"""None has more than about so many, but of one row: rows may be of very unequal sizes."""
_LEAVE_OUT: Final = "leave it out by columns="


class ColumnarFormat(Format):
    """Abstract: shards that say which columns they have, and are compressed inside."""

    compressed = False
    unit = "row"
    start: Position = (0, 0, 0, 0)
    places: tuple[str, ...] = ("bytes", "part", "skip", "row")

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        try:
            found = self.columns(PrefetchedFile(file))
            _ = None if found is None else found.names  # which may be no text
        except (DataError, *DAMAGED):
            if file.failure is not None and not isinstance(file.failure, DataError):
                raise file.failure from None
            return None
        return None if found is None else schema_of(found, columns, where)

    @abstractmethod
    def columns(self, file: PrefetchedFile) -> pa.Schema | None:
        """Those that a shard says it has; None where it has no row."""


class Unit(NamedTuple):
    """Rows that are decoded at once.

    Args:
        batch: the rows, unchecked.
        place: of what holds them (a row group, a record batch).
        first: how many of its rows lie before these.
        after: the place that follows, where these are its last rows.
    """

    batch: pa.RecordBatch
    place: int
    first: int
    after: int | None


class ColumnarRows(ShardReader):
    """Abstract: reads a shard of columns. Position: [bytes, place, rows of the place before, row]; the bytes are those that
    the columns taken of the rows before have in memory."""

    @abstractmethod
    def begin(self, file: PrefetchedFile) -> pa.Schema:
        """The columns of the shard."""

    @abstractmethod
    def units(self, names: list[str], at: Position) -> Iterator[Unit | None]:
        """The rows of some columns from the place of a position on, also those of this place that lie before it; None: more
        has been read, but no row is there yet.

        Raises:
            DataError, StateError: without the place.
            Exception: Arrow's, of what is damaged.
        """

    def pieces(self) -> Iterator[Piece]:
        try:
            yield from self._all()
        except Exception as error:
            found = self._told(error)
            raise found from (error.__cause__ if found is error else error)

    def _all(self) -> Iterator[Piece]:
        schema, found = self._request.schema, self.begin(PrefetchedFile(self._file))
        names = [name for name in schema.names if name in found.names]
        checked = False
        _, place, skip, saved = self.at
        reached = not skip
        for unit in self.units(names, self.at):
            if unit is None or not unit.batch.num_rows:
                yield _nothing(self.at)
                continue
            if not checked:  # a shard without rows may have any columns
                _check_columns(found, schema, self._request.closed)
                checked = True
            rows = unit.batch.num_rows
            before = 0 if reached else skip - unit.first
            if not reached and (unit.place != place or (before >= rows and unit.after is not None)):
                break
            if before >= rows:
                yield _nothing(self.at)
                continue
            reached = True
            bad = damaged_rows(unit.batch)  # before anything is asked of it that damage would make a crash
            size = unit.batch.nbytes
            passed, number = self.at[0] - size * before // rows, self.at[-1] - before
            step = max(1, min(ROWS, rows * BUFFER_BYTES // max(1, size)))
            for first, count in _cut(unit.batch, before, step):
                piece = unit.batch.slice(first, count)
                with suppress(*UNFIT):  # of one row, which is found below
                    piece = without_extensions(piece)
                    if size > PIECE_BYTES:  # Arrow casts no slice that begins beyond 2 GiB
                        piece = piece.take(array_of(np.arange(count)))
                errors = {row - first: bad[row] for row in bad if first <= row < first + piece.num_rows}
                done = first + 1 + np.arange(piece.num_rows)
                yield (
                    ColumnParser(piece, errors, schema, self._request.on_error, self._request.inferred).parsed(),
                    _positions(unit, done, passed, size, number),
                )
        if not reached:
            raise StateError(f"this state was saved after {saved:,} rows, and the shard has fewer: it was edited")
        self._file.seek(0, io.SEEK_END)
        self._file.read(1)  # at its end a file is compared with what it was

    def _told(self, error: Exception) -> Exception:
        """The error with the place: that the file cannot be read, rather than its consequence."""
        if self._file.failure is not None:
            return self.located(self._file.failure)
        if isinstance(error, DataError | StateError) or (isinstance(error, MemoryError) and not absurd(error)):
            return self.located(error)
        if isinstance(error, NotImplementedError):
            return DataError(f"{self.place()}: cannot be read: {error}")
        if isinstance(error, DAMAGED):
            return DataError(f"{self.place()}: cannot be read on: {error}; the shard is damaged")
        return error


def _cut(batch: pa.RecordBatch, first: int, step: int) -> Iterator[tuple[int, int]]:
    """The pieces of a batch from a row on, (first row, rows): of so many rows, or of fewer where these are far larger than most.
    A column of strings cannot have 2 GiB."""
    pending = [(place, min(step, batch.num_rows - place)) for place in range(first, batch.num_rows, step)][::-1]
    while pending:
        place, count = pending.pop()
        if count > 1 and _decoded_bytes(batch.slice(place, count)) > PIECE_BYTES:
            pending += [(place + count // 2, count - count // 2), (place, count // 2)]
        else:
            yield place, count


def _decoded_bytes(piece: pa.RecordBatch) -> int:
    """About the bytes of a piece without dictionaries, of which one value may stand in many rows."""
    sizes = [
        column.dictionary.nbytes // max(1, len(column.dictionary))
        for column in piece.columns
        if _has_dictionary(column)
    ]
    return int(piece.nbytes + piece.num_rows * sum(sizes))


def _has_dictionary(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type))


DAMAGED: Final = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, struct.error)
"""Errors of Arrow, and of a look at a few bytes, over a damaged shard."""
_NO_MACHINE_HAS: Final = 1 << 46


def absurd(error: MemoryError) -> bool:
    """Whether more memory was asked for than any machine has: by a number that is damaged."""
    size = re.search(r"of size (\d+)", str(error))
    return size is not None and int(size[1]) >= _NO_MACHINE_HAS


def _nothing(at: Position) -> Piece:
    return Parsed(EMPTY, np.zeros(0, dtype=np.int64), []), np.array([at])


def _positions(unit: Unit, done: NDArray[np.int64], passed: int, size: int, number: int) -> NDArray[np.int64]:
    """Where each row of a unit ends, of which so many are `done` then."""
    places, within = np.full(len(done), unit.place), unit.first + done
    if unit.after is not None and done[-1] == unit.batch.num_rows:
        places[-1], within[-1] = unit.after, 0
    return np.column_stack((passed + size * done // unit.batch.num_rows, places, within, number + done))


# -- the columns of a shard in the types that are wanted -----------------------------------------------------------------


def _check_columns(found: pa.Schema, schema: pa.Schema, closed: bool) -> None:
    """Refuses a shard for its columns.

    Raises:
        DataError: a column is not in the schema (where this is `closed`), is there twice, or is of another kind.
    """
    for field in plain_schema(found if closed else pa.schema([field for field in found if field.name in schema.names])):
        if field.name not in schema.names:
            raise DataError(
                f"column {field.name!r} is not in the schema ({', '.join(schema.names)}). Without schema=, the first shard "
                f"decides it; {UNKNOWN}"
            )
        given, wanted = found.field(field.name).type, schema.field(field.name).type
        if not fits(field.type, wanted):
            raise DataError(MisfitError(field.name, type_name(given), type_name(wanted)).told())


@dataclass(frozen=True)
class ColumnParser(RecordParser[int]):
    """The rows of a batch of a shard, by their numbers, in the types of a schema.

    Args:
        bad: what is wrong with some of them.
        inferred: whether the schema is that of other shards: no float is rounded to it.
    """

    batch: Block
    bad: dict[int, str]
    schema: pa.Schema
    on_error: OnError
    inferred: bool
    refused: ClassVar[Errors] = (MisfitError,)

    def parsed(self) -> Parsed:
        every = range(self.batch.num_rows)
        if not self.bad:
            with suppress(MisfitError):  # of one row, which is found below
                return Parsed(self.block(every), np.array(every), [])
        return self.rows(dict(enumerate(every)))

    def block(self, records: Sequence[int]) -> Block:
        some = len(records) < self.batch.num_rows
        try:
            batch = self.batch.take(pa.array(records, pa.int64())) if some else self.batch
            return conform(batch, self.schema, exact=self.inferred)
        except MisfitError as error:
            if isinstance(error.__cause__, NotImplementedError):
                raise DataError(
                    f"column {error.column!r} is {error.found}, which cannot be read; {_LEAVE_OUT}"
                ) from error
            raise

    def known(self, record: int) -> str | None:
        return self.bad.get(record)


class LacksError(DataError):
    """A shard has not all columns wanted; `there`: those that it has."""

    def __init__(self, message: str, there: pa.Schema | None = None) -> None:
        super().__init__(message)
        self.there: pa.Schema | None = there


def schema_of(found: pa.Schema, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
    """The columns of a shard as the stages after it see them; None where it has two of a name.

    Raises:
        LacksError: it has not all of `columns`.
    """
    schema: pa.Schema | None = None
    with suppress(DataError):  # which whoever reads it will meet
        schema = plain_schema(pa.schema([field for field in found if columns is None or field.name in columns]))
    if lacking := [name for name in columns or () if name not in found.names]:
        raise LacksError(
            f"there is no column {lacking[0]!r} ({where}; columns: {', '.join(found.names)}); "
            "correct columns=, or say its type in schema=",
            schema,
        )
    return schema


def widened(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of a shard in types that have the values of those of another shard too, where there are such types. Columns
    that the first one lacks are not added, and keys of structs neither.

    >>> widened(pa.schema({"a": pa.int32(), "b": pa.null()}), pa.schema({"a": pa.int64(), "b": pa.list_(pa.int8())}))
    a: int64
    b: list<item: int8>
      child 0, item: int8
    """
    kinds = [
        _wider(field.type, other.field(field.name).type) if field.name in other.names else field.type
        for field in schema
    ]
    return pa.schema(list(zip(schema.names, kinds)))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    test: Any = pa.types
    if one == other or test.is_null(one):
        return other
    if test.is_list(one) and test.is_list(other):
        return pa.list_(_wider(one.value_type, other.value_type))
    if test.is_struct(one) and test.is_struct(other) and {*one.names} == {*other.names}:
        return pa.struct([(field.name, _wider(field.type, other.field(field.name).type)) for field in one])
    if any(
        test(one) and test(other) for test in (test.is_integer, test.is_floating, test.is_decimal, test.is_timestamp)
    ):
        with suppress(pa.ArrowException):
            both = [pa.schema([("", kind)]) for kind in (one, other)]
            return pa.unify_schemas(both, promote_options="permissive").field(0).type
    return one


def plain_schema(found: pa.Schema) -> pa.Schema:
    """The columns of a shard without what is peculiar to how they were stored.

    Raises:
        DataError: there are two of a name.

    >>> plain_schema(pa.schema([("a", pa.dictionary(pa.int32(), pa.large_string()))]))
    a: string
    """
    for place, field in enumerate(found):
        if field.name in found.names[:place]:
            raise DataError(
                f"there are two columns {field.name!r}; rename one when the shard is written, or {_LEAVE_OUT}"
            )
    return pa.schema([(field.name, plain(field.type)) for field in found])


# -- damage --------------------------------------------------------------------------------------------------------------


def damaged_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """Rows of a batch that are damaged, and why: texts that are no UTF-8, mostly.

    Raises:
        pa.ArrowException: nothing of it can be had: its parts do not fit together.
    """
    try:
        batch.validate(full=True)
        return {}
    except pa.ArrowInvalid as error:
        try:
            columns = [column.view(_bytes(column.type)) for column in batch.columns]
            pa.RecordBatch.from_arrays(columns, batch.schema.names).validate(full=True)
        except pa.ArrowException:
            raise error from None

    def validate(rows: NDArray[np.int64]) -> None:
        batch.take(array_of(rows)).validate(full=True)  # a slice would share with others what lies inside of a list

    _, wrong = parse_by_halves(np.arange(batch.num_rows), validate, (pa.ArrowInvalid,))
    return {row: str(error).removesuffix(" at string index 0") for row, error in wrong.items()}


def _bytes(kind: pa.DataType) -> pa.DataType:
    """A type with bytes in place of texts."""
    test: Any = pa.types
    if test.is_string(kind):
        return pa.binary()
    if test.is_large_string(kind):
        return pa.large_binary()
    if test.is_string_view(kind):
        return pa.binary_view()
    if test.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _bytes(kind.value_type), kind.ordered)
    return inside(kind, _bytes)
