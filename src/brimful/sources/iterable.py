"""Samples from any iterable that gives the same ones each time it is iterated, and from tables that `datasets` streams."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import GEN_CREATED, getgeneratorstate
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from brimful.core.run import Run
from brimful.core.stage import END, State, not_in_state
from brimful.plan.errors import StageError, StateError, name_of
from brimful.rows.buffer import check_rows
from brimful.rows.functions import Typed
from brimful.sources.data_libraries import in_epoch, rows_of, stored, tables_of
from brimful.tables.blocks import Block, Sample, as_sample, concat, from_samples, rows_at
from brimful.tables.checksums import checksums, in_state
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import EMPTY, with_column
from brimful.tables.schema import (
    OF_RESULTS,
    SAMPLE_ROWS,
    MisfitError,
    as_text,
    conform,
    conform_rows,
    first_rows,
    from_text,
    infer,
    samples_in,
    settled,
    united,
)

ROWS: Final = 256


@dataclass(frozen=True)
class FromIterable(Typed):
    """The samples of an iterable, in the types of its first 32, or up to 1,000 while a column is null or absent.

    State: [epoch, rows handed on, the types as text, rows before the last block, its checksums]; a resume iterates over all those
    rows again, and compares the last block.
    """

    iterable: Iterable[Sample | str] | Callable[[], Iterable[Sample | str]] = not_in_state()

    def __post_init__(self) -> None:
        if isinstance(self.iterable, Iterator):
            raise _one_shot(self.iterable, "pass the function that makes it, from_iterable(generate), or")
        if not (isinstance(self.iterable, Iterable) or callable(self.iterable)):
            raise TypeError(
                f"from_iterable takes an iterable, or a function that returns one (got {type(self.iterable).__name__})"
            )

    def start(self, epoch: int) -> State:
        return [epoch, 0, "", 0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, done, text, first, saved = at
        if not text and (epoch or done):
            _ = self.schema  # for which the user's object is told of epoch 0
        rows = self._begin(epoch)
        skipped = sum(1 for _ in islice(rows, first))
        samples = drawn(rows, "from_iterable", first)
        schema, text, samples = _known(self, at, samples, first_rows, lambda held: infer(samples_in(held)))
        if done:
            last = list(islice(samples, done - first))
            if failure := next((one for one in last if isinstance(one, Exception)), None):
                raise failure
            if skipped + len(last) < done:
                raise _fewer(skipped + len(last), done)
            check_rows(run, self, checksums(numbered(last, "from_iterable", first, schema)), saved, f"row {first:,}")
        following = list(islice(samples, 1))
        if not following:
            yield EMPTY, END
        while following and not isinstance(following[0], Exception):
            piece = [*following, *islice(samples, min(rows_at(done), ROWS) - 1)]
            following = [piece.pop()] if isinstance(piece[-1], Exception) else list(islice(samples, 1))
            block = numbered(piece, "from_iterable", done, schema)
            first, done = done, done + block.num_rows
            yield block, [epoch, done, text, first, in_state(checksums(block))] if following else END
        for failure in following:
            raise failure

    def first_types(self) -> pa.Schema:
        return infer(samples_in(first_rows(drawn(self._begin(0), "from_iterable", 0))))

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


def _known(
    stage: Typed,
    at: State,
    rows: Iterator[Any],
    first: Callable[[Iterator[Any]], list[Any]],
    types: Callable[[list[Any]], pa.Schema],
) -> tuple[pa.Schema, str, Iterator[Any]]:
    """The types of all rows, also as text, and the rows: the types of the state, or of the first rows, of this run where it
    begins with them."""
    epoch, done, text, *_ = at
    schema = from_text(text) if text else vars(stage).get("schema")
    if schema is None and epoch == done == 0:
        held = first(rows)
        schema = vars(stage).setdefault("schema", types(held))
        rows = chain(held, rows)
    elif schema is None:
        schema = stage.schema
    return schema, text or as_text(schema), rows


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
class FromTables(Typed):
    """The rows of a `datasets.IterableDataset` that has them in Arrow, in the types of its first 1,000.

    State: [epoch, rows handed on, the types as text, rows before the last block, its checksums]; a resume has the tables before
    those read again, makes no row of them, and compares the last block. (`IterableDataset.state_dict` is not used: what a shuffle
    of theirs had in its buffer would be lost.)
    """

    verb = "from_iterable"

    dataset: Any = not_in_state()

    def start(self, epoch: int) -> State:
        return [epoch, 0, "", 0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, done, _, first, saved = at
        blocks = _after(_drawn(self.dataset, epoch), first)
        schema, text, blocks = _known(self, at, blocks, _first, _types)
        following = next(blocks, None)
        if done:
            if following is None:
                raise _fewer(first, done)
            if isinstance(following, Exception):
                raise following
            check_rows(run, self, checksums(_typed(following, schema, first)), saved, f"row {first:,}")
            following = next(blocks, None)
        if following is None:
            yield EMPTY, END
        while following is not None:
            if isinstance(following, Exception):
                raise following
            block = _typed(following, schema, done)
            first, done = done, done + block.num_rows
            following = next(blocks, None)
            yield block, END if following is None else [epoch, done, text, first, in_state(checksums(block))]

    def first_types(self) -> pa.Schema:
        return _types(_first(_drawn(self.dataset, 0)))


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


def _after(blocks: Iterator[Block | Exception], done: int) -> Iterator[Block | Exception]:
    """The blocks after so many rows."""
    left = done
    while left:
        block = next(blocks, None)
        if block is None:
            raise _fewer(done - left, done)
        if isinstance(block, Exception):
            return chain([block])
        if block.num_rows > left:
            return chain([block.slice(left)], blocks)
        left -= block.num_rows
    return blocks


def _first(blocks: Iterator[Block | Exception]) -> list[Block | Exception]:
    """Blocks that have the first 1,000 rows, or what there is."""
    held: list[Block | Exception] = []
    count = 0
    while count < SAMPLE_ROWS and (block := next(blocks, None)) is not None:
        held.append(block)
        count += 0 if isinstance(block, Exception) else block.num_rows
    return held


def _types(blocks: Iterable[Block | Exception]) -> pa.Schema:
    schemas = (block.schema for block in blocks if not isinstance(block, Exception))
    return settled(united(enumerate(schemas), "from_iterable"))


def _typed(block: Block, schema: pa.Schema, first: int) -> Block:
    try:
        rows = conform(block, schema)
    except MisfitError as error:
        words = f"{error}; the first {SAMPLE_ROWS:,} rows decide it: cast the data set to one set of features"
        raise StageError(f"from_iterable failed at row {first + error.row():,}: {words}") from error
    return with_column(rows, ORIGIN, origins("iterable", np.arange(first, first + rows.num_rows), "row"))
