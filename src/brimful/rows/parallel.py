"""Several threads or processes call a function on blocks at once; the results keep their order and do not change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from brimful.core.facts import Facts, facts_of, row_by_row
from brimful.core.processes import DiedError, Remote, UnsentError
from brimful.core.run import Run
from brimful.core.stage import Stage, State, with_inputs
from brimful.core.threads import Workers, map_ahead
from brimful.plan.errors import StageError, check_count, one_of
from brimful.plan.once import once
from brimful.rows.buffer import Rebatch
from brimful.rows.pace import Pace
from brimful.tables.blocks import Block, concat, rows_at
from brimful.tables.origins import where

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
        by_time: whether blocks of a function of rows end after about 50 ms of work.

    Price: (prefetch_factor + 1) blocks of 4,096 rows, 1 MB or 50 ms of work held. A process takes .4 s to begin, once for an
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
        with (
            closing(Rebatch(upstream).cut(at, run, rows)) as items,
            closing(self.results(fn, self.parts(items), run, name, more, pace, shared=True)) as results,
        ):
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

        def called(fn: Callable[..., Made], block: Block) -> Made | None:
            if not block.num_rows:
                return None
            return fn(block, *more()) if pace is None else pace.timed(block.num_rows, fn, block, *more())

        if not self.max_workers or run.replay is not None:
            for block, mark in blocks:
                yield block, called(fn, block), mark
            return
        with self._workers(fn, name, run if shared else None) as pool:
            call = fn if pool.remote is None else pool.remote

            def each(block: Block) -> tuple[Block, Made | None]:
                try:
                    return block, called(call, block)
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


class _Pool(NamedTuple):
    """Threads, and the function in the processes that they ask. It has no lock, which a Ctrl-C would leave locked."""

    of: Parallel  # kept, so that no other object gets its id
    workers: Workers
    remote: Remote[Any] | None


SERIAL: Final = Parallel()


def joined(
    calls: Iterable[CallResult[Made]], block_of: Callable[[CallResult[Made]], Block]
) -> Iterator[tuple[Block, State]]:
    """Joins what `block_of` makes of the parts of each block; its state is that of its last part."""
    blocks: list[Block] = []
    for one in calls:
        blocks.append(block_of(one))
        if one.last:
            yield (blocks[0] if len(blocks) == 1 else concat(blocks)), one.after
            blocks = []


DETACHED: Final = cast(Stage[Block], None)
"""The upstream of a stage that is sent elsewhere to call its function: the chain and its data stay here."""


@dataclass(frozen=True)
class BlockFunction(Stage[Block]):
    """Abstract: takes a block and gives a block, by a function that may take long. Blocks without rows pass through as they are.
    State: see `Rebatch`."""

    upstream: Stage[Block]
    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})

    def facts(self, *inputs: Facts) -> Facts:
        return row_by_row(self, inputs[0], cut_by_time=self.parallel.by_time or inputs[0].cut_by_time)

    @once
    def _pace(self) -> Pace:
        return self.parallel.pace

    def for_worker(self) -> BlockFunction:
        """The same in one of many tasks."""
        return replace(self, parallel=self.parallel.for_worker)

    def start(self, epoch: int) -> State:
        return Rebatch(self.upstream).start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        alone = replace(self, upstream=DETACHED)
        fn = alone.apply if self.parallel.executor_type == "process" else alone.begin
        with closing(self.parallel.calls(fn, self.upstream, at, run, self.called_as, pace=self._pace)) as calls:
            yield from joined(calls, _done)

    @property
    @abstractmethod
    def called_as(self) -> str:
        """The name of the call in messages."""

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The result for one block that has rows."""

    def begin(self, block: Block) -> Block | Callable[[], Block]:
        """As `apply`; or a function that waits for work in the background and then gives the block."""
        return self.apply(block)


def uncut(stage: Stage[T]) -> Stage[T]:
    """The chain with blocks that no time cuts, the same in each run: for what goes by blocks."""
    if not facts_of(stage).cut_by_time:
        return stage
    own = with_inputs(stage, *map(uncut, stage.inputs))
    parallel: Parallel | None = getattr(own, "parallel", None)
    return own if parallel is None else replace(cast(Any, own), parallel=replace(parallel, by_time=False))


def _done(one: CallResult[Block | Callable[[], Block]]) -> Block:
    if one.made is None:
        return one.block
    return one.made() if callable(one.made) else one.made
