"""Stages that call a function of the user's. All their rows have one schema, from the first to the last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import COUNTERS, Counters, Counts, OnError, add_counts, apart, skipped
from brimful.core.facts import Facts, following, refuse_streams, verb_of
from brimful.core.repeat import EmptyEpochGuard
from brimful.core.run import Run, Stopped, stopping
from brimful.core.stage import END, Stage, State, not_in_state
from brimful.plan import random
from brimful.plan.errors import StageError, name_of
from brimful.plan.once import once
from brimful.rows.buffer import Rebatch
from brimful.rows.pace import Pace
from brimful.rows.parallel import DETACHED, SERIAL, BlockFunction, CallResult, Parallel, joined, uncut
from brimful.tables.blocks import KEY, Block, as_dict, samples, visible, with_origin
from brimful.tables.origins import where
from brimful.tables.plain import without_extensions
from brimful.tables.ragged import EMPTY, column_of
from brimful.tables.schema import (
    FIRST_ROWS,
    OF_RESULTS,
    SAMPLE_ROWS,
    MisfitError,
    as_text,
    complete,
    conform,
    conform_rows,
    from_text,
    misfit,
    settled,
    types_of,
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
    rows: Callable[[Block], Iterable[Any]] = samples,
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


class Results(Sized, Protocol):
    """The results of a function for a block, of which some can be taken."""

    def slice(self, offset: int, length: int) -> Self: ...


Made = TypeVar("Made", bound=Results)


@dataclass(frozen=True)
class Typed(Stage[Block]):
    """Abstract: all its rows have the columns and types of `schema`, from the first epoch to the last.

    Args:
        types: gives the schema of the whole to one of several streams.
    """

    types: Callable[[], pa.Schema] | None = field(default=None, kw_only=True, metadata={"runtime": True})

    @once
    def schema(self) -> pa.Schema:
        """The types of the first rows of epoch 0, wherever this run begins. Rows that are left out on the way are not counted."""
        if self.types is not None:
            return self.types()
        context = copy_context()
        context.run(COUNTERS.set, Counters())
        return context.run(self.first_types)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, schema=lambda: vars(self).get("schema"), row_schema=lambda: self.schema)

    def for_stream(self, number: int, count: int) -> Self:
        """One stream, which has the columns of the whole."""
        return replace(self, types=partial(getattr, self, "schema"))

    @abstractmethod
    def first_types(self) -> pa.Schema:
        """The columns of the first rows."""


@dataclass(frozen=True)
class TypedFunction(Typed, Generic[Made]):
    """Abstract: the results of a user's function for each block. All must fit the types of its first 32 results, or of up to
    1,000 while a column of them is null or absent.

    State: [upstream's state, the types as text]. Price: a run from the start of epoch 0 holds the first results until their
    types are known. A run of a later epoch, or of a stream, calls the function for them; a resume does not.
    """

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        known = vars(self).get("schema")
        return [self.begin(epoch), as_text(known) if known else ""]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        before, text = at
        at_first = self.types is None and before == self.begin(0)
        schema = from_text(text) if text else vars(self).get("schema")
        if schema is None and not at_first:
            schema = self.schema
        with closing(self.calls(before, run, lambda: schema or None)) as calls:
            results: Iterator[CallResult[Made | Fitted]] = calls
            if not schema:  # not known, or epoch 0 has no result: those of this run
                first = self._first(calls)
                schema, results = first.schema, first.and_then(calls)
                if schema:
                    vars(self).setdefault("schema", schema)
            text = text or (as_text(schema) if schema else "")
            for out, after in joined(results, partial(self._fitted, schema)):
                yield out, END if after == END else [after, text]

    def first_types(self) -> pa.Schema:
        run = Run(Run.here())
        try:
            with run.entered(), closing(self.calls(self.begin(0), run, lambda: None)) as calls:
                first = self._first(calls)
                if first.error is not None and not first.schema.names:
                    raise first.error
                return first.schema
        finally:
            run.close()

    def _fitted(self, schema: pa.Schema, one: CallResult[Made | Fitted]) -> Block:
        if one.made is None:
            return EMPTY
        return one.made.block if isinstance(one.made, Fitted) else self.block_of(one.block, one.made, schema)

    def _first(self, calls: Iterator[CallResult[Made | Fitted]]) -> _First[Made]:
        """The first calls, as many as give the types. An error that comes after them is kept, and raised in its turn."""
        items: list[tuple[CallResult[Made | Fitted], Counts]] = []
        count, wanted, waiting = 0, FIRST_ROWS, EmptyEpochGuard(self, None)
        failure = None
        try:
            while count < wanted and (found := apart(next, calls, None))[0] is not None:
                items.append(found)
                own = sum(map(len, _there([found])))
                waiting.saw(own, found[0].after)
                count += own
                while wanted <= count and wanted < SAMPLE_ROWS and not self.types_of(_there(items, wanted))[1]:
                    wanted = min(2 * wanted, SAMPLE_ROWS)
        except Exception as error:
            failure = error
        return _First(items, failure, self.types_of(_there(items, wanted))[0])

    @abstractmethod
    def begin(self, epoch: int) -> State:
        """The place before the first block of an epoch."""

    @abstractmethod
    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[Made | Fitted], None, None]:
        """The results for the blocks that follow a place, and the place after each. `schema` gives the schema to fit them to,
        None before it is known."""

    @abstractmethod
    def types_of(self, given: Sequence[Made]) -> tuple[pa.Schema, bool]:
        """The types of these results, and whether they are complete; see `schema.types_of`."""

    @abstractmethod
    def block_of(self, block: Block, given: Made, schema: pa.Schema) -> Block:
        """The results for a block, in the columns and types of a schema."""


class Fitted(NamedTuple):
    """Results in the columns and types of the schema."""

    block: Block


class _First(NamedTuple, Generic[Made]):
    """The first calls of a function, the error that came after them, and the types of their results."""

    calls: list[tuple[CallResult[Made | Fitted], Counts]]
    error: Exception | None
    schema: pa.Schema

    def and_then(self, calls: Iterator[CallResult[Made | Fitted]]) -> Iterator[CallResult[Made | Fitted]]:
        """The first calls, then the error if there is one, then the others."""
        for one, left_out in self.calls:
            add_counts(left_out)
            yield one
        if self.error is not None:
            raise self.error
        yield from calls


def _there(calls: Sequence[tuple[CallResult[Made | Fitted], Counts]], most: int | None = None) -> list[Made]:
    """The results, up to so many: types do not depend on where blocks end."""
    there = [one.made for one, _ in calls if one.made is not None and not isinstance(one.made, Fitted)]
    if most is None:
        return there
    ends = np.cumsum([0, *map(len, there)]).tolist()
    return [made.slice(0, most - end) for made, end in zip(there, ends) if end < most]


@dataclass(frozen=True)
class ByBlock(TypedFunction[Made]):
    """Abstract: calls the function for each block by itself, in workers if wanted."""

    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})

    by_row: ClassVar[bool] = True
    """Whether it is called with rows, and not with blocks as they come."""

    def facts(self, *inputs: Facts) -> Facts:
        found = super().facts(*inputs)
        if not self.by_row:
            return replace(found, cut_by_time=False, seam="passes")
        cut_by_time = self.parallel.by_time or inputs[0].cut_by_time
        return replace(found, cut_by_time=cut_by_time, order_by=inputs[0].order_by, seam="passes")

    @once
    def _pace(self) -> Pace | None:
        """Of a function of rows; None: it gets whole blocks."""
        return self.parallel.pace if self.by_row else None

    @once
    def _read(self) -> Stage[Block]:
        """What it reads. A function of whole blocks may make something else of others, so these are the same in each run."""
        return self.upstream if self.by_row else uncut(self.upstream)

    def for_worker(self) -> ByBlock[Made]:
        """The same in one of many tasks."""
        return replace(self, types=partial(from_text, as_text(self.schema)), parallel=self.parallel.for_worker)

    def begin(self, epoch: int) -> State:
        return Rebatch(self._read).start(epoch)

    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[Made | Fitted], None, None]:
        alone = replace(self, upstream=DETACHED, types=None)
        return self.parallel.calls(alone.made, self._read, at, run, self.called_as, lambda: (schema(),), self._pace)

    def made(self, block: Block, schema: pa.Schema | None) -> Made | Fitted:
        given = self.call(block)
        return given if schema is None else Fitted(self.block_of(block, given, schema))

    @property
    @abstractmethod
    def called_as(self) -> str:
        """The name of the call in messages."""

    @abstractmethod
    def call(self, block: Block) -> Made:
        """The results for a block that has rows."""


@dataclass(frozen=True)
class SampleResults:
    """The samples that a function gave for a block, and the row that each comes from, int64 (n,)."""

    samples: Sequence[Any]
    parents: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.samples)

    def slice(self, offset: int, length: int) -> SampleResults:
        """Some of them."""
        own = slice(offset, offset + length)
        return SampleResults(self.samples[own], self.parents[own])


@dataclass(frozen=True)
class SampleFunction(ByBlock[SampleResults]):
    """Abstract: a user's function of samples, `fn`."""

    fn: Callable[..., Any]
    seeded: bool = not_in_state()
    on_error: OnError = "raise"

    @abstractmethod
    def samples_of(self, result: Any) -> list[Any]:
        """The samples that stand for a result of the function."""

    def call(self, block: Block) -> SampleResults:
        found = dict(tried(verb_of(self), self.fn, block, self.seeded, self.on_error, self.samples_of))
        counts = np.array([len(samples) for samples in found.values()], dtype=np.int64)
        parents = np.repeat(np.array([*found], dtype=np.int64), counts)
        return SampleResults([*map(as_dict, chain.from_iterable(found.values()))], parents)

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        return types_of_results(given)

    def block_of(self, block: Block, given: SampleResults, schema: pa.Schema) -> Block:
        return block_of_results(self.called_as, block, given, schema, self.on_error)

    @property
    def called_as(self) -> str:
        return f"{verb_of(self)}({name_of(self.fn)})"


def types_of_results(given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
    """See `TypedFunction.types_of`."""
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


@dataclass(frozen=True)
class Map(SampleFunction):
    """`fn(sample)` in place of each sample."""

    def samples_of(self, result: Any) -> list[Any]:
        return [result]


@dataclass(frozen=True)
class FilterMap(SampleFunction):
    """`fn(sample)` in place of each sample, where it is not None."""

    def samples_of(self, result: Any) -> list[Any]:
        return [] if result is None else [result]


@dataclass(frozen=True)
class FlatMap(SampleFunction):
    """The samples of `fn(sample)`, one sample's after another's."""

    def samples_of(self, result: Any) -> list[Any]:
        return list(result)


@dataclass(frozen=True)
class Filter(BlockFunction):
    """The samples for which `fn(sample)` is true."""

    fn: Callable[..., bool]
    seeded: bool = not_in_state()
    on_error: OnError = "raise"

    @property
    def called_as(self) -> str:
        return f"filter({name_of(self.fn)})"

    def apply(self, block: Block) -> Block:
        kept = [row for row, keep in tried("filter", self.fn, block, self.seeded, self.on_error, bool) if keep]
        block = block.drop_columns([KEY]) if self.seeded else block
        return block if len(kept) == block.num_rows else block.take(pa.array(kept, pa.int64()))


@dataclass(frozen=True)
class MapBlocks(ByBlock[Block]):
    """`fn(block)` in place of each block of rows; where it keeps the number of rows, they keep their origin."""

    by_row = False

    fn: Callable[[Block], Block]

    def block_of(self, block: Block, given: Block, schema: pa.Schema) -> Block:
        out = given
        if not out.num_rows:
            return EMPTY
        try:
            out = conform(out, schema)
        except MisfitError as error:
            words = f"column {error.column!r} is {error.wanted} in its first rows but {error.found} here; return one type always"
            if error.wanted is None:
                words = f"it returned a column {error.column!r} that its first rows have not; return it always"
            raise self._error(block, words) from None
        return with_origin(out, block, np.arange(block.num_rows)) if out.num_rows == block.num_rows else out

    def types_of(self, given: Sequence[Block]) -> tuple[pa.Schema, bool]:
        blocks, schema = list(filter(len, given)), pa.schema([])
        with suppress(pa.ArrowException):  # what goes with none before it is found when it is held against these
            for block in blocks:
                schema = pa.unify_schemas([schema, block.schema.remove_metadata()], promote_options="permissive")
        return settled(schema), complete(schema, (block.schema.names for block in blocks))

    def call(self, block: Block) -> Block:
        try:
            out = self.fn(visible(block))
        except Exception as error:
            raise self._error(block, f"{type(error).__name__}: {error}") from error
        if not isinstance(out, pa.RecordBatch):
            raise StageError(f"{self.called_as} must return a pyarrow.RecordBatch (got {type(out).__name__})")
        return without_extensions(out)

    @property
    def called_as(self) -> str:
        return f"map_blocks({name_of(self.fn)})"

    def _error(self, block: Block, message: str) -> StageError:
        return StageError(f"{self.called_as} failed in the block from {where(block, 0)} on: {message}")


@dataclass(frozen=True)
class Scan(TypedFunction[SampleResults]):
    """`fn(carry, sample)` gives (carry, sample): the sample takes the place of that one, the carry goes to the next call.

    The carry is plain JSON, copied after each call and for each state: what a function does to it changes neither.

    State: [[upstream's state, the carry], the types as text].
    """

    fn: Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]
    initial: Any

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "scan", "follows")
        try:
            object.__setattr__(self, "initial", _plain(self.initial, "initial"))
        except _NotPlainError as error:
            raise TypeError(f"scan carries plain JSON from row to row: {error}") from None

    def begin(self, epoch: int) -> State:
        return [Rebatch(self.upstream).start(epoch), self.initial]

    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[SampleResults | Fitted], None, None]:
        before, carry = at[0], _plain(at[1], "carry")
        with closing(Rebatch(self.upstream).items(before, run)) as items:
            for block, after in items:
                given = []
                for row, sample in enumerate(samples(block)):
                    carry, made = self._called(block, row, carry, sample)
                    given.append(as_dict(made))
                results = SampleResults(given, np.arange(len(given))) if given else None
                yield CallResult(block, results, True, END if after == END else [after, _plain(carry, "carry")])

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        return types_of_results(given)

    def block_of(self, block: Block, given: SampleResults, schema: pa.Schema) -> Block:
        return block_of_results(f"scan({name_of(self.fn)})", block, given, schema, "raise")

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
