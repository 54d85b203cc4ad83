"""Samples from any iterable that gives the same ones each time it is iterated, and from tables that `datasets` streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import GEN_CREATED, getgeneratorstate
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from brimful.core.facts import Facts, following
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state
from brimful.plan.errors import StageError, StateError, name_of
from brimful.rows.buffer import check_rows
from brimful.sources.data_libraries import in_epoch, rows_of, stored, tables_of
from brimful.tables.blocks import Block, Sample, as_sample, concat, from_samples, rows_at
from brimful.tables.checksums import checksums, in_state
from brimful.tables.learnt import FirstCalls, Learnt, known_by, learn_schema, schema_of
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import EMPTY, with_column
from brimful.tables.schema import OF_RESULTS, SAMPLE_ROWS, MisfitError, conform, conform_rows, settled, types_of, united

ROWS: Final = 256


@dataclass(frozen=True)
class FromAnew(Stage[Block]):
    """Abstract: rows of an object of the user's, which is read from its start for each epoch and each resume. All rows have the
    types of the first ones.

    State: {"epoch", "done": rows handed on, "last": rows before the last block, "crc": its checksums}; a resume reads all those
    rows again, and compares the last block.
    """

    verb = "from_iterable"

    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, **known_by(self))

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "done": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, done, first, saved = at["epoch"], at["done"], at.get("last", 0), at.get("crc", [])
        schema = self.learnt.known(run)
        if schema is None and (epoch or done):
            schema = schema_of(self, run)  # for which the user's object is told of epoch 0
        parts = self.parts(epoch, first, done)
        if schema is None:
            schema, _, parts = self._typed(parts)
            self.learnt.keep(run, schema)
        if done:
            last = list(islice(parts, self.count(done - first)))
            if failure := next((one for one in last if isinstance(one, Exception)), None):
                raise failure
            block = self.block(last, first, schema) if last else EMPTY
            if first + block.num_rows < done:
                raise _fewer(first + block.num_rows, done)
            check_rows(run, self, checksums(block), saved, f"row {first:,}")
        following = next(parts, None)
        if following is None:
            yield EMPTY, END
        while following is not None:
            if isinstance(following, Exception):
                raise following
            some = [following, *islice(parts, self.count(min(rows_at(done), ROWS)) - 1)]
            following = some.pop() if isinstance(some[-1], Exception) else next(parts, None)
            block = self.block(some, done, schema)
            first, done = done, done + block.num_rows
            state = {"epoch": epoch, "done": done, "last": first, "crc": in_state(checksums(block))}
            yield block, END if following is None else state

    def first_types(self, epoch: int) -> pa.Schema:
        return self._typed(self.parts(epoch, 0, 0)).schema

    def _typed(self, parts: Iterator[Any]) -> FirstCalls[Any]:
        return learn_schema(parts, lambda one: None if isinstance(one, Exception) else self.rows(one), self.types_of)

    @abstractmethod
    def parts(self, epoch: int, first: int, done: int) -> Iterator[Any]:
        """What is read in an epoch after the `first` rows, in parts; where that fails, the last thing that comes is a StageError.

        Raises:
            StateError: there are fewer rows; the state was saved after `done`.
        """

    @abstractmethod
    def count(self, rows: int) -> int:
        """How many parts make a block of so many rows."""

    @abstractmethod
    def rows(self, part: Any) -> Any:
        """The rows of a part."""

    @abstractmethod
    def types_of(self, given: Sequence[Any]) -> tuple[pa.Schema, bool]:
        """The types of the rows of some parts, and whether they are complete: see `schema.types_of`."""

    @abstractmethod
    def block(self, parts: Sequence[Any], first: int, schema: pa.Schema) -> Block:
        """A block of some parts, in the types of a schema; `first`: the number of its first row."""


@dataclass(frozen=True)
class FromIterable(FromAnew):
    """The samples of an iterable, in the types of its first 32, or up to 1,000 while a column is null or absent."""

    iterable: Iterable[Sample | str] | Callable[[], Iterable[Sample | str]] = not_in_state()

    def __post_init__(self) -> None:
        if isinstance(self.iterable, Iterator):
            raise _one_shot(self.iterable, "pass the function that makes it, from_iterable(generate), or")
        if not (isinstance(self.iterable, Iterable) or callable(self.iterable)):
            raise TypeError(
                f"from_iterable takes an iterable, or a function that returns one (got {type(self.iterable).__name__})"
            )

    def parts(self, epoch: int, first: int, done: int) -> Iterator[Any]:
        rows = self._begin(epoch)
        skipped = sum(1 for _ in islice(rows, first))
        if skipped < first:
            raise _fewer(skipped, done)
        return drawn(rows, "from_iterable", first)

    def count(self, rows: int) -> int:
        return rows

    def rows(self, part: Any) -> Any:
        return [part]

    def types_of(self, given: Sequence[Any]) -> tuple[pa.Schema, bool]:
        return types_of(list(chain.from_iterable(given)))

    def block(self, parts: Sequence[Any], first: int, schema: pa.Schema) -> Block:
        return numbered(parts, "from_iterable", first, schema)

    def _begin(self, epoch: int) -> Iterator[Any]:
        if isinstance(self.iterable, Iterable):
            return iter(in_epoch(self.iterable, epoch, rows_of))
        made = in_epoch(self.iterable(), epoch)
        if not isinstance(made, Iterable):
            raise TypeError(f"{name_of(self.iterable)} must return an iterable of samples (got {type(made).__name__})")
        rows = iter(made)
        if isinstance(rows, Generator) and getgeneratorstate(rows) != GEN_CREATED:
            raise _one_shot(rows, "have the function make a new one at each call, or")
        return rows


def _one_shot(rows: Any, remedy: str) -> TypeError:
    return TypeError(
        f"from_iterable iterates anew for each epoch and each resume, but this {type(rows).__name__} can be read only once; "
        f"{remedy} pass an object with __iter__, such as a list"
    )


def drawn(rows: Iterable[Any], source: str, number: int) -> Iterator[Any]:
    """The samples of a user's iterable, counted from `number` on.

    Where it fails, or gives what is no sample, the last thing that comes is a StageError: so those before it count.
    """
    try:
        for row in rows:
            yield as_sample(row)
            number += 1
    except Exception as error:
        yield _failed(source, number, error)


def _fewer(found: int, done: int) -> StateError:
    return StateError(f"the iterable has {found:,} samples, but this state was saved after {done:,}")


def _failed(source: str, number: int, error: Exception) -> StageError:
    failure = StageError(f"{source} failed at row {number:,}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def numbered(samples: Sequence[Sample], source: str, first: int, schema: pa.Schema | None = None) -> Block:
    """Samples as a block, with their numbers from `first` on as their origin; `schema`: the types that they must have.

    Raises:
        StageError: a sample does not fit, or the values of a column have no common type.
    """
    try:
        block = from_samples(samples) if schema is None else conform_rows(samples, schema)
    except MisfitError as error:
        raise StageError(f"{source} failed at row {first + error.row():,}: {error.told(OF_RESULTS)}") from None
    except TypeError as error:
        last = first + len(samples) - 1
        raise StageError(f"{source} failed in rows {first:,} to {last:,}: {error}") from error
    numbers = np.arange(first, first + len(samples))
    return with_column(block, ORIGIN, origins(source.removeprefix("from_"), numbers, "row"))


# -- tables -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FromTables(FromAnew):
    """The rows of a `datasets.IterableDataset` that has them in Arrow, in the types of its first 1,000.

    A resume has the tables before those read again, and makes no row of them. (`IterableDataset.state_dict` is not used: what a
    shuffle of theirs had in its buffer would be lost.)
    """

    dataset: Any = not_in_state()

    def parts(self, epoch: int, first: int, done: int) -> Iterator[Any]:
        return _after(_drawn(self.dataset, epoch), first, done)

    def count(self, rows: int) -> int:
        return 1

    def rows(self, part: Any) -> Any:
        return part

    def types_of(self, given: Sequence[Any]) -> tuple[pa.Schema, bool]:
        return settled(united(((number, block.schema) for number, block in enumerate(given)), "from_iterable")), False

    def block(self, parts: Sequence[Any], first: int, schema: pa.Schema) -> Block:
        (block,) = parts
        try:
            rows = conform(block, schema)
        except MisfitError as error:
            words = f"{error}; the first {SAMPLE_ROWS:,} rows decide it: cast the data set to one set of features"
            raise StageError(f"from_iterable failed at row {first + error.row():,}: {words}") from error
        return with_column(rows, ORIGIN, origins("iterable", np.arange(first, first + rows.num_rows), "row"))


def _drawn(dataset: Any, epoch: int) -> Iterator[Block | Exception]:
    """The rows of a data set in an epoch, 256 at a time; where it fails, the last thing that comes is a StageError."""
    number = 0
    try:
        for table in tables_of(dataset, ROWS, epoch):
            if table.num_rows:
                yield stored(concat(table.to_batches()))
                number += table.num_rows
    except Exception as error:
        yield _failed("from_iterable", number, error)


def _after(blocks: Iterator[Block | Exception], first: int, done: int) -> Iterator[Block | Exception]:
    """The blocks after the `first` rows."""
    left = first
    while left:
        block = next(blocks, None)
        if block is None:
            raise _fewer(first - left, done)
        if isinstance(block, Exception):
            return chain([block])
        if block.num_rows > left:
            return chain([block.slice(left)], blocks)
        left -= block.num_rows
    return blocks
