"""The rows of many shards, read and worked on by the processes of a Ray cluster, in the order of one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from brimful.core.facts import Facts, facts_of, following, named
from brimful.core.processes import LogCapture
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running, with_inputs
from brimful.core.threads import read_ahead
from brimful.plan.errors import logger
from brimful.ray.cluster import Cluster, check_address
from brimful.rows.parallel import Caller, FunctionStage
from brimful.sources.files import FromFiles
from brimful.sources.format import Position, RowsAt, ShardReader, no_rows
from brimful.sources.rotation import OpenShard
from brimful.sources.urls import Shard
from brimful.tables.blocks import Block, concat
from brimful.tables.learnt import Learnt, schema_of
from brimful.tables.origins import ORIGIN
from brimful.tables.ragged import EMPTY, numpy_of

PIECE_BYTES: Final = 4 << 20
"""Of rows as they are made: so many come at once, in a message of their own (3 ms)."""
PIECE_ROWS: Final = 1 << 16
"""Rows of a shard that a piece is of at most, where few are left of them."""
AHEAD_PER_CPU: Final = 2
"""For each processor so many shards are in the making, or wait, beside those whose rows are taken."""


@dataclass(frozen=True)
class RayStage(Stage[Block]):
    """The rows of `upstream`, a chain of stages that go by the row over shards of files: each shard is a task, which reads it and
    runs the stages over it. Their rows are taken in the turns of `FromFiles`, so that order and rows are those of one process;
    only where blocks end may differ.

    State: that of `FromFiles`. A worker that dies costs the rows of its shard that had not arrived.
    Price: what of the shards at work has not been taken lies in Ray's object store, which spills to disk: of 10 active shards
    and two for each processor. This process takes 12 ns a token to put rows in turn, and as many to write them.
    """

    verb = ""

    upstream: Stage[Block]
    address: str | None = not_in_state(None)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="passes")

    def start(self, epoch: int) -> State:
        return self._files.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        files = self._files
        source = OneBlock([])
        with LogCapture():  # what is logged over the first rows, tasks log too
            chain = for_worker(self.upstream, source, run)
        with Cluster(self.address) as cluster:
            job = cluster.put(Job(files.elsewhere(), chain, source))

            def open_shard(turn: int, shard: Shard, position: Position) -> OpenShard:
                name, unit = files.urls.name(shard), files.unit(shard)
                pieces = cluster.stream(
                    made_of, job, shard, name, at=position, place=lambda at: f"shard {name}, {unit} {at[-1] + 1:,}"
                )
                return OpenShard(turn, lambda: pieces, position, None, shard.url, files.urls.timeout_seconds, unit)

            yield from files.rotated(at, open_shard, lambda: AHEAD_PER_CPU * cluster.cpus)

    @property
    def _files(self) -> FromFiles:
        stage: Stage[Any] = self.upstream
        while stage.inputs:
            (stage,) = stage.inputs
        return cast(FromFiles, stage)


def spread(stage: Stage[Block], address: str | None) -> Stage[Block]:
    """A chain of which the stages that go by the row are run by a Ray cluster; those from the first other one on stay here, and
    that is logged.

    Raises:
        ValueError: nothing of it can be spread; with the stage that is in the way.
    """
    check_address(address)
    below: list[Stage[Block]] = [stage]
    while len(found := below[-1].inputs) == 1:
        below.append(found[0])
    if not isinstance(below[-1], FromFiles):
        what = (
            "joins several data sets: write a store of each of them and join the stores" if found else "holds no shards"
        )
        raise ValueError(f"executor='ray' spreads the shards of from_files, and {named(below[-1])} {what}")
    kept = next((place for place in range(len(below) - 2, -1, -1) if facts_of(below[place]).order_by), -1)
    if kept >= len(below) - 2:
        why = f"{named(below[kept])}, the first stage after from_files, goes by more than single rows"
        raise ValueError(
            f"executor='ray' has nothing to spread: {why if kept >= 0 else 'from_files is all there is'}; put map, filter, "
            "tokenize and the like after from_files, or leave executor out"
        )
    if kept >= 0:
        logger.warning(
            "executor='ray': %s goes by more than single rows, so it and what follows it run in this process",
            named(below[kept]),
        )
    top: Stage[Block] = RayStage(below[kept + 1], address)
    for one in reversed(below[: kept + 1]):
        top = with_inputs(one, top)
    return top


def for_worker(stage: Stage[Any], source: Stage[Any], run: Run) -> Stage[Any]:
    """The chain as another process runs it over some rows, which `source` gives: it needs nothing of this one."""
    if not stage.inputs:
        return source
    own = stage
    if isinstance(stage, FunctionStage):
        learnt = None if stage.learnt is None else Learnt(schema_of(cast(Caller, stage), run))
        own = replace(stage, parallel=stage.parallel.for_worker, learnt=learnt)
    return with_inputs(own, *(for_worker(one, source, run) for one in stage.inputs))


# -- in a worker -----------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """The same for all tasks: how shards are read, and the stages over one block, which is put into `source`."""

    files: FromFiles
    chain: Stage[Block]
    source: OneBlock


@dataclass(frozen=True)
class OneBlock(Stage[Block]):
    """The block that is held."""

    held: list[Block]

    def start(self, epoch: int) -> State:
        return epoch

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        yield self.held[0], END


def made_of(job: Job, shard: Shard, name: str, at: Position) -> Iterator[tuple[RowsAt, Position]]:
    """The rows of a shard from a position on as the stages make them, in pieces, each with the position after it."""
    reader = job.files.reader(shard, name, at)
    held, after = no_rows(at)._replace(ends=np.zeros(0, np.int64)), at
    failure: Exception | None = None
    with closing(read_ahead(partial(_read, reader), 1, "read", Run())) as reads:
        while True:
            try:
                rows, read = next(reads)
                held, after = held.then(_made(job, rows)), read
            except StopIteration:
                break
            except Exception as error:  # after the rows before it
                failure = error
                break
            if held.block.nbytes >= PIECE_BYTES or held.num_rows >= PIECE_ROWS:
                piece, held = held.split(held.num_rows)
                yield piece, after
    if held.num_rows:
        yield held, after
    if failure is not None:
        raise failure


def _read(reader: ShardReader) -> Generator[tuple[RowsAt, Position], None, None]:
    with closing(reader):
        while (rows := reader.read()) is not None:
            yield rows, reader.at


def _made(job: Job, rows: RowsAt) -> RowsAt:
    if not rows.num_rows:
        return rows._replace(block=EMPTY, ends=np.zeros(0, np.int64))
    job.source.held[:] = [rows.block]
    with running(job.chain, job.chain.start(0)) as items:
        out = concat([block for block, _ in items])
    begun, lines = _lines(rows.block), _lines(out)
    assert (np.diff(begun) > 0).all(), "two rows of a shard have one place"
    return rows._replace(block=out, ends=np.searchsorted(lines, begun, side="right"))


def _lines(block: Block) -> NDArray[np.int64]:
    """Where in its shard each row came from, int64 (n,)."""
    return numpy_of(block.column(ORIGIN).field("line")) if block.num_rows else np.zeros(0, np.int64)
