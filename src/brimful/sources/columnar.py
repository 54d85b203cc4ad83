"""The rows of shards that hold them by columns: what Arrow decodes at once, cut into pieces that each have a position."""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.ragged import EMPTY
from brimful.core.errors import DataError, StateError
from brimful.sources.bytes import Bytes
from brimful.sources.columns import Columns, faults, schema_of
from brimful.sources.format import Format
from brimful.sources.held import Held
from brimful.sources.reader import Parsed, Position, Reader, Wanted

ROWS: Final = 4096
BUFFER_BYTES: Final = 1 << 20
"""Rows are handed on in pieces of about so many bytes."""
START: Final[Position] = (0, 0, 0, 0)


class ColumnarFormat(Format):
    """Abstract: shards that say which columns they have, and are compressed inside."""

    compressed = False
    unit = "row"
    start = START
    schema = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        pass

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
        try:
            found = self.columns(Held(file))
        except (DataError, *DAMAGED):
            if file.failure is not None and not isinstance(file.failure, DataError):
                raise file.failure from None
            return None
        return None if found is None else schema_of(found, columns, where)

    @abstractmethod
    def columns(self, file: Held) -> pa.Schema | None:
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


Piece = tuple[Parsed, NDArray[np.int64]]


class ColumnarRows(Reader):
    """Abstract: reads a shard of columns. Position: [bytes, place, rows of the place before, row]; the bytes are those that
    the columns taken of the rows before have in memory."""

    unit = "row"

    def __init__(self, file: Bytes, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._wanted, self._file = wanted, file
        self._pieces: Iterator[Piece] | None = None
        self._error: Exception | None = None

    @abstractmethod
    def begin(self, file: Held) -> pa.Schema:
        """The columns of the shard."""

    @abstractmethod
    def units(self, names: list[str], at: Position) -> Iterator[Unit | None]:
        """The rows of some columns from the place of a position on, also those of this place that lie before it; None: more
        has been read, but no row is there yet.

        Raises:
            DataError, StateError: without the place.
            Exception: Arrow's, of what is damaged.
        """

    def parse(self) -> Piece | None:
        if self._error is not None:
            raise self._error
        try:
            if self._pieces is None:
                self._pieces = self._all()
            return next(self._pieces, None)
        except Exception as error:
            self._error = self._told(error)
            if self._error is error:
                raise
            raise self._error from error

    def close(self) -> None:
        self._pieces = None
        self._file.close()

    def _all(self) -> Iterator[Piece]:
        held, (schema, closed) = Held(self._file), self._wanted[2:4]
        found = self.begin(held)
        names = [name for name in schema.names if name in found.names]
        columns: Columns | None = None
        _, place, skip, saved = self.at
        reached = not skip
        for unit in self.units(names, self.at):
            if unit is None or not unit.batch.num_rows:
                yield _nothing(self.at)
                continue
            columns = columns or Columns(found, schema, closed)  # a shard without rows may have any
            rows = unit.batch.num_rows
            before = 0 if reached else skip - unit.first
            if not reached and (unit.place != place or (before >= rows and unit.after is not None)):
                break
            if before >= rows:
                yield _nothing(self.at)
                continue
            reached = True
            bad = faults(unit.batch)  # before anything is asked of it that damage would make a crash
            size = unit.batch.nbytes
            passed, number = self.at[0] - size * before // rows, self.at[-1] - before
            step = max(1, min(ROWS, rows * BUFFER_BYTES // max(1, size)))
            for first in range(before, rows, step):
                piece = unit.batch.slice(first, step)
                errors = {row - first: bad[row] for row in bad if first <= row < first + piece.num_rows}
                done = first + 1 + np.arange(piece.num_rows)
                parsed = columns.parsed(piece, errors)
                if parsed.errors:
                    held.look()  # it may be that the file changed
                yield parsed, _positions(unit, done, passed, size, number)
        if not reached:
            raise StateError(f"the shard has not the {saved:,} rows after which this state was saved: it was edited")
        held.look()

    def _told(self, error: Exception) -> Exception:
        """What went wrong, with the place: that the file changed or cannot be read, rather than what came of it."""
        if self._file.failure is None:
            with suppress(Exception):
                Held(self._file).look()
        if self._file.failure is not None:
            return self.located(self._file.failure)
        if isinstance(error, DataError | StateError) or (isinstance(error, MemoryError) and not absurd(error)):
            return self.located(error)
        if isinstance(error, NotImplementedError):
            return DataError(f"{self.place()}: cannot be read: {error}")
        if isinstance(error, DAMAGED):
            return DataError(f"{self.place()}: cannot be read on: {error}; the shard is damaged")
        return error


DAMAGED: Final = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, struct.error)
"""What Arrow, and a look at a few bytes, raise over a damaged shard."""
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
