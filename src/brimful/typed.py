"""Rows of one schema for a whole stream, whatever made them: a user's function, or several data sets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import TALLY, StageError, Tally, where
from brimful.once import once
from brimful.ragged import EMPTY
from brimful.rows import KEY, Block, Sample, name_of, visible, with_origin
from brimful.schema import OF_RESULTS, SAMPLE_ROWS, as_text, fitted, fitting, from_text, infer, misfit, united
from brimful.stream import END, Stage, State, running


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
class ByFunction(Typed):
    """Abstract: what a user's function makes of each block, held against the types of its first 1,000 results.

    State: [upstream's state, the types as text]. Price: up to 1,000 calls of the function when a run begins.
    """

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, text = at
        schema = from_text(text) if text else None
        with running(self.upstream, before) as items:
            for block, after in items:
                if block.num_rows and schema is None:
                    schema = self.schema
                    text = as_text(schema)
                yield (self.apply(block, schema) if block.num_rows else EMPTY), END if after == END else [after, text]

    @abstractmethod
    def apply(self, block: Block, schema: pa.Schema) -> Block:
        """What one block that has a row becomes, in the columns and types of a schema."""

    def first_blocks(self) -> Iterator[Block]:
        """Blocks of epoch 0 that have a row, at most 1,000 of their rows each; what cannot be read ends them."""
        try:
            with running(self.upstream, self.upstream.start(0)) as items:
                for block, _ in items:
                    if block.num_rows:
                        yield block.slice(0, SAMPLE_ROWS)
        except Exception:  # the run raises it in its turn
            return


@dataclass(frozen=True)
class SampleFunction(ByFunction):
    """Abstract: a user's function of samples, `fn`.

    Args:
        name: of the method, as users wrote it.
    """

    fn: Callable[..., Any]
    seeded: bool
    name: ClassVar[str]

    @abstractmethod
    def results(self, block: Block) -> tuple[Sequence[Any], NDArray[np.int64]]:
        """The samples that the function gives for a block, and the row that each of them comes from."""

    @property
    def called(self) -> str:
        return f"{self.name}({name_of(self.fn)})"

    def apply(self, block: Block, schema: pa.Schema) -> Block:
        results, parents = self.results(block)
        if not len(results):
            return EMPTY
        out = fitting(self._samples(block, results, parents), schema)
        if out is None:
            raise self._misfit(block, results, parents, schema)
        return with_origin(out, block, parents)

    def first_types(self) -> pa.Schema:
        return infer(list(islice(self._first_results(), SAMPLE_ROWS)))

    def _first_results(self) -> Iterator[Sample]:
        for block in self.first_blocks():
            try:
                found = self.results(block)[0]
            except StageError:  # those before the row that fails count: a run hands them out in blocks of other sizes
                yield from self._one_by_one(block)
                return
            yield from filter(_is_sample, found)

    def _one_by_one(self, block: Block) -> Iterator[Sample]:
        with suppress(StageError):
            for row in range(block.num_rows):
                yield from filter(_is_sample, self.results(block.slice(row, 1))[0])

    def _samples(self, block: Block, results: Sequence[Any], parents: NDArray[np.int64]) -> Sequence[Sample]:
        for row, result in zip(parents.tolist(), results):
            if not isinstance(result, dict):
                raise StageError(f"{self.called} must return dicts (got {type(result).__name__}; {where(block, row)})")
            if odd := [name for name in result if not isinstance(name, str)]:
                raise StageError(
                    f"{self.called} failed at {where(block, row)}: the keys of a sample must be strings (got {odd[0]!r})"
                )
        return results

    def _misfit(
        self, block: Block, results: Sequence[Sample], parents: NDArray[np.int64], schema: pa.Schema
    ) -> StageError:
        for row, result in zip(parents.tolist(), results):
            if message := misfit(result, schema, closed=True, remedy=OF_RESULTS):
                return StageError(f"{self.called} failed at {where(block, row)}: {message}")
        return StageError(f"{self.called} failed near {where(block, int(parents[0]))}: its results fit one by one only")


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
    """A block in the columns and types of a schema, with its origins."""
    rows = visible(block)
    if rows.schema.equals(schema) and KEY not in block.schema.names:
        return block
    return with_origin(fitted(rows, schema), block, np.arange(block.num_rows))
