"""A format, and its reader: how the bytes of a shard become rows, from any position on, each with the position after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import SKIPPED, OnError, count, skipped
from brimful.plan.errors import DataError, StageError, StateError, logger
from brimful.sources.bytes import Bytes
from brimful.tables.blocks import Block, Sample, concat
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import with_column
from brimful.tables.schema import MisfitError, conform_rows

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)

Errors: TypeAlias = tuple[type[Exception], ...]
Position: TypeAlias = tuple[int, ...]
"""A place in a shard, before a record: a few integers, as many as its format needs. The first says how much of the shard lies
before it, as a rule in bytes (of the decompressed shard): blocks are cut by it. The last says how many units (lines, rows) lie
before it: a record may have several."""


class PlacedRows(NamedTuple):
    """Rows of a shard, and the position after each, int64 (n, k).

    Args:
        ends: where stages have run over the rows: how many rows of the block they have become up to each of them, int64 (n,);
            None: one each.
        skipped: how many bad records lie between each row and the one before it, int64 (n,); None: nowhere any. A resume at a
            row has those after it read again, so that they are counted when their row is taken.
    """

    block: Block
    positions: NDArray[np.int64]
    ends: NDArray[np.int64] | None = None
    skipped: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    @property
    def num_skipped(self) -> int:
        return 0 if self.skipped is None else int(self.skipped.sum())

    def split(self, rows: int) -> tuple[PlacedRows, PlacedRows]:
        """The first of them, and the others."""
        if self.ends is None:
            cut, first, rest = rows, None, None
        else:
            cut = int(self.ends[rows - 1]) if rows else 0
            first, rest = self.ends[:rows], self.ends[rows:] - cut
        block, positions, skipped = self.block, self.positions, self.skipped
        bad = (None, None) if skipped is None else (skipped[:rows], skipped[rows:])
        return (
            PlacedRows(block.slice(0, cut), positions[:rows], first, bad[0]),
            PlacedRows(block.slice(cut), positions[rows:], rest, bad[1]),
        )

    def then(self, more: PlacedRows) -> PlacedRows:
        """These and those after them."""
        if not self.num_rows:
            return more
        ends = None
        if self.ends is not None and more.ends is not None:
            ends = np.concatenate((self.ends, more.ends + self.block.num_rows))
        positions = np.concatenate((self.positions, more.positions)) if more.num_rows else self.positions
        skipped = None
        if self.skipped is not None or more.skipped is not None:
            parts = (np.zeros(one.num_rows, np.int64) if one.skipped is None else one.skipped for one in (self, more))
            skipped = np.concatenate([*parts])
        return PlacedRows(concat([self.block, more.block]), positions, ends, skipped)


class Wanted(NamedTuple):
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


Piece: TypeAlias = tuple[Parsed, NDArray[np.int64]]
"""Some records, and the position after each of them, int64 (n, k)."""


class ShardReader(ABC):
    """Abstract: reads rows from a position on. A bad record is an error after the rows before it, or is skipped."""

    def __init__(self, file: Bytes, wanted: Wanted) -> None:
        self.at: Position = wanted.at
        self._file, self._wanted = file, wanted
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

    def read(self) -> PlacedRows | None:
        """The next rows, perhaps none; None at the end, and after an error."""
        return next(self._read, None)

    def _placed(self) -> Generator[PlacedRows, None, None]:
        bad_before = 0  # the next row
        try:
            for parsed, positions in self.pieces():
                records, end = parsed.records, len(positions)
                failure: Exception | None = None
                before = np.concatenate((self.at[-1:], positions[:-1, -1]))
                stops = self._wanted.on_error == "raise" or bool(parsed.errors and self._changed())
                left_out = []
                for record, message in parsed.errors:
                    bad = DataError(f"{self._wanted.place(int(before[record]))}: {message}")
                    if stops:
                        failure, records, end = bad, records[records < record], record
                        break
                    logger.warning(SKIPPED, bad)
                    left_out.append(record)
                bad_rows = None
                if left_out or (bad_before and len(records)):
                    until = np.searchsorted(left_out, records) + bad_before
                    bad_rows = np.diff(until, prepend=0)
                    bad_before += len(left_out) - int(bad_rows.sum())
                origin = origins(f"shard {self._wanted.name}", before[records] + 1, self._wanted.unit)
                block = with_column(parsed.block.slice(0, len(records)), ORIGIN, origin)
                self.at = tuple(positions[end - 1].tolist()) if end else self.at
                yield PlacedRows(block, positions[records], skipped=bad_rows)
                if failure is not None:
                    raise failure
        except (DataError, StageError) as error:
            found = self._changed() or error
            if self._wanted.on_error == "raise":
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
        return self._wanted.place(self.at[-1])

    def located(self, error: Exception) -> Exception:
        """An error of reading the file, with the place. A fault of the store, which says nothing about the data, is no
        DataError: it is never skipped."""
        if isinstance(error, DataError | StateError | TimeoutError):
            return type(error)(f"{self.place()}: {error}")
        return OSError(f"{self.place()}: cannot be read on: {type(error).__name__}: {error}")


class Format(ABC):
    """Abstract: one kind of shard. A file of its own each, and an entry in `formats.FORMATS`.

    Args:
        name: what `format=` calls it.
        extensions: of the shards that are of it where `format="auto"`.
        compressed: whether a shard may be compressed as a whole (.gz and so on): then it is read forward only.
        unit: what a record is called in messages.
        start: the position before the first row.
        schema: that of the rows of every shard; None: it is looked for in the first shard that has rows.
    """

    name: str
    extensions: tuple[str, ...] = ()
    compressed: bool = True
    unit: str
    start: Position = (0, 0)
    schema: pa.Schema | None = None

    @abstractmethod
    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        """Refuses what a user has set and does not apply.

        Raises:
            ValueError: with what does not.
        """

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
    def open(self, file: Bytes, wanted: Wanted) -> ShardReader:
        """The rows from a position on. Called in the thread that reads; nothing is read before the reader is asked."""


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


def bisected(
    numbers: Any, parse: Callable[[Any], R], refused: tuple[type[E], ...], on_error: OnError = "skip"
) -> tuple[list[R], dict[int, E]]:
    """The results of `parse` for records by their numbers, in order, in as few parts as it takes; and the errors of the records
    that it refuses alone.

    Price: 2 log2(n) calls of `parse` for one bad record among n.

    Args:
        numbers: a list or an array.
        refused: the errors of `parse` where a record is bad.
        on_error: "raise": nothing is parsed after the first one that is refused.

    >>> bisected([3, 0, 5], lambda part: [60 // number for number in part], (ZeroDivisionError,))
    ([[20], [12]], {0: ZeroDivisionError('integer division or modulo by zero')})
    """
    results: list[R] = []
    errors: dict[int, E] = {}
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


def halved(
    records: Mapping[int, T],
    schema: pa.Schema,
    parse: Callable[[Sequence[T]], Block],
    refused: Errors,
    reason: Callable[[T, Any], str],
    known: Callable[[int, T], str | None],
    on_error: OnError,
) -> Parsed:
    """The rows of records by their numbers, in order, and why others gave none; "raise": up to the first that gives none.

    Args:
        schema: of the rows.
        refused: the errors of `parse` where it refuses a record.
        reason: why a record is refused that stands alone, by its error.
        known: why the record of a number is bad, where that needs no `parse`.
    """
    unknown: list[int] = []
    errors: dict[int, str] = {}
    for number, record in records.items():
        if (why := known(number, record)) is None:
            unknown.append(number)
        else:
            errors[number] = why
            if on_error == "raise":
                break
    blocks, found = bisected(unknown, lambda part: parse([records[number] for number in part]), refused, on_error)
    errors |= {number: reason(records[number], error) for number, error in found.items()}
    end = min(errors) if errors and on_error == "raise" else len(records) and max(records) + 1
    good = [number for number in unknown if number not in errors and number < end]
    rows = concat(blocks) if schema.names else conform_rows([{}] * len(good), schema)
    return Parsed(rows, np.array(good, dtype=np.int64), sorted(errors.items()))


def parsed_rows(items: Sequence[Sample | str], wanted: Wanted) -> Parsed:
    """The rows of samples, some of which are the reason why there is none."""

    def parse(samples: Sequence[Any]) -> Block:
        return conform_rows(samples, wanted.schema, extra="raise" if wanted.closed else "drop")

    def why_none(_: int, item: Sample | str) -> str | None:
        return item if isinstance(item, str) else None

    every = dict(enumerate(items))
    return halved(
        every, wanted.schema, parse, (MisfitError,), lambda _, error: str(error.told()), why_none, wanted.on_error
    )
