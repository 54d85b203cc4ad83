"""Rows of one schema for a whole stream, whatever made them: a user's function, or several data sets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.errors import TALLY, DataError, OnError, StageError, Tally, name_of, skipped, where
from brimful.core.fruitless import Waiting
from brimful.core.once import once
from brimful.core.stream import END, Stage, State, running
from brimful.rows.blocks import KEY, Block, visible, with_origin
from brimful.rows.gathered import gathered
from brimful.rows.parallel import NOTHING, SERIAL, Called, Made, Parallel, joined
from brimful.rows.ragged import EMPTY
from brimful.rows.schema import OF_RESULTS, SAMPLE_ROWS, as_text, fitted, fitting, from_text, infer, misfit, united


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

    @abstractmethod
    def first_types(self) -> pa.Schema:
        """The columns that its first rows have."""


@dataclass(frozen=True)
class ByFunction(Typed, Generic[Made]):
    """Abstract: what a user's function makes of each block, held against the types of its first 1,000 results.

    State: [upstream's state, the types as text]. Price: a run from the start of epoch 0 holds the first 1,000 results till
    their types are known; one that begins elsewhere, of a later epoch or in a stream, has the function called for them.
    """

    upstream: Stage[Block]
    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, text = at
        first = self.types is None and before == self.upstream.start(0)
        schema = from_text(text) if text else vars(self).get("schema")
        if schema is None and not first:
            schema = self.schema
        with (
            closing(gathered(self.upstream, before)) as items,
            closing(self._called(items, lambda: schema or None, shared=True)) as calls,
        ):
            held = _Held[Made]([], None)
            if not schema:  # not known, or epoch 0 has no result: those of this run
                held = self._first(calls)
                schema = self.types_of(_there(held.calls))
                if schema:
                    vars(self).setdefault("schema", schema)
            text = text or (as_text(schema) if schema else "")
            parts = ((self._fitted(one, schema), one.last, one.after) for one in _all(held, calls))
            for out, after in joined(parts):
                yield out, END if after == END else [after, text]

    def first_types(self) -> pa.Schema:
        with closing(gathered(self.upstream, self.upstream.start(0))) as items:
            blocks = ((block.slice(0, SAMPLE_ROWS), END) for block, _ in items if block.num_rows)
            with closing(self._called(blocks, lambda: None)) as calls:
                held = self._first(calls)
            schema = self.types_of(_there(held.calls))
            if held.error is not None and not schema.names:
                raise held.error
            return schema

    def _called(
        self, items: Iterator[tuple[Block, State]], schema: Callable[[], pa.Schema | None], *, shared: bool = False
    ) -> Generator[Called[Made | _Fitted], None, None]:
        """What the function gives; in the columns and types of the schema, as soon as that is known."""
        alone = replace(self, upstream=NOTHING, types=None)
        return self.parallel.called(alone.made, items, self.called_as, lambda: (schema(),), shared=shared)

    def made(self, block: Block, schema: pa.Schema | None) -> Made | _Fitted:
        given = self.call(block)
        return given if schema is None else _Fitted(self.block_of(block, given, schema))

    def _fitted(self, one: Called[Made | _Fitted], schema: pa.Schema) -> Block:
        if one.made is None:
            return EMPTY
        return one.made.block if isinstance(one.made, _Fitted) else self.block_of(one.block, one.made, schema)

    def _first(self, calls: Iterator[Called[Made | _Fitted]]) -> _Held[Made]:
        """What the first 1,000 results came with; an error that came after them is raised in its turn."""
        items: list[Called[Made | _Fitted]] = []
        count, waiting = 0, Waiting()
        try:
            while count < SAMPLE_ROWS and (one := next(calls, None)) is not None:
                items.append(one)
                own = sum(map(self.count, _there([one])))
                waiting.got(own)
                count += own
        except Exception as error:
            return _Held(items, error)
        return _Held(items, None)

    @property
    @abstractmethod
    def called_as(self) -> str:
        """What the user knows the call by."""

    @abstractmethod
    def call(self, block: Block) -> Made:
        """What the function gives for a block that has a row."""

    @abstractmethod
    def count(self, given: Made) -> int:
        """How many results that are."""

    @abstractmethod
    def types_of(self, given: Sequence[Made]) -> pa.Schema:
        """The types of the first 1,000 results among these."""

    @abstractmethod
    def block_of(self, block: Block, given: Made, schema: pa.Schema) -> Block:
        """What a block becomes, in the columns and types of a schema."""


class _Fitted(NamedTuple):
    """Results in the columns and types of the schema."""

    block: Block


class _Held(NamedTuple, Generic[Made]):
    """What a function gave, not yet handed on, and the error that came after it."""

    calls: list[Called[Made | _Fitted]]
    error: Exception | None


def _all(held: _Held[Made], calls: Iterator[Called[Made | _Fitted]]) -> Iterator[Called[Made | _Fitted]]:
    yield from held.calls
    if held.error is not None:
        raise held.error
    yield from calls


def _there(calls: Sequence[Called[Made | _Fitted]]) -> list[Made]:
    return [one.made for one in calls if one.made is not None and not isinstance(one.made, _Fitted)]


class Results(NamedTuple):
    """The samples that a function gave for a block, and the row that each of them comes from, int64 (n,)."""

    samples: Sequence[Any]
    parents: NDArray[np.int64]


@dataclass(frozen=True)
class SampleFunction(ByFunction[Results]):
    """Abstract: a user's function of samples, `fn`."""

    fn: Callable[..., Any]
    seeded: bool
    on_error: OnError = "raise"

    def count(self, given: Results) -> int:
        return len(given.samples)

    def types_of(self, given: Sequence[Results]) -> pa.Schema:
        samples = (sample for results in given for sample in results.samples if _is_sample(sample))
        return infer(list(islice(samples, SAMPLE_ROWS)))

    def block_of(self, block: Block, given: Results, schema: pa.Schema) -> Block:
        samples, parents = given
        out = fitting(samples, schema) if all(map(_is_sample, samples)) else None
        if out is None:
            samples, parents = self._those_that_fit(block, given, schema)
            out = fitting(samples, schema)
            if out is None:
                raise self._failed(block, int(parents[0]), "the results from this row on fit one by one only")
        return with_origin(out, block, parents) if len(samples) else EMPTY

    def _those_that_fit(self, block: Block, given: Results, schema: pa.Schema) -> Results:
        """The results less those that are no samples of these columns and types: an error each, or left out and counted."""
        kept = []
        for number, (row, sample) in enumerate(zip(given.parents.tolist(), given.samples)):
            if not isinstance(sample, dict):
                words = f"{self.called_as} must return dicts (got {type(sample).__name__}; {where(block, row)})"
                error: StageError | None = StageError(words)
            elif not _is_sample(sample):
                odd = next(name for name in sample if not isinstance(name, str))
                error = self._failed(block, row, f"the keys of a sample must be strings (got {odd!r})")
            else:
                message = misfit(sample, schema, closed=True, remedy=OF_RESULTS)
                error = None if message is None else self._failed(block, row, message)
            if error is None:
                kept.append(number)
            elif self.on_error == "raise":
                raise error
            else:
                skipped(error)
        return Results([given.samples[number] for number in kept], given.parents[kept])

    @property
    def called_as(self) -> str:
        return f"{self.verb}({name_of(self.fn)})"

    def _failed(self, block: Block, row: int, message: str) -> StageError:
        return StageError(f"{self.called_as} failed at {where(block, row)}: {message}")


def _is_sample(result: Any) -> bool:
    return isinstance(result, dict) and all(isinstance(name, str) for name in result)


def union_of(stages: Sequence[Stage[Block]], what: str) -> pa.Schema:
    """The columns that the rows of several stages have together, numbers widened.

    Raises:
        DataError: a column has two types that nothing unites.
    """
    return united((_schema_of(stage) for stage in stages), what)


def _schema_of(stage: Stage[Block]) -> pa.Schema:
    """The columns of a stage's rows, all of which have the same; none where it has no row, or where it fails first."""
    if isinstance(stage, Typed):
        return stage.schema
    with suppress(Exception), running(stage, stage.start(0)) as items:
        return next((visible(block).schema for block, _ in items if block.num_rows), pa.schema([]))
    return pa.schema([])


def conformed(block: Block, schema: pa.Schema) -> Block:
    """A block in the columns and types of a schema, with its origins; as it is where epoch 0 had no row to tell them.

    Raises:
        DataError: it has a column that the schema does not have: its data set had no row in epoch 0.
    """
    rows = visible(block)
    if not schema.names or (rows.schema.equals(schema) and KEY not in block.schema.names):
        return block
    if unknown := [name for name in rows.schema.names if name not in schema.names]:
        raise DataError(
            f"there is a column {unknown[0]!r} ({where(block, 0)}), and no data set had one in epoch 0, where this one had no "
            "row; begin it with a row, or drop the column"
        )
    return with_origin(fitted(rows, schema), block, np.arange(block.num_rows))
