"""A function of blocks called by several threads, or processes, at once; what comes of it is in order, and the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import concat
from brimful.blocks.resize import resized, resized_start
from brimful.core.background import RUN, Workers
from brimful.core.errors import StageError, one_of, settle, where
from brimful.core.map_ahead import map_ahead
from brimful.core.processes import DiedError, Remote, UnsentError
from brimful.core.stage import Stage, State

T = TypeVar("T")
Made = TypeVar("Made")
"""What a function gave for a block."""
ExecutorType: TypeAlias = Literal["thread", "process"]
MAX_WORKERS: Final = 1_024


class Called(NamedTuple, Generic[Made]):
    """A part of a block, and what the function gave for it (None where it has no row); after the block's last part, the
    state after the block."""

    block: Block
    made: Made | None
    last: bool
    after: State


@dataclass(frozen=True)
class Parallel:
    """How a function is called on blocks.

    Args:
        max_workers: how many of them are in the making at once; 0: one, by the caller's thread.
        executor_type: what makes them: threads, for functions that wait or leave the interpreter's lock; or processes.
        prefetch_factor: for each worker so many parts are ready, or in the making, before they are asked for.
        shares: whether a block is cut into as many parts as there are workers.

    Price: (prefetch_factor + 1) blocks of 4,096 rows or 1 MB held. A process takes .4 s to begin, once for an
    iterator or a loader, and 80 MB; a call of it 150 us, and what its samples and results cost to pickle.
    """

    max_workers: int = 0
    executor_type: ExecutorType = "thread"
    prefetch_factor: int = 10
    shares: bool = True

    def __post_init__(self) -> None:
        settle(self, "max_workers", most=MAX_WORKERS)
        settle(self, "prefetch_factor", 1, "block", most=MAX_WORKERS)
        one_of("executor_type", self.executor_type, *get_args(ExecutorType))
        if self.executor_type == "process" and not self.max_workers:
            raise ValueError("executor_type='process' needs max_workers, of which there are none")

    @property
    def sent(self) -> Parallel:
        """How it is called by one of many tasks, of which there are as many as processors."""
        return SERIAL if self.executor_type == "process" or self.max_workers <= 1 else self

    def called(
        self,
        fn: Callable[..., Made],
        items: Iterator[tuple[Block, State]],
        name: str,
        more: Callable[[], tuple[Any, ...]] = tuple,
        *,
        shared: bool = False,
    ) -> Generator[Called[Made], None, None]:
        """What `fn(part, *more())` gives for the parts of each block that has a row, in order.

        A function that goes to other processes is pickled, with what it needs. `shared`: the streams and epochs of an
        iterator, and the epochs of a loader, have the same workers, which end with it.
        """
        parts = self._parts(items) if self.max_workers else ((block, (True, after)) for block, after in items)
        with closing(self.results(fn, parts, name, more, shared=shared)) as results:
            for part, made, (last, after) in results:
                yield Called(part, made, last, after)

    def results(
        self,
        fn: Callable[..., Made],
        blocks: Iterator[tuple[Block, T]],
        name: str,
        more: Callable[[], tuple[Any, ...]] = tuple,
        *,
        shared: bool = False,
    ) -> Generator[tuple[Block, Made | None, T], None, None]:
        """Each block, what `fn(block, *more())` gives for it (None where it has no row), and what came with it; see `called`."""
        if not self.max_workers:
            for block, mark in blocks:
                yield block, fn(block, *more()) if block.num_rows else None, mark
            return
        with self._workers(fn, name, shared) as pool:
            call = fn if pool.remote is None else pool.remote

            def each(block: Block) -> tuple[Block, Made | None]:
                try:
                    return block, call(block, *more()) if block.num_rows else None
                except DiedError as error:
                    raise StageError(f"{error}, with rows from {where(block, 0)} on") from None
                except UnsentError as error:
                    raise StageError(f"{name} failed on rows from {where(block, 0)} on: {error}") from error

            ahead = (1 + self.prefetch_factor) * self.max_workers
            with closing(map_ahead(each, blocks, pool.workers, ahead)) as made:
                for (block, given), mark in made:
                    yield block, given, mark

    @contextmanager
    def _workers(self, fn: Callable[..., Any], name: str, shared: bool) -> Iterator[_Pool]:
        """Workers for as long as they are used; shared ones for as long as the iterator, or the loader that it runs for."""
        run = RUN.get() if shared else None
        if run is None:
            pool = self._pool(fn, name)
            with pool.workers:
                yield pool
            return
        keeper = run if run.keeper is None else run.keeper
        kept: _Pool = keeper.pools.get(id(self)) or keeper.pools.setdefault(id(self), self._pool(fn, name))
        kept.workers.belong(keeper)  # each time: a Ctrl-C may have come before the first
        yield kept

    def _pool(self, fn: Callable[..., Any], name: str) -> _Pool:
        remote = Remote(fn, name) if self.executor_type == "process" else None
        return _Pool(self, Workers(self.max_workers, name.partition("(")[0], remote), remote)

    def _parts(self, items: Iterator[tuple[Block, State]]) -> Iterator[tuple[Block, tuple[bool, State]]]:
        for block, after in items:
            size = max(1, -(-block.num_rows // self.max_workers) if self.shares else block.num_rows)
            for first in range(0, max(1, block.num_rows), size):
                yield block.slice(first, size), (first + size >= block.num_rows, after)


class _Pool(NamedTuple):
    """Threads, and the function in the processes that they ask. (No lock: a Ctrl-C would leave it locked.)"""

    of: Parallel  # whose id is no other's as long as this is here
    workers: Workers
    remote: Remote[Any] | None


SERIAL: Final = Parallel()


def joined(parts: Iterable[tuple[Block, bool, State]]) -> Iterator[tuple[Block, State]]:
    """The blocks that parts make together, each with the state that its last part has."""
    blocks: list[Block] = []
    for block, last, after in parts:
        blocks.append(block)
        if last:
            yield (blocks[0] if len(blocks) == 1 else concat(blocks)), after
            blocks = []


NOTHING: Final = cast(Stage[Block], None)
"""Upstream of a stage whose function is called elsewhere: a chain, and its data, stay here."""


@dataclass(frozen=True)
class BlockFunction(Stage[Block]):
    """Abstract: a block in, a block out, by a function that may take long. Blocks without rows are passed on as they
    are. State: see `resized`."""

    by_row = True

    upstream: Stage[Block]
    parallel: Parallel = field(default=SERIAL, kw_only=True, metadata={"runtime": True})

    def sent(self, source: Stage[Any]) -> Stage[Block]:
        return replace(self.over(self.upstream.sent(source)), parallel=self.parallel.sent)

    def start(self, epoch: int) -> State:
        return resized_start(self.upstream, epoch)

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        alone = replace(self, upstream=NOTHING)
        fn = alone.apply if self.parallel.executor_type == "process" else alone.begin
        with (
            closing(resized(self.upstream, at)) as items,
            closing(self.parallel.called(fn, items, self.called_as, shared=True)) as calls,
        ):
            yield from joined((_done(one), one.last, one.after) for one in calls)

    @property
    @abstractmethod
    def called_as(self) -> str:
        """What the user knows the call by."""

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The block that one non-empty block becomes."""

    def begin(self, block: Block) -> Block | Callable[[], Block]:
        """As `apply`; or what gives the block as soon as something has ended that goes on beside the blocks after it."""
        return self.apply(block)


def _done(one: Called[Block | Callable[[], Block]]) -> Block:
    if one.made is None:
        return one.block
    return one.made() if callable(one.made) else one.made
