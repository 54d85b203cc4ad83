"""A format, and its reader: how the bytes of a shard become rows, from any position on, each with the position after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import SKIPPED, OnError, count, skipped
from brimful.plan.errors import DataError, StageError, StateError, logger
from brimful.sources.bytes import Bytes
from brimful.tables.blocks import Block, Sample, concat
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import EMPTY, array_of, with_column
from brimful.tables.schema import MisfitError, conform_rows

T = TypeVar("T")
R = TypeVar("R")

Errors: TypeAlias = tuple[type[Exception], ...]
Position: TypeAlias = tuple[int, ...]
"""A place in a shard, before a record: a few integers, as many as its format needs. The first says how much of the shard lies
before it, as a rule in bytes (of the decompressed shard): blocks are cut by it. The last says how many units (lines, rows) lie
before it: a record may have several."""


class RowsAt(NamedTuple):
    """Rows of a shard, and the position after each, int64 (n, k).

    Args:
        skipped: how many bad records lie between each row and the one before it, int64 (n,). A resume at a row has those after
            it read again, so that they are counted when their row is taken.
        ends: where stages have run over the rows: how many rows of the block they have become up to each of them, int64 (n,);
            None: one each.
    """

    block: Block
    positions: NDArray[np.int64]
    skipped: NDArray[np.int64]
    ends: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    def split(self, rows: int) -> tuple[RowsAt, RowsAt]:
        """The first of them, and the others."""
        if self.ends is None:
            cut, first, rest = rows, None, None
        else:
            cut = int(self.ends[rows - 1]) if rows else 0
            first, rest = self.ends[:rows], self.ends[rows:] - cut
        block, positions, skipped = self.block, self.positions, self.skipped
        return (
            RowsAt(block.slice(0, cut), positions[:rows], skipped[:rows], first),
            RowsAt(block.slice(cut), positions[rows:], skipped[rows:], rest),
        )

    def then(self, more: RowsAt) -> RowsAt:
        """These and those after them."""
        if not self.num_rows:
            return more
        ends = None
        if self.ends is not None and more.ends is not None:
            ends = np.concatenate((self.ends, more.ends + self.block.num_rows))
        positions, skipped = map(np.concatenate, zip(self[1:3], more[1:3]))
        return RowsAt(concat([self.block, more.block]), positions, skipped, ends)


def no_rows(at: Position) -> RowsAt:
    """None, before the first of a shard."""
    return RowsAt(EMPTY, np.empty((0, len(at)), np.int64), np.empty(0, np.int64))


class ReadRequest(NamedTuple):
    """The part of a shard to read.

    Args:
        name: of the shard, in messages.
        unit: what a record is called there.
        at: the position from which on.
        schema: of its rows.
        closed: whether a row may have no other columns; else these are left out.
        on_error: what a bad record leads to.
        inferred: whether the schema is that of the first rows, and not what a user asked for.
    """

    name: str
    unit: str
    at: Position
    schema: pa.Schema
    closed: bool
    on_error: OnError
    inferred: bool = False

    def place(self, before: int) -> str:
        """Where the record is that has so many units before it, in words."""
        return f"shard {self.name}, {self.unit} {before + 1:,}"


@dataclass(frozen=True)
class Parsed:
    """Rows of some records, and for each the number of its record among them, counted from 0.

    `errors`: (number, message) of the records that gave no row.
    """

    block: Block
    records: NDArray[np.int64]
    errors: list[tuple[int, str]]


def in_order(*parts: Parsed) -> Parsed:
    """The rows of records that were parsed apart, in the order of these."""
    records = np.concatenate([part.records for part in parts])
    errors = sorted(error for part in parts for error in part.errors)
    filled = [part for part in parts if len(part.records)] or [*parts[:1]]
    block = concat([part.block for part in filled])
    if len(filled) > 1:
        order = np.argsort(records)
        block, records = block.take(array_of(order)), records[order]
    return Parsed(block, records, errors)


Piece: TypeAlias = tuple[Parsed, NDArray[np.int64]]
"""Some records, and the position after each of them, int64 (n, k)."""


class ShardReader(ABC):
    """Abstract: reads rows from a position on. A bad record is an error after the rows before it, or is skipped."""

    def __init__(self, file: Bytes, request: ReadRequest) -> None:
        self.at: Position = request.at
        self._file, self._request = file, request
        self._read = self._placed()

    def close(self) -> None:
        self._read.close()
        self._file.close()

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """All records, some at a time; `at` is the position before those that come next.

        Raises:
            DataError, StageError: nothing more can be had of this shard; with the place.
        """

    def read(self) -> RowsAt | None:
        """The next rows, perhaps none; None at the end, and after an error."""
        return next(self._read, None)

    def _placed(self) -> Generator[RowsAt, None, None]:
        bad_before = 0  # the next row
        try:
            for parsed, positions in self.pieces():
                records, end = parsed.records, len(positions)
                failure: Exception | None = None
                before = np.concatenate((self.at[-1:], positions[:-1, -1]))
                stops = self._request.on_error == "raise" or bool(parsed.errors and self._changed())
                left_out: list[int] = []
                for record, message in parsed.errors:
                    bad = DataError(f"{self._request.place(int(before[record]))}: {message}")
                    if stops:
                        failure, records, end = bad, records[records < record], record
                        break
                    logger.warning(SKIPPED, bad)
                    left_out.append(record)
                bad_rows = np.zeros(len(records), np.int64)
                if left_out or bad_before:
                    bad_rows = np.diff(np.searchsorted(left_out, records) + bad_before, prepend=0)
                    bad_before += len(left_out) - int(bad_rows.sum())
                origin = origins(f"shard {self._request.name}", before[records] + 1, self._request.unit)
                block = with_column(parsed.block.slice(0, len(records)), ORIGIN, origin)
                self.at = tuple(positions[end - 1].tolist()) if end else self.at
                yield RowsAt(block, positions[records], bad_rows)
                if failure is not None:
                    raise failure
        except (DataError, StageError) as error:
            found = self._changed() or error
            if self._request.on_error == "raise":
                raise found from (error.__cause__ if found is error else error)
            skipped(type(found)(f"{found}; all that follows in this shard is left out with it"))
            count("skipped_shards", 1)
        count("skipped", bad_before)

    def _changed(self) -> Exception | None:
        """The error of a file that is not what it was: then a bad record may be made of two contents. None also where nobody
        knows: a user's function has closed the file, or its store does not answer."""
        try:
            self._file.compare()
        except DataError as error:
            return self.located(error)
        except Exception:
            return None
        return None

    def place(self) -> str:
        """Where the next record is, in words."""
        return self._request.place(self.at[-1])

    def located(self, error: Exception) -> Exception:
        """An error of reading the file, with the place. A fault of the store, which says nothing about the data, is no
        DataError: it is never skipped."""
        if isinstance(error, DataError | StateError | TimeoutError):
            return type(error)(f"{self.place()}: {error}")
        return OSError(f"{self.place()}: cannot be read on: {type(error).__name__}: {error}")


class Format(ABC):
    """Abstract: one kind of shard. A file of its own each, given to `formats.register`.

    Args:
        name: what `format=` calls it.
        extensions: of the shards that are of it where `format="auto"`.
        compressed: whether a shard may be compressed as a whole (.gz and so on): then it is read forward only.
        unit: what a record is called in messages.
        start: the position before the first row.
        places: what a state calls each number of a position.
        schema: that of the rows of every shard; None: it is looked for in the first shard that has rows.
    """

    name: str
    extensions: tuple[str, ...] = ()
    compressed: bool = True
    unit: str
    start: Position = (0, 0)
    places: tuple[str, ...] = ("byte", "line")
    schema: pa.Schema | None = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:  # noqa: B027
        """Refuses what a user has set and does not apply.

        Raises:
            ValueError: with what does not.
        """

    def by_extension(self) -> Format:
        """The format of a shard that only its extension says to be of this one."""
        return self

    @abstractmethod
    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        """The schema of a shard, as it says itself, or judged by its first rows (`schema.SAMPLE_ROWS`) without those that are
        bad, which are errors when they are read; None where it has no row.

        Args:
            on_error: "raise": no more than `BAD_RECORDS` bad ones are passed over, as nothing after them will be read.
        Raises:
            DataError: it has not all of `columns`.
        """

    @abstractmethod
    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        """The rows from a position on. Called in the thread that reads; nothing but its first bytes is read before the reader is
        asked."""


BAD_RECORDS: Final = 1_000


# -- bad records --------------------------------------------------------------------------------------------------------


def good_rows(records: Iterable[T | None], rows: int, on_error: OnError) -> list[T]:
    """The first records that are good; None stands for a bad one.

    >>> good_rows([None, 1, None, 2, 3], 2, "raise")
    [1, 2]
    """
    bad = 0
    found: list[T] = []
    for record in records:
        if record is not None:
            found.append(record)
        bad += record is None
        if len(found) == rows or (on_error == "raise" and bad == BAD_RECORDS):
            break
    return found


def parse_by_halves(
    numbers: Any, parse: Callable[[Any], R], refused: Errors, on_error: OnError = "skip"
) -> tuple[list[R], dict[int, Exception]]:
    """The results of `parse` for records by their numbers, in order, in as few parts as it takes; and the errors of the records
    that it refuses alone.

    Price: 2 log2(n) calls of `parse` for one bad record among n.

    Args:
        numbers: a list or an array.
        refused: the errors of `parse` where a record is bad.
        on_error: "raise": nothing is parsed after the first one that is refused.

    >>> parse_by_halves([3, 0, 5], lambda part: [60 // number for number in part], (ZeroDivisionError,))
    ([[20], [12]], {0: ZeroDivisionError('integer division or modulo by zero')})
    """
    results: list[R] = []
    errors: dict[int, Exception] = {}
    pending = [numbers]
    while pending:
        part = pending.pop()
        try:
            results.append(parse(part))
        except refused as error:
            if len(part) == 1:
                errors[int(part[0])] = error
                if on_error == "raise":
                    break
            elif len(part):
                pending += [part[len(part) // 2 :], part[: len(part) // 2]]
    return results, errors


class RecordParser(ABC, Generic[T]):
    """Abstract: makes rows of records, and says why one gives none. What a record gives does not depend on those around it.

    Args:
        schema: of the rows.
        on_error: "raise": nothing is parsed after the first record that gives no row.
        refused: the errors of `block` where a record is bad.
    """

    schema: pa.Schema
    on_error: OnError
    refused: ClassVar[Errors] = (pa.ArrowException, ValueError, OverflowError)

    @abstractmethod
    def block(self, records: Sequence[T]) -> Block:
        """The rows of records, one each.

        Raises:
            Exception: one of `refused`, where one of them is bad.
        """

    def reason(self, record: T, error: Exception) -> str:
        """Why a record is refused that stands alone, by its error."""
        return error.told() if isinstance(error, MisfitError) else str(error)

    def known(self, record: T) -> str | None:
        """Why a record is bad, where that is seen before `block` is asked, or would not be seen by it."""
        return None

    def doubtful(self, records: Mapping[int, T]) -> Mapping[int, str | None]:
        """The records that `block` may refuse, as far as that is cheap to see, by their numbers: so that the others need not be
        halved. Each with why it is bad; None: it is not known to be, and is parsed alone."""
        return {}

    def rows(self, records: Mapping[int, T]) -> Parsed:
        """The rows of records by their numbers, in order, and why others gave none."""
        unknown: list[int] = []
        errors: dict[int, str] = {}
        for number, record in records.items():
            if (why := self.known(record)) is None:
                unknown.append(number)
            else:
                errors[number] = why
                if self.on_error == "raise":
                    break

        def parse(part: list[int]) -> Block:
            return self.block([records[number] for number in part])

        doubtful = self.doubtful({number: records[number] for number in unknown})
        errors |= {number: why for number, why in doubtful.items() if why is not None}
        if errors and self.on_error == "raise":
            unknown = [number for number in unknown if number < min(errors)]
        numbers = [number for number in unknown if number not in doubtful]
        blocks, found = parse_by_halves(numbers, parse, self.refused, self.on_error)
        if found and self.on_error == "raise":  # nothing after it was parsed
            numbers = [number for number in numbers if number < min(found)]
        alone = [number for number in unknown if number in doubtful and number not in errors]
        more, refused = parse_by_halves(alone, parse, self.refused)
        blocks, numbers, found = blocks + more, numbers + alone, found | refused
        errors |= {number: self.reason(records[number], error) for number, error in found.items()}
        end = min(errors) if errors and self.on_error == "raise" else len(records) and max(records) + 1
        held = np.array([number for number in numbers if number not in found], dtype=np.int64)
        order = np.argsort(held)
        good = held[order]
        good = good[good < end]
        if not self.schema.names:
            return Parsed(conform_rows([{}] * len(good), self.schema), good, sorted(errors.items()))
        block = concat(blocks)
        if len(good) < len(held) or (np.diff(held) < 0).any():
            block = block.take(array_of(order[: len(good)]))
        return Parsed(block, good, sorted(errors.items()))


@final
@dataclass(frozen=True)
class SampleParser(RecordParser[Sample | str]):
    """Makes rows of samples; of a record that is none there is the reason why."""

    schema: pa.Schema
    closed: bool
    on_error: OnError
    refused: ClassVar[Errors] = (MisfitError,)

    def block(self, records: Sequence[Any]) -> Block:
        return conform_rows(records, self.schema, extra="raise" if self.closed else "drop")

    def known(self, record: Sample | str) -> str | None:
        return record if isinstance(record, str) else None
