"""Several threads or processes call a function on blocks at once; the results keep their order and do not change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast, get_args

import pyarrow as pa

from brimful.core.facts import Facts, facts_of, following, row_by_row
from brimful.core.processes import DiedError, Remote, UnsentError
from brimful.core.repeat import EmptyEpochGuard
from brimful.core.run import Run
from brimful.core.stage import Stage, State, with_inputs
from brimful.core.threads import Workers, map_ahead
from brimful.plan.errors import StageError, check_count, one_of
from brimful.plan.once import once
from brimful.rows.buffer import Rebatch
from brimful.rows.pace import Pace
from brimful.tables.blocks import Block, concat, rows_at
from brimful.tables.learnt import Learner, Learnt, known_by, learn_schema, schema_of
from brimful.tables.origins import where
from brimful.tables.plain import plain
from brimful.tables.ragged import EMPTY

T = TypeVar("T")
Made = TypeVar("Made")
"""The result of a function for a block."""
ExecutorType: TypeAlias = Literal["thread", "process"]
MAX_WORKERS: Final = 1_024


class CallResult(NamedTuple, Generic[Made]):
    """A part of a block and the result of the function for it (None where the part has no row). `last`: it is the last part of
    its block. `after`: the state after the block."""

    block: Block
    made: Made | None
    last: bool
    after: State


@dataclass(frozen=True)
class Parallel:
    """How a function is called on blocks.

    Args:
        max_workers: how many calls run at once; 0: the caller's thread makes them.
        executor_type: threads, for functions that wait or release the interpreter's lock; or processes.
        prefetch_factor: how many parts each worker has ready, or at work, before they are asked for.
        shares: cut each block into as many parts as there are workers.
        by_time: whether blocks of a function of rows end after about 100 ms of work.

    Price: (prefetch_factor + 1) blocks of 4,096 rows, 1 MB or 100 ms of work held. A process takes .4 s to begin, once for an
    iterator or a loader, and 80 MB; a call of it 150 us, and what its samples and results cost to pickle.
    """

    max_workers: int = 0
    executor_type: ExecutorType = "thread"
    prefetch_factor: int = 10
    shares: bool = True
    by_time: bool = True

    def __post_init__(self) -> None:
        check_count(self, "max_workers", most=MAX_WORKERS)
        check_count(self, "prefetch_factor", 1, "block", most=MAX_WORKERS)
        one_of("executor_type", self.executor_type, *get_args(ExecutorType))
        if self.executor_type == "process" and not self.max_workers:
            raise ValueError("executor_type='process' needs max_workers, of which there are none")

    @property
    def for_worker(self) -> Parallel:
        """The same in one of many tasks, of which there are as many as processors."""
        return SERIAL if self.executor_type == "process" or self.max_workers <= 1 else self

    def calls(
        self,
        fn: Callable[..., Made],
        upstream: Stage[Block],
        at: State,
        run: Run,
        name: str,
        more: Callable[[], tuple[Any, ...]] = tuple,
        pace: Pace | None = None,
    ) -> Generator[CallResult[Made], None, None]:
        """The results of `fn(part, *more())` for the parts of each block of a stage, in order. `Rebatch` cuts the blocks, where
        `pace` says so."""
        rows = rows_at if pace is None else partial(pace.rows, replays=run.replay is not None)
        with closing(Rebatch(upstream).cut(at, run, rows)) as items:
            if not self.max_workers:  # few calls inside of one another, as many stages may be
                for block, after in items:
                    yield CallResult(block, _called(fn, block, more, pace), True, after)
                return
            with closing(self.results(fn, self.parts(items), run, name, more, pace, shared=True)) as results:
                for part, made, (last, after) in results:
                    yield CallResult(part, made, last, after)

    def results(
        self,
        fn: Callable[..., Made],
        blocks: Iterator[tuple[Block, T]],
        run: Run,
        name: str,
        more: Callable[[], tuple[Any, ...]] = tuple,
        pace: Pace | None = None,
        *,
        shared: bool = False,
    ) -> Generator[tuple[Block, Made | None, T], None, None]:
        """Each block, the result of `fn(block, *more())` (None where it has no row), and its mark.

        A function that goes to other processes is pickled. `pace` is told how long each call takes. `shared`: all streams and
        epochs of an iterator (or all epochs of a loader) use the same workers, which end with it.
        """
        if not self.max_workers or run.replay is not None:
            for block, mark in blocks:
                yield block, _called(fn, block, more, pace), mark
            return
        with self._workers(fn, name, run if shared else None) as pool:
            call = fn if pool.remote is None else pool.remote

            def each(block: Block) -> tuple[Block, Made | None]:
                try:
                    return block, _called(call, block, more, pace)
                except DiedError as error:
                    raise StageError(f"{error}, with rows from {where(block, 0)} on") from None
                except UnsentError as error:
                    raise StageError(f"{name} failed on rows from {where(block, 0)} on: {error}") from error

            ahead = (1 + self.prefetch_factor) * self.max_workers
            with closing(map_ahead(each, blocks, pool.workers, ahead, run)) as made:
                for (block, given), mark in made:
                    yield block, given, mark

    @contextmanager
    def _workers(self, fn: Callable[..., Any], name: str, run: Run | None) -> Iterator[_Pool]:
        """Workers that end after use; those of a run end with it, or with the loader that it belongs to."""
        if run is None:
            pool = self._pool(fn, name)
            with pool.workers:
                yield pool
            return
        owner = run.owner or run
        kept: _Pool = owner.pools.get(id(self)) or owner.pools.setdefault(id(self), self._pool(fn, name))
        kept.workers.belong(owner, shared=owner.several)  # each time: a Ctrl-C may have come before the first
        yield kept

    def _pool(self, fn: Callable[..., Any], name: str) -> _Pool:
        remote = Remote(fn, name) if self.executor_type == "process" else None
        return _Pool(self, Workers(self.max_workers, name.partition("(")[0], remote), remote)

    @property
    def pace(self) -> Pace:
        """That of a function of rows that is called so, of which nobody knows yet how long it takes."""
        return Pace(self._shares, self.by_time)

    @property
    def _shares(self) -> int:
        return max(1, self.max_workers) if self.shares else 1

    def parts(self, items: Iterable[tuple[Block, State]]) -> Iterator[tuple[Block, tuple[bool, State]]]:
        """The parts of each block, each with whether it is the last, and the state after the block."""
        for block, after in items:
            size = max(1, -(-block.num_rows // self._shares))
            for first in range(0, max(1, block.num_rows), size):
                yield block.slice(first, size), (first + size >= block.num_rows, after)


def _called(
    fn: Callable[..., Made], block: Block, more: Callable[[], tuple[Any, ...]], pace: Pace | None
) -> Made | None:
    """The result for a block; None where it has no row."""
    if not block.num_rows:
        return None
    return fn(block, *more()) if pace is None else pace.timed(block.num_rows, fn, block, *more())


class _Pool(NamedTuple):
    """Threads, and the function in the processes that they ask. It has no lock, which a Ctrl-C would leave locked."""

    of: Parallel  # kept, so that no other object gets its id
    workers: Workers
    remote: Remote[Any] | None


SERIAL: Final = Parallel()


DETACHED: Final = cast(Stage[Block], None)
"""The upstream of a stage that is sent elsewhere to call its function: the chain and its data stay here."""


class Fitted(NamedTuple):
    """The block that a worker has made of its results."""

    block: Block


class Caller(Learner, Protocol):
    """A stage that calls a function on blocks, and makes blocks of the results."""

    def start(self, epoch: int) -> State: ...

    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[Any], None, None]:
        """The results for the blocks that follow a state, and the state after each. `schema` gives what they are fitted to, None
        while that is not known."""

    def types_of(self, given: Sequence[Any]) -> tuple[pa.Schema, bool]:
        """The types of some results, and whether they are complete: see `schema.types_of`."""

    def finish(self, block: Block, made: Any, schema: pa.Schema | None) -> Block:
        """The results for a block that has rows, in the columns and types of a schema."""


def typed_blocks(stage: Caller, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
    """What a stage makes of the blocks that follow a state, in the types of its first results. A run from the start of epoch 0
    holds these until their types are known. A run of a later epoch, or of a stream, calls the function for them once more, unless
    a state has them."""
    schema = stage.learnt.known(run)
    of_whole = not schema and stage.learnt in run.wholes
    if of_whole or (schema is None and at != stage.start(0)):
        schema = schema_of(stage, run)
    with closing(stage.calls(at, run, lambda: schema or None)) as calls:
        results: Iterator[CallResult[Any]] = calls
        if not schema:  # not known, or epoch 0 has no result: those of this run
            watched = _Watched(stage)
            first = learn_schema(calls, watched.results, stage.types_of)
            schema, results = watched.filled(first.schema), first.calls
            if schema:
                stage.learnt.keep(run, schema)
        yield from joined(results, lambda one: EMPTY if one.made is None else _finished(stage, one, schema))


def first_types_of(stage: Caller, epoch: int) -> pa.Schema:
    """The types of the first results of an epoch."""
    run = Run(Run.here())
    try:
        with run.entered(), closing(stage.calls(stage.start(epoch), run, lambda: None)) as calls:
            watched = _Watched(stage)
            first = learn_schema(calls, watched.results, stage.types_of)
            if first.error is not None and not first.schema.names:
                raise first.error
            return watched.filled(first.schema)
    finally:
        run.close()


class _Watched:
    """Gives the results of a call, counts the epochs that have none, and notes the types of what was read."""

    def __init__(self, stage: Caller) -> None:
        self._waiting = EmptyEpochGuard(cast(Stage[Any], stage), None)
        self._read = pa.schema([])

    def results(self, one: CallResult[Any]) -> Any:
        self._waiting.saw(0 if one.made is None else len(one.made), one.after)
        if one.made is not None:
            self._read = one.block.schema
        return one.made

    def filled(self, schema: pa.Schema) -> pa.Schema:
        """The types of results; a column that was null in the first of them has the type of the column of that name that was
        read."""
        known = {field.name: plain(field.type) for field in self._read}
        empty = pa.types.is_null
        return pa.schema(
            [field.with_type(known.get(field.name, field.type)) if empty(field.type) else field for field in schema]
        )


def joined(
    calls: Iterable[CallResult[Any]], block_of: Callable[[CallResult[Any]], Block]
) -> Iterator[tuple[Block, State]]:
    """Joins what `block_of` makes of the parts of each block; its state is that of its last part."""
    blocks: list[Block] = []
    for one in calls:
        blocks.append(block_of(one))
        if one.last:
            yield (blocks[0] if len(blocks) == 1 else concat(blocks)), one.after
            blocks = []


def _finished(stage: Caller, one: CallResult[Any], schema: pa.Schema | None) -> Block:
    return one.made.block if isinstance(one.made, Fitted) else stage.finish(one.block, one.made, schema)


@dataclass(frozen=True)
class FunctionStage(Stage[Block]):
    """Abstract: calls a function that may take long on blocks, perhaps in workers.

    If it learns types (then it is a `Caller`), all results must fit those of the first 32, or of up to 1,000 while a column of
    them is null or absent. Else its results are blocks as they are, and blocks without rows pass through.

    State: see `Rebatch`.
    """

    upstream: Stage[Block]
    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})
    learnt: Learnt | None = field(default=None, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    by_row: ClassVar[bool] = True
    """Whether it is called with rows, and not with blocks as they come."""

    def facts(self, *inputs: Facts) -> Facts:
        known = {} if self.learnt is None else known_by(cast(Caller, self))
        if not self.by_row:
            return following(self, *inputs, cut_by_time=False, seam="passes", **known)
        return row_by_row(self, *inputs, cut_by_time=self.parallel.by_time or inputs[0].cut_by_time, **known)

    def start(self, epoch: int) -> State:
        return Rebatch(self._read).start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        return self._untyped(at, run) if self.learnt is None else typed_blocks(cast(Caller, self), at, run)

    def _untyped(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        with closing(self.calls(at, run, lambda: None)) as calls:
            yield from joined(
                calls, lambda one: one.block if one.made is None else self.finish(one.block, one.made, None)
            )

    def calls(
        self, at: State, run: Run, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[Any], None, None]:
        alone = replace(self, upstream=DETACHED, learnt=None)
        return self.parallel.calls(alone.called, self._read, at, run, self.called_as, lambda: (schema(),), self._pace)

    def called(self, block: Block, schema: pa.Schema | None) -> Any:
        """The results for one block that has rows, fitted to a schema if it is known."""
        made = self.work(block)
        if schema is not None:
            return Fitted(self.finish(block, made, schema))
        return made() if callable(made) and self.parallel.executor_type == "process" else made

    def first_types(self, epoch: int) -> pa.Schema:
        """The types of the first results of an epoch, of what learns them."""
        return first_types_of(cast(Caller, self), epoch)

    @property
    @abstractmethod
    def called_as(self) -> str:
        """The name of the call in messages."""

    @abstractmethod
    def work(self, block: Block) -> Any:
        """The results for one block that has rows; or a function that waits for work in the background and then gives them."""

    def finish(self, block: Block, made: Any, schema: pa.Schema | None) -> Block:
        """The block that is made of the results for a block."""
        done: Block = made() if callable(made) else made
        return done

    @once
    def _pace(self) -> Pace | None:
        """Of a function of rows, of which nobody knows yet how long it takes; None: it gets whole blocks."""
        return self.parallel.pace if self.by_row else None

    @once
    def _read(self) -> Stage[Block]:
        """What it reads. A function of whole blocks may make something else of others, so these are the same in each run."""
        return self.upstream if self.by_row else uncut(self.upstream)


def uncut(stage: Stage[T]) -> Stage[T]:
    """The chain with blocks that no time cuts, the same in each run: for what goes by blocks."""
    if not facts_of(stage).cut_by_time:
        return stage
    own = with_inputs(stage, *map(uncut, stage.inputs))
    parallel: Parallel | None = getattr(own, "parallel", None)
    return own if parallel is None else replace(cast(Any, own), parallel=replace(parallel, by_time=False))
