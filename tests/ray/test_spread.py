"""What tasks make of shards is put in the order of one process, wherever it is gone on from; here without a cluster."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import brimful as bf
from brimful.core.processes import dumps
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.ray import spread
from brimful.sources.files import FromFiles
from brimful.sources.format import Position, RowsAt
from brimful.sources.rotation import OpenShard
from brimful.sources.urls import Shard
from brimful.tables.blocks import Block, visible


@dataclass(frozen=True)
class Here(Stage[Block]):
    """As `RayStage`, in this process; each task has what it needs by way of a pickle."""

    upstream: Stage[Block]
    files: FromFiles

    def start(self, epoch: int) -> State:
        return self.files.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        source = spread.OneBlock([])
        job = dumps(spread.Job(self.files.elsewhere(), spread.for_worker(self.upstream, source, run), source))

        def open_shard(turn: int, shard: Shard, position: Position) -> OpenShard:
            pieces = spread.made_of(pickle.loads(job), shard, self.files.urls.name(shard), position)
            return OpenShard(turn, lambda: Pieces(pieces), position, None, shard.url, 60, "line")

        yield from self.files.rotated(at, open_shard, lambda: 1)


class Pieces:
    def __init__(self, pieces: Iterator[tuple[RowsAt, Position]]) -> None:
        self._pieces = pieces

    def read(self) -> RowsAt | None:
        piece = next(self._pieces, None)
        return None if piece is None else pickle.loads(dumps(piece[0]))

    def close(self) -> None:
        """Nothing runs by itself."""


def rows_after(stage: Stage[Block], at: State) -> list[tuple[list[Any], State]]:
    with running(stage, at) as items:
        return [(visible(block).to_pylist(), state) for block, state in items]


def joined(items: list[tuple[list[Any], State]]) -> list[Any]:
    return [row for rows, _ in items for row in rows]


@settings(max_examples=40)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=5),
    active=st.integers(1, 4),
    piece_rows=st.integers(1, 4),
    block_rows=st.integers(1, 6),
)
def test_rows_are_those_of_one_process_from_every_state_on(
    rows: list[list[int]], active: int, piece_rows: int, block_rows: int
) -> None:
    """Each row becomes as many as it says."""
    with tempfile.TemporaryDirectory() as folder, patch.object(spread, "PIECE_ROWS", piece_rows):
        for shard, counts in enumerate(rows):
            lines = [json.dumps({"shard": shard, "n": n, "count": count}) for n, count in enumerate(counts)]
            (Path(folder) / f"{shard}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        data = bf.from_files(f"{folder}/*.jsonl", n_active_shards=active)
        chain = data.flat_map(lambda row: [row | {"copy": copy} for copy in range(row["count"])])
        chain = chain.filter(lambda row: row["n"] != 2).map(lambda row: row | {"text": str(row["n"])})
        assert isinstance(data.stage, FromFiles)
        stage = Here(chain.stage, data.stage)
        with patch("brimful.sources.files.BLOCK_ROWS", block_rows):
            items = rows_after(stage, stage.start(0))
            assert joined(items) == joined(rows_after(chain.stage, chain.stage.start(0)))
            for place, (_, state) in enumerate(items):
                saved = json.loads(json.dumps(state))
                after = [] if saved == END else rows_after(stage, saved)
                assert after == items[place + 1 :]


def test_tasks_have_the_types_of_the_whole(tmp_path: Path) -> None:
    for shard, value in enumerate((0.5, 1)):
        (tmp_path / f"{shard}.jsonl").write_text(json.dumps({"x": value}) + "\n")
    data = bf.from_files(f"{tmp_path}/*.jsonl", n_active_shards=1)
    chain = data.map(lambda row: {"y": row["x"] if row["x"] < 1 else 1})
    assert isinstance(data.stage, FromFiles)
    stage = Here(chain.stage, data.stage)
    with running(stage, stage.start(0)) as items:
        assert [visible(block).schema.field("y").type for block, _ in items] == [pa.float64()] * 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_rows_that_were_split_are_whole_again(counts: list[int], data: Any) -> None:
    block = pa.RecordBatch.from_pydict({"n": np.repeat(np.arange(len(counts)), counts)})
    whole = RowsAt(block, np.arange(len(counts))[:, None], np.zeros(len(counts), int), np.cumsum(counts))
    first, rest = whole.split(data.draw(st.integers(1, len(counts))))
    assert first.block.num_rows == sum(counts[: first.num_rows])
    again = first.then(rest)
    assert (again.block.num_rows and again.block.to_pylist()) == (block.num_rows and block.to_pylist())
    assert again.positions.tolist() == whole.positions.tolist()
    assert again.ends is not None
    assert again.ends.tolist() == np.cumsum(counts).tolist()
