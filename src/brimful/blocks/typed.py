"""Rows of one schema for a whole stream, whatever made them: a user's function, or several data sets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import KEY, Block, visible, with_origin
from brimful.blocks.parallel import NOTHING, SERIAL, Called, Made, Parallel, joined
from brimful.blocks.ragged import EMPTY
from brimful.blocks.resize import resized, resized_start
from brimful.blocks.schema import (
    FIRST_ROWS,
    OF_RESULTS,
    SAMPLE_ROWS,
    as_text,
    first_misfit,
    fitted,
    fitting,
    from_text,
    misfit,
    named,
    types_of,
    united,
)
from brimful.core.errors import TALLY, DataError, OnError, StageError, Tally, name_of, skipped, where
from brimful.core.fruitless import Waiting
from brimful.core.once import once
from brimful.core.stage import END, Stage, State, running, runtime


@dataclass(frozen=True)
class Typed(Stage[Block]):
    """Abstract: all rows that it gives have the columns and types of `schema`, from the first epoch to the last.

    Args:
        types: what gives the schema of one of several streams: that of the whole.
    """

    types: Callable[[], pa.Schema] | None = field(default=None, kw_only=True, metadata={"runtime": True})

    @once
    def schema(self) -> pa.Schema:
        """Worked out from the first rows of epoch 0, wherever this run begins; what they leave out is not counted."""
        if self.types is not None:
            return self.types()
        context = copy_context()
        context.run(TALLY.set, Tally())
        return context.run(self.first_types)

    def stream(self, number: int, count: int) -> Self:
        """A stream has the columns of the whole."""
        return replace(
            self.over(*(one.stream(number, count) for one in self.below)), types=partial(getattr, self, "schema")
        )

    @abstractmethod
    def first_types(self) -> pa.Schema:
        """The columns that its first rows have."""


def _given(schema: pa.Schema) -> pa.Schema:
    return schema


@dataclass(frozen=True)
class ByFunction(Typed, Generic[Made]):
    """Abstract: what a user's function makes of each block, held against the types of its first 32 results, or up to 1,000
    while a column of them is null or absent.

    State: [upstream's state, the types as text]. Price: a run from the start of epoch 0 holds the first results till their
    types are known. A run of a later epoch, or of a stream, has the function called for them; a resume does not.
    """

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        known = vars(self).get("schema")
        return [self.begin(epoch), as_text(known) if known else ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, text = at
        first = self.types is None and before == self.begin(0)
        schema = from_text(text) if text else vars(self).get("schema")
        if schema is None and not first:
            schema = self.schema
        with closing(self.calls(before, lambda: schema or None)) as calls:
            held = _Held[Made]([], None, schema)
            if not schema:  # not known, or epoch 0 has no result: those of this run
                held = self._first(calls)
                schema = held.schema
                if schema:
                    vars(self).setdefault("schema", schema)
            text = text or (as_text(schema) if schema else "")
            parts = ((self._fitted(one, schema), one.last, one.after) for one in _all(held, calls))
            for out, after in joined(parts):
                yield out, END if after == END else [after, text]

    def first_types(self) -> pa.Schema:
        with closing(self.calls(self.begin(0), lambda: None)) as calls:
            held = self._first(calls)
            if held.error is not None and not held.schema.names:
                raise held.error
            return held.schema

    def _fitted(self, one: Called[Made | Fitted], schema: pa.Schema) -> Block:
        if one.made is None:
            return EMPTY
        return one.made.block if isinstance(one.made, Fitted) else self.block_of(one.block, one.made, schema)

    def _first(self, calls: Iterator[Called[Made | Fitted]]) -> _Held[Made]:
        """What came with the results that tell the types; an error that came after them is raised in its turn."""
        items: list[Called[Made | Fitted]] = []
        count, wanted, waiting = 0, FIRST_ROWS, Waiting()
        failure = None
        try:
            while count < wanted and (one := next(calls, None)) is not None:
                items.append(one)
                own = sum(map(self.count, _there([one])))
                waiting.got(own)
                count += own
                if wanted <= count < SAMPLE_ROWS and not self.types_of(_there(items))[1]:
                    wanted = min(2 * count, SAMPLE_ROWS)
        except Exception as error:
            failure = error
        return _Held(items, failure, self.types_of(_there(items))[0])

    @abstractmethod
    def begin(self, epoch: int) -> State:
        """The place before the first block of an epoch."""

    @abstractmethod
    def calls(self, at: State, schema: Callable[[], pa.Schema | None]) -> Generator[Called[Made | Fitted], None, None]:
        """What the function gives for the blocks that follow a place, and the place after each; `schema`: what it may be fitted
        to, as soon as that is known."""

    @abstractmethod
    def count(self, given: Made) -> int:
        """How many results that are."""

    @abstractmethod
    def types_of(self, given: Sequence[Made]) -> tuple[pa.Schema, bool]:
        """The types of these results, and whether they tell those of all columns; see `schema.types_of`."""

    @abstractmethod
    def block_of(self, block: Block, given: Made, schema: pa.Schema) -> Block:
        """What a block becomes, in the columns and types of a schema."""


class Fitted(NamedTuple):
    """Results in the columns and types of the schema."""

    block: Block


class _Held(NamedTuple, Generic[Made]):
    """What a function gave, not yet handed on, the error that came after it, and the types."""

    calls: list[Called[Made | Fitted]]
    error: Exception | None
    schema: pa.Schema


def _all(held: _Held[Made], calls: Iterator[Called[Made | Fitted]]) -> Iterator[Called[Made | Fitted]]:
    yield from held.calls
    if held.error is not None:
        raise held.error
    yield from calls


def _there(calls: Sequence[Called[Made | Fitted]]) -> list[Made]:
    return [one.made for one in calls if one.made is not None and not isinstance(one.made, Fitted)]


@dataclass(frozen=True)
class ByBlock(ByFunction[Made]):
    """Abstract: the function is called for each block by itself, by workers if need be."""

    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})

    def sent(self, source: Stage[Any]) -> Stage[Block]:
        upstream = self.upstream.sent(source)
        return replace(self.over(upstream), types=partial(_given, self.schema), parallel=self.parallel.sent)

    def begin(self, epoch: int) -> State:
        return resized_start(self.upstream, epoch)

    def calls(self, at: State, schema: Callable[[], pa.Schema | None]) -> Generator[Called[Made | Fitted], None, None]:
        alone = replace(self, upstream=NOTHING, types=None)
        with (
            closing(resized(self.upstream, at)) as items,
            closing(self.parallel.called(alone.made, items, self.called_as, lambda: (schema(),), shared=True)) as calls,
        ):
            yield from calls

    def made(self, block: Block, schema: pa.Schema | None) -> Made | Fitted:
        given = self.call(block)
        return given if schema is None else Fitted(self.block_of(block, given, schema))

    @property
    @abstractmethod
    def called_as(self) -> str:
        """What the user knows the call by."""

    @abstractmethod
    def call(self, block: Block) -> Made:
        """What the function gives for a block that has a row."""


class Results(NamedTuple):
    """The samples that a function gave for a block, and the row that each of them comes from, int64 (n,)."""

    samples: Sequence[Any]
    parents: NDArray[np.int64]


@dataclass(frozen=True)
class SampleFunction(ByBlock[Results]):
    """Abstract: a user's function of samples, `fn`."""

    by_row = True

    fn: Callable[..., Any]
    seeded: bool = runtime()
    on_error: OnError = "raise"

    def count(self, given: Results) -> int:
        return len(given.samples)

    def types_of(self, given: Sequence[Results]) -> tuple[pa.Schema, bool]:
        return types_of_results(given)

    def block_of(self, block: Block, given: Results, schema: pa.Schema) -> Block:
        return block_of_results(self.called_as, block, given, schema, self.on_error)

    @property
    def called_as(self) -> str:
        return f"{self.verb}({name_of(self.fn)})"


def types_of_results(given: Sequence[Results]) -> tuple[pa.Schema, bool]:
    """See `ByFunction.types_of`."""
    return types_of([sample for results in given for sample in results.samples if _is_sample(sample)])


def block_of_results(called: str, block: Block, given: Results, schema: pa.Schema, on_error: OnError) -> Block:
    """What a function gave for a block, in the columns and types of a schema.

    Raises:
        StageError: naming what was `called`, at a result that is no sample of that schema; "skip" leaves it out.
    """
    samples, parents = given
    out = fitting(samples, schema) if all(map(_is_sample, samples)) else None
    if out is None:
        samples, parents = _those_that_fit(called, block, given, schema, on_error)
        out = fitting(samples, schema)
        if out is None:
            raise _failed(called, block, int(parents[0]), "the results from this row on fit one by one only")
    return with_origin(out, block, parents) if len(samples) else EMPTY


def _those_that_fit(called: str, block: Block, given: Results, schema: pa.Schema, on_error: OnError) -> Results:
    """The results less those that are no samples of these columns and types: an error each, or left out and counted."""
    kept = []
    for number, (row, sample) in enumerate(zip(given.parents.tolist(), given.samples)):
        if not isinstance(sample, dict):
            words = f"{called} must return dicts (got {type(sample).__name__}; {where(block, row)})"
            error: StageError | None = StageError(words)
        elif not _is_sample(sample):
            odd = next(name for name in sample if not isinstance(name, str))
            error = _failed(called, block, row, f"the keys of a sample must be strings (got {odd!r})")
        else:
            message = misfit(sample, schema, closed=True, remedy=OF_RESULTS)
            error = None if message is None else _failed(called, block, row, message)
        if error is None:
            kept.append(number)
        elif on_error == "raise":
            raise error
        else:
            skipped(error)
    return Results([given.samples[number] for number in kept], given.parents[kept])


def _failed(called: str, block: Block, row: int, message: str) -> StageError:
    return StageError(f"{called} failed at {where(block, row)}: {message}")


def _is_sample(result: Any) -> bool:
    return isinstance(result, dict) and all(isinstance(name, str) for name in result)


def union_of(stages: Sequence[Stage[Block]], what: str) -> pa.Schema:
    """The columns that the rows of several stages have together, numbers widened.

    Raises:
        DataError: a column has two types that nothing unites.
    """
    return united(((number, _schema_of(stage)) for number, stage in enumerate(stages)), what)


def _schema_of(stage: Stage[Block]) -> pa.Schema:
    """The columns of a stage's rows, all of which have the same; none where it has no row, or where it fails first."""
    if isinstance(stage, Typed):
        return stage.schema
    with suppress(Exception), running(stage, stage.start(0)) as items:
        return next((visible(block).schema for block, _ in items if block.num_rows), pa.schema([]))
    return pa.schema([])


def conformed(block: Block, schema: pa.Schema, what: str, number: int) -> Block:
    """A block of the data set of a number in the columns and types of all that are joined by `what`, with its origins; as it is
    where epoch 0 had no row to tell them.

    Raises:
        DataError: it has a column that the schema does not have: its data set had no row in epoch 0; or a value that has no like
            in the type that its column has in all of them.
    """
    rows = visible(block)
    if not schema.names or (rows.schema.equals(schema) and KEY not in block.schema.names):
        return block
    if unknown := [name for name in rows.schema.names if name not in schema.names]:
        raise DataError(
            f"there is a column {unknown[0]!r} ({where(block, 0)}), and no data set had one in epoch 0, where this one had no "
            "row; begin it with a row, or drop the column"
        )
    try:
        return with_origin(fitted(rows, schema), block, np.arange(block.num_rows))
    except pa.ArrowException as error:
        name, row = first_misfit(rows, schema)
        own, common = named(rows.schema.field(name).type), named(schema.field(name).type)
        raise DataError(
            f"{what}: column {name!r} is {own} in data set {number} and {common} with the others, which has no such value: "
            f"{error} ({where(block, row)}); convert it (map), or rename or drop it in one of them"
        ) from error
