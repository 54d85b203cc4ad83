from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

import brimful as bf
from brimful.core.counters import count, with_counters
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State
from brimful.rows import buffer
from brimful.rows.buffer import Rebatch, ReplayBuffer
from brimful.rows.chunks import ConcatChunk, PackChunk
from brimful.tables.blocks import Block
from brimful.testing import assert_exact_resume
from tests import strategies as draw


@dataclass(frozen=True)
class Coalesced(Stage[Block]):
    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        yield from buffer.coalesced(self.upstream, at, run)


@dataclass(frozen=True)
class Failing(Stage[Block]):
    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        yield from self.upstream.items(at, Run())
        raise ValueError("a bad shard")


def found(*sizes: int) -> list[int]:
    stage = Coalesced(draw.Blocks((1,) * sum(sizes), sizes[:-1]))
    return [block.num_rows for block, _ in stage.items(stage.start(0), Run())]


def tensors(values: Any) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


@dataclass(frozen=True)
class Given(Stage[Block]):
    blocks: list[Block]

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        for number in range(at, len(self.blocks)):
            yield self.blocks[number], number + 1


@dataclass(frozen=True)
class Cut(Stage[Block]):
    """So many rows, in blocks of `size`; one thing is left out on the way to each block."""

    rows: int
    size: int

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        for first in range(at, self.rows, self.size):
            last = min(first + self.size, self.rows)
            count("skipped", 1)
            block = pa.RecordBatch.from_pydict(
                {"n": range(first, last), "input_ids": [[n] * 3 for n in range(first, last)]}
            )
            yield block, END if last == self.rows else last


def joined(blocks: list[Block]) -> list[Block]:
    return [block for block, _ in Coalesced(Given(blocks)).items(0, Run())]


def test_small_blocks_are_joined_up_to_32_rows() -> None:
    assert found(*[1] * 75) == [32, 32, 11]
    assert found(20, 10, 9, 1) == [30, 10]


def test_large_blocks_stay_as_they_are() -> None:
    assert found(1, 2, 32, 3, 4096, 1) == [3, 32, 3, 4096, 1]


def resized(*sizes: int) -> list[int]:
    stage = Rebatch(draw.Blocks((1,) * sum(sizes), sizes[:-1]))
    return [block.num_rows for block, _ in stage.items(stage.start(0), Run())]


def test_long_blocks_are_cut_and_the_pieces_grow_up_to_4096_rows() -> None:
    assert resized(4096, 4096, 8192, 9000)[:12] == [16, 16, 16, 16, 32, 32, 64, 64, 128, 128, 256, 256]
    assert resized(4096, 4096, 8192, 9000)[12:] == [512, 512, 2048, 4096, 2048, 2048, 4096, 2048, 2048, 2048, 2856]


def test_blocks_that_were_cut_before_stay_whole_also_where_a_filter_left_rows_out() -> None:
    sizes = resized(*resized(4096, 4096, 4096, 4096))
    assert resized(*sizes) == sizes
    halves = [size // 2 for size in sizes]
    assert set(accumulate(resized(*halves))) <= set(accumulate(halves)), "some are joined, none is cut"


def test_the_law_holds_of_blocks_that_are_cut() -> None:
    assert_exact_resume(lambda: Rebatch(draw.Blocks((1,) * 700, (300, 5))), epochs=(0,))


def test_a_block_without_rows_ends_what_it_follows() -> None:
    assert found(1, 1, 0, 0, 1, 1, 1) == [2, 0, 3]


def test_blocks_are_joined_up_to_a_number_of_bytes() -> None:
    with patch.object(buffer, "BLOCK_BYTES", 1_000):
        sizes = found(*[1] * 100)
    assert sum(sizes) == 100
    assert set(sizes[:-1]) == {sizes[0]}
    assert 5 < sizes[0] < 50


def test_bytes_are_those_of_the_rows_alone() -> None:
    columns = {
        "text": pa.array(["a", None, "abc", "d"] * 8),
        "tokens": pa.array([[1, 2], None, [], [3]] * 8),
        "tensors": tensors(np.zeros((32, 2, 3), np.float32)),
        "nested": pa.array([[["a"], []], None, [], [None]] * 8),
        "map": pa.array([[("a", 1)], None, [], [("b", None), ("c", 2)]] * 8, pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": "a", "y": [1]}, None, {"x": None, "y": None}, {"x": "b", "y": []}] * 8),
    }
    block = pa.RecordBatch.from_pydict(columns)
    pieces = [block.slice(first, 1) for first in range(32)]
    copies = [piece.take(pa.array([0])) for piece in pieces]
    with patch.object(buffer, "BLOCK_BYTES", 1_000):
        one, other = ([block.num_rows for block in joined(blocks)] for blocks in (pieces, copies))
    assert one == other
    assert 1 < one[0] < 32


def test_an_error_comes_after_the_rows_before_it() -> None:
    stage = Coalesced(Failing(draw.Blocks((1,) * 5, (1, 1, 1, 1))))
    items = stage.items(stage.start(0), Run())
    block, _ = next(items)
    assert block.num_rows == 5
    with pytest.raises(ValueError, match=r"^a bad shard$"):
        next(items)


def rest(held: ReplayBuffer) -> list[int]:
    return list(held.take(held.fill(1_000)).column("n").to_pylist())


@pytest.mark.parametrize("again", [1, 3, 7, 100])
def test_a_position_says_by_rows_where_those_begin_that_are_held(again: int) -> None:
    with ReplayBuffer(Cut(30, 7), {"rows": 0}, Run()) as held:
        for done in range(0, 30, 5):
            assert held.fill(9) >= min(9, 30 - done)
            position = json.loads(json.dumps(held.position))
            assert position["rows"] + position.get("done", 0) == done
            assert position.keys() == ({"rows", "done", "of", "crc"} if done % 7 else {"rows"})
            with ReplayBuffer(Cut(30, again), position, Run()) as resumed:
                assert rest(resumed) == [*range(done, 30)]
            if done % 7:
                with pytest.raises(bf.StateError, match=rf"^cut gave other rows at {done % 7} rows into a block"):
                    rest(ReplayBuffer(Cut(30, again), position | {"crc": [1, 2]}, Run()))
            held.take(5)


@pytest.mark.parametrize("saves_held", [False, True])
def test_what_is_left_out_on_the_way_to_a_row_counts_once(saves_held: bool) -> None:
    def read(at: State, rows: int) -> State:
        with ReplayBuffer(Cut(30, 7), at, Run(), saves_held=saves_held) as held:
            held.fill(rows + 9)
            held.take(rows)
            return held.position

    for rows in range(1, 31):
        state, before = with_counters(read, {"rows": 0}, rows)
        _, after = with_counters(read, state, 30 - rows) if rows < 30 else (None, {})
        assert sum(counts.get("skipped", (0, None))[0] for counts in (before, after)) == 5, rows


def test_rows_that_are_gone_are_missed_whatever_of_them_was_done() -> None:
    stage = ConcatChunk(Cut(70, 35), ("input_ids",), 20)
    (_, state), *_ = stage.items(stage.start(0), Run())
    assert {"done", "values", "of"} < state.keys()
    for rows in (1, state["done"], state["of"] - 1):
        with pytest.raises(bf.StateError, match=rf"^cut gave other rows at {state['done']} rows into a block"):
            list(replace(stage, upstream=Cut(rows, 7)).items(state, Run()))


@given(draw.lengths, draw.sizes)
def test_where_blocks_are_joined_depends_on_the_state_alone(lengths: list[int], sizes: tuple[int, ...]) -> None:
    for rows in (1, 3, 5):
        with draw.small(rows):
            assert_exact_resume(lambda: Coalesced(draw.Blocks(tuple(lengths), sizes)))


@pytest.mark.parametrize("cls", [ConcatChunk, PackChunk])
def test_held_rows_are_joined_once_a_chunk(cls: type[Any]) -> None:
    stage = cls(draw.Blocks((1,) * 200, (1,) * 199), ("input_ids", "labels"), 50, *[False] * (cls is PackChunk))
    with draw.small(1), patch.object(cls, "cut", autospec=True, side_effect=cls.cut) as cut:
        blocks = [block for block, _ in stage.items(stage.start(0), Run())]
    assert len(blocks) == 200
    assert sum(block.num_rows for block in blocks) == 4
    assert cut.call_count <= 2 * 4
