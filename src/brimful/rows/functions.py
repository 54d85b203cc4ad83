"""Stages that call a function of the user's. All their rows have one schema, from the first to the last."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import OnError, skipped
from brimful.core.facts import Facts, following, refuse_streams
from brimful.core.run import Run, Stopped, stopping
from brimful.core.stage import CARRY, END, Stage, State, not_in_state
from brimful.plan import random
from brimful.plan.errors import StageError, name_of
from brimful.rows.buffer import Rebatch
from brimful.rows.parallel import CallResult, FunctionStage, first_types_of, typed_blocks
from brimful.tables.blocks import KEY, UNIT, Block, as_dict, samples, samples_in_turn, visible, with_origin
from brimful.tables.learnt import Learnt, known_by
from brimful.tables.origins import where
from brimful.tables.plain import without_extensions
from brimful.tables.ragged import EMPTY, column_of
from brimful.tables.schema import (
    OF_RESULTS,
    MisfitError,
    complete,
    conform,
    conform_rows,
    misfit,
    settled,
    types_of,
    unified,
)


def call(stage: str, fn: Callable[..., Any], block: Block) -> Iterator[Any]:
    """`fn(sample)` for each row of a block.

    Raises:
        StageError: what `fn` raised, with the row's place.
    """
    return (result for _, result in tried(stage, fn, block, False, "raise"))


def tried(
    stage: str,
    fn: Callable[..., Any],
    block: Block,
    seeded: bool,
    on_error: OnError,
    convert: Callable[[Any], Any] = lambda result: result,
    rows: Callable[[Block], Iterable[Any]] = samples_in_turn,
) -> Iterator[tuple[int, Any]]:
    """(row, `convert(fn(sample))`) for each row of a block. A seeded function is called as `fn(sample, rng)`, with a generator
    from the row's key. `rows` makes the samples. Where the function raises, `on_error` decides: an error,
    or the row is left out and counted.

    Raises:
        StageError: what `fn` raised, with the row's place.
    """
    keys = column_of(block, KEY).to_pylist() if seeded else ()
    stopped = stopping()
    for row, sample in enumerate(rows(block)):
        if stopped:
            raise Stopped
        try:
            result = convert(fn(sample, random.generator(keys[row])) if seeded else fn(sample))
        except Exception as error:
            message = f"{stage}({name_of(fn)}) failed at {where(block, row)}: {type(error).__name__}: {error}"
            if on_error == "raise":
                raise StageError(message) from error
            skipped(StageError(message))
            continue
        yield row, result


@dataclass(frozen=True)
class SampleResults:
    """The samples that a function gave for a block, and the row that each comes from, int64 (n,)."""

    samples: Sequence[Any]
    parents: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, some: slice) -> SampleResults:
        return SampleResults(self.samples[some], self.parents[some])


def types_of_results(given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
    """See `Caller.types_of`."""
    return types_of([sample for results in given for sample in results.samples if _is_sample(sample)])


def block_of_results(called: str, block: Block, given: SampleResults, schema: pa.Schema, on_error: OnError) -> Block:
    """The results of a function for a block, in the columns and types of a schema.

    Raises:
        StageError: a result is no sample of that schema; it names the call and the row. "skip" leaves the result out.
    """
    out = None
    with suppress(MisfitError):
        out = conform_rows(given.samples, schema) if all(map(_is_sample, given.samples)) else None
    if out is None:
        given = _those_that_fit(called, block, given, schema, on_error)
        try:
            out = conform_rows(given.samples, schema)
        except MisfitError:
            words = "the results from this row on fit one by one only"
            raise _failed(called, block, int(given.parents[0]), words) from None
    return with_origin(out, block, given.parents) if len(given) else EMPTY


def _those_that_fit(
    called: str, block: Block, given: SampleResults, schema: pa.Schema, on_error: OnError
) -> SampleResults:
    """The results that are samples of these columns and types. Each other one is an error, or is left out and counted."""
    kept = []
    for number, (row, sample) in enumerate(zip(given.parents.tolist(), given.samples)):
        if not isinstance(sample, dict):
            words = f"{called} must return dicts (got {type(sample).__name__}; {where(block, row)})"
            error: StageError | None = StageError(words)
        elif not _is_sample(sample):
            odd = next(name for name in sample if not isinstance(name, str))
            error = _failed(called, block, row, f"the keys of a sample must be strings (got {odd!r})")
        else:
            found = misfit(sample, schema)
            error = None if found is None else _failed(called, block, row, found.told(OF_RESULTS))
        if error is None:
            kept.append(number)
        elif on_error == "raise":
            raise error
        else:
            skipped(error)
    return SampleResults([given.samples[number] for number in kept], given.parents[kept])


def _failed(called: str, block: Block, row: int, message: str) -> StageError:
    return StageError(f"{called} failed at {where(block, row)}: {message}")


def _is_sample(result: Any) -> bool:
    return isinstance(result, dict) and all(isinstance(name, str) for name in result)


_SAMPLES: Final[dict[str, Callable[[Any], list[Any]]]] = {
    "map": lambda result: [result],
    "filter_map": lambda result: [] if result is None else [result],
    "flat_map": list,
}
"""The samples that stand for a result of a function, by the verb that calls it."""


@dataclass(frozen=True)
class SampleFunction(FunctionStage):
    """The samples of `fn(sample)` in place of each sample, as many as the verb says: "map", "filter_map" or "flat_map"."""

    verb: str
    fn: Callable[..., Any]
    seeded: bool = not_in_state()
    on_error: OnError = "raise"
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        """As `learn_schema` asks."""
        return types_of_results(given)

    def work(self, block: Block) -> SampleResults:
        found = dict(tried(self.verb, self.fn, block, self.seeded, self.on_error, _SAMPLES[self.verb]))
        counts = np.array([len(samples) for samples in found.values()], dtype=np.int64)
        parents = np.repeat(np.array([*found], dtype=np.int64), counts)
        return SampleResults([*map(as_dict, chain.from_iterable(found.values()))], parents)

    def finish(self, block: Block, made: SampleResults, schema: pa.Schema | None) -> Block:
        assert schema is not None
        return block_of_results(self.called_as, block, made, schema, self.on_error)

    @property
    def called_as(self) -> str:
        return f"{self.verb}({name_of(self.fn)})"


@dataclass(frozen=True)
class Filter(FunctionStage):
    """The samples for which `fn(sample)` is true."""

    fn: Callable[..., bool]
    seeded: bool = not_in_state()
    on_error: OnError = "raise"

    @property
    def called_as(self) -> str:
        return f"filter({name_of(self.fn)})"

    def work(self, block: Block) -> Block:
        kept = [row for row, keep in tried("filter", self.fn, block, self.seeded, self.on_error, bool) if keep]
        block = block.drop_columns([KEY]) if self.seeded else block
        return block if len(kept) == block.num_rows else block.take(pa.array(kept, pa.int64()))


def types_of_blocks(given: Sequence[Block]) -> tuple[pa.Schema, bool]:
    """See `Caller.types_of`."""
    blocks, schema = list(filter(len, given)), pa.schema([])
    with suppress(pa.ArrowException):  # what goes with none before it is found when it is held against these
        for block in blocks:
            schema = unified([schema, block.schema.remove_metadata()])
    return settled(schema), complete(schema, (block.schema.names for block in blocks))


@dataclass(frozen=True)
class MapBlocks(FunctionStage):
    """`fn(block)` in place of each block of rows; where it keeps the number of rows, they keep their origin."""

    fn: Callable[[Block], Block]
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    by_row = False

    def types_of(self, given: Sequence[Block]) -> tuple[pa.Schema, bool]:
        """As `learn_schema` asks."""
        return types_of_blocks(given)

    def work(self, block: Block) -> Block:
        try:
            out = self.fn(visible(block))
        except Exception as error:
            raise self._error(block, f"{type(error).__name__}: {error}") from error
        if not isinstance(out, pa.RecordBatch):
            raise StageError(f"{self.called_as} must return a pyarrow.RecordBatch (got {type(out).__name__})")
        return without_extensions(out)

    def finish(self, block: Block, made: Block, schema: pa.Schema | None) -> Block:
        assert schema is not None
        if not made.num_rows:
            return EMPTY
        try:
            out = conform(made, schema)
        except MisfitError as error:
            words = f"column {error.column!r} is {error.wanted} in its first rows but {error.found} here; return one type always"
            if error.wanted is None:
                words = f"it returned a column {error.column!r} that its first rows have not; return it always"
            raise self._error(block, words) from None
        if out.num_rows == block.num_rows:
            return with_origin(out, block, np.arange(block.num_rows))
        if UNIT in block.schema.names:
            counts = f"{out.num_rows:,} rows for {block.num_rows:,}"
            raise self._error(block, f"it returned {counts}, and nobody knows the units of these; call it before units")
        return out

    @property
    def called_as(self) -> str:
        return f"map_blocks({name_of(self.fn)})"

    def _error(self, block: Block, message: str) -> StageError:
        return StageError(f"{self.called_as} failed in the block from {where(block, 0)} on: {message}")


@dataclass(frozen=True)
class Scan(Stage[Block]):
    """`fn(carry, sample)` gives (carry, sample): the sample takes the place of that one, the carry goes to the next call.

    The carry is plain JSON, copied after each call and for each state: what a function does to it changes neither.

    State: [upstream's state, the carry].
    """

    upstream: Stage[Block]
    fn: Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]
    initial: Any
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        """As `learn_schema` asks."""
        return types_of_results(given)

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "scan", "follows")
        try:
            object.__setattr__(self, "initial", _plain(self.initial, "initial"))
        except _NotPlainError as error:
            raise TypeError(f"scan carries plain JSON from row to row: {error}") from None

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, **known_by(self))

    def start(self, epoch: int) -> State:
        return {**Rebatch(self.upstream).start(epoch), CARRY: self.initial}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        return typed_blocks(self, at, run)

    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[SampleResults], None, None]:
        carry = _plain(at[CARRY], "carry")
        with closing(Rebatch(self.upstream).items(at, run)) as items:
            for block, after in items:
                given = []
                for row, sample in enumerate(samples(block)):
                    carry, made = self._called(block, row, carry, sample)
                    given.append(as_dict(made))
                results = SampleResults(given, np.arange(len(given))) if given else None
                state = END if after == END else {**after, CARRY: _plain(carry, "carry")}
                yield CallResult(block, results, True, state)

    def finish(self, block: Block, made: SampleResults, schema: pa.Schema | None) -> Block:
        assert schema is not None
        return block_of_results(f"scan({name_of(self.fn)})", block, made, schema, "raise")

    def first_types(self, epoch: int) -> pa.Schema:
        return first_types_of(self, epoch)

    def _called(self, block: Block, row: int, carry: Any, sample: dict[str, Any]) -> tuple[Any, Any]:
        try:
            pair = self.fn(carry, sample)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise _NotPlainError(f"it must return (carry, sample) (got {type(pair).__name__})")
            return _plain(pair[0], "carry"), pair[1]
        except Exception as error:
            words = str(error) if isinstance(error, _NotPlainError) else f"{type(error).__name__}: {error}"
            raise StageError(f"scan({name_of(self.fn)}) failed at {where(block, row)}: {words}") from error


class _NotPlainError(Exception):
    """A value that a state could not hold, or would not give back as it was."""


def _plain(value: Any, name: str) -> Any:
    """A copy of plain JSON, which is the same once it was written down and read again."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and isfinite(value)):
        return value
    if kind is list:
        return [_plain(inner, f"{name}[{number}]") for number, inner in enumerate(value)]
    if kind is dict:
        if odd := [key for key in value if type(key) is not str]:
            raise _NotPlainError(f"the keys of {name} must be strings (got {odd[0]!r})")
        return {key: _plain(inner, f"{name}[{key!r}]") for key, inner in value.items()}
    what = str(value) if kind is float else f"a {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " ")
    raise _NotPlainError(
        f"{name} must be plain JSON: None, bool, int, finite float, str, or lists and dicts of these (got {what}); convert it"
    )
