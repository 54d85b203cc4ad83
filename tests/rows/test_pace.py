"""Time ends the blocks of a user's function, and decides nothing else. Time is told by the tests: nobody sleeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import brimful as bf
from brimful.batching.windows import Buffered
from brimful.core.facts import facts_of
from brimful.core.stage import Stage, running
from brimful.rows import pace
from brimful.rows.mixing import Interleave
from brimful.tables.blocks import Block
from tests import strategies as draw
from tests.samples import all_stages
from tests.shards import write

ROWS = 3_000
SECONDS = 0.004
MOST = 25
"""Rows of 4 ms in a block: 50 ms of work, or up to twice as much."""


class Slow:
    """A function that takes so many seconds for a row, by a clock of its own."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds, self.now, self.calls = seconds, 0.0, 0

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.now += self.seconds
        self.calls += 1
        return {"n": row["n"], "input_ids": [row["n"]] * (1 + row["n"] % 3)}

    @contextmanager
    def told(self) -> Iterator[None]:
        with patch.object(pace, "now", lambda: self.now):
            yield


def numbers(count: int = ROWS) -> bf.Dataset:
    return bf.from_iterable([{"n": number} for number in range(count)])


def blocks_of(stage: Stage[Block]) -> list[Block]:
    with running(stage, stage.start(0)) as items:
        return [block for block, _ in items if block.num_rows]


def windows_of(batches: bf.Batches) -> Buffered:
    return next(stage for stage in all_stages(batches.stage) if isinstance(stage, Buffered))


@pytest.mark.parametrize(("seconds", "most"), [(SECONDS, MOST), (0.04, 2), (3.0, 2)])
def test_a_slow_function_gets_100_ms_of_work_at_once(seconds: float, most: int) -> None:
    slow = Slow(seconds)
    with slow.told():
        blocks = blocks_of(numbers(300).map(slow).stage)
    first = 32  # the time is not known yet
    later = [block for block in blocks if block["n"][0].as_py() >= first]
    assert {block.num_rows for block in later[:-1]} <= {*range(most // 2, most + 1)} - {0}
    assert [number for block in blocks for number in block["n"].to_pylist()] == [*range(300)]


@pytest.mark.parametrize("seconds", [0.02, 0.06, 1.0])
def test_what_a_call_takes_however_few_rows_it_has_makes_no_short_blocks(seconds: float) -> None:
    """As where each call asks a server: a row a call would take a thousand times as long."""
    clock, calls = 0.0, 0

    def tokenizer(texts: list[str]) -> list[list[int]]:
        nonlocal clock, calls
        clock, calls = clock + seconds + 1e-5 * len(texts), calls + 1
        return [[1]] * len(texts)

    data = bf.from_sequence(pa.table({"text": ["a"] * 30_000})).tokenize(tokenizer)
    with patch.object(pace, "now", lambda: clock):
        blocks = blocks_of(data.stage)
    assert sum(block.num_rows for block in blocks) == 30_000
    assert calls < 45


def test_a_function_that_grows_slow_gets_few_rows_at_once_and_a_quick_one_more_again() -> None:
    clock, sizes = 0.0, []

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal clock
        clock += 0.01 if 5_000 < row["n"] < 9_500 else 1e-6
        return row

    data = bf.from_sequence(pa.table({"n": range(30_000)})).map(slow)
    with patch.object(pace, "now", lambda: clock):
        sizes = [(block["n"][0].as_py(), block.num_rows) for block in blocks_of(data.stage)]
    in_the_middle = [rows for first, rows in sizes if 8_192 <= first < 9_400]
    assert max(in_the_middle) <= 12
    assert max(rows for _, rows in sizes[-6:]) >= 1_024


def test_a_quick_function_gets_blocks_as_long_as_ever() -> None:
    slow = Slow(1e-6)
    with slow.told():
        sizes = [
            block.num_rows for block in blocks_of(bf.from_sequence(pa.table({"n": range(20_000)})).map(slow).stage)
        ]
    assert max(sizes) >= 2_048
    assert len(sizes) < 30


def test_rows_that_were_waited_for_are_not_held_for_others() -> None:
    slow = Slow(0.03)
    with slow.told():
        blocks = blocks_of(numbers(200).map(slow).add_bos_eos(1, 2).select(["n", "input_ids"]).enumerate().stage)
    assert max(block.num_rows for block in blocks if block["n"][0].as_py() >= 32) <= 2


def test_batches_in_arrival_order_wait_for_no_window() -> None:
    slow = Slow()
    windows = windows_of(numbers().map(slow).batch(8))
    with slow.told(), running(windows, windows.start(0)) as items:
        seen = 0
        for window, _ in items:
            seen += len(window)
            assert slow.calls <= max(seen + 1 + MOST, 32 + MOST)
            assert len(window) <= 32 or seen == ROWS
    assert seen == ROWS


@pytest.mark.parametrize("seed", range(3))
def test_map_blocks_gets_the_same_blocks_in_each_run(seed: int) -> None:
    def sizes(data: bf.Dataset) -> list[int]:
        return [size for block in blocks_of(data.map_blocks(size_of).stage) for size in block["size"].to_pylist()]

    def size_of(block: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"size": [block.num_rows]})

    table = bf.from_sequence(pa.table({"n": range(5_000)}))
    steady = sizes(table.map(Slow(0.0)))
    with draw.jumping_time(seed):
        assert sizes(table.map(Slow(0.0)).filter(bool)) == steady
    assert max(steady) <= 512, "a slow function below it has others wait for no more"
    assert max(sizes(table)) >= 2_048


@pytest.mark.parametrize("seed", range(3))
def test_types_are_those_of_the_first_32_results_however_blocks_end(seed: int) -> None:
    def later(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 if row["id"] < 32 else 0.5}

    def absent(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1, "y": None if row["id"] < 63 else "y"}

    for fn, kinds in ((later, {"x": pa.int64()}), (absent, {"x": pa.int64(), "y": pa.string()})):
        for sizes in ((), (31, 1), (33,), (3,) * 30, (40, 40)):
            rows = bf.Dataset(draw.Blocks((1,) * 90, sizes), False).map(lambda row: row)
            with draw.jumping_time(seed):
                assert (
                    dict(zip(*zip(*((one.name, one.type) for one in facts_of(rows.map(fn).stage).row_schema()))))
                    == kinds
                )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_names_rows_wherever_blocks_ended_then_and_end_now(workers: int) -> None:
    def make(fn: Any) -> bf.Batches:
        return numbers(400).map(fn, max_workers=workers).filter(lambda row: row["n"] % 5 != 0).batch(7)

    whole = [batch["n"].tolist() for batch in make(Slow(0.0))]
    for then, now in ((0.0, 1.0), (1.0, 0.0), (0.004, 0.02)):
        slow = Slow(then)
        with slow.told(), make(slow).iter() as it:
            for number in range(30):
                assert next(it)["n"].tolist() == whole[number]
            state = json.loads(json.dumps(it.state_dict()))
        slow = Slow(now)
        with slow.told(), make(slow).iter(state) as it:
            assert [batch["n"].tolist() for batch in it] == whole[30:]


def test_rows_that_differ_are_found_wherever_blocks_end_now(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"n": number} for number in range(300)])

    def make(slow: Slow) -> bf.Batches:
        return bf.from_files(path).map(slow).batch(7)

    slow = Slow()
    with slow.told(), make(slow).iter() as it:
        for _ in range(20):
            next(it)
        state = it.state_dict()
    text = Path(path).read_text()
    Path(path).write_text(text.replace('"n": 139}', '"n": 931}'))
    slow = Slow(1.0)
    with slow.told(), pytest.raises(bf.StateError, match="gave other rows"):
        next(make(slow).iter(state))


@pytest.mark.parametrize("column", [None, "input_ids"])
def test_weights_change_at_a_row_wherever_blocks_end(column: str | None) -> None:
    def rows(sizes: tuple[int, ...]) -> list[int]:
        parts = tuple(draw.Blocks((2, 1, 5) * 30, sizes[part:]) for part in range(2))
        stage = Interleave(parts, (1.0, 5.0), "first", column)
        # others up to so many rows, or tokens, or a few more: the last row has several
        at = stage.start(0) | {"before": [{"until": 20, "weights": [["0", 1.0], ["1", 1.0]]}]}
        with running(stage, at) as items:
            return [number for block, _ in items if block.num_rows for number in block["id"].to_pylist()]

    whole = rows(())
    assert rows((3,) * 40) == rows((7, 1) * 20) == whole


@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_new_weights_begin_with_the_same_row_wherever_blocks_end(by: Any) -> None:
    def make(weights: list[float], fn: Any) -> bf.Batches:
        parts = [bf.from_iterable([{"n": 10_000 * part + number} for number in range(3_000)]) for part in range(2)]
        return bf.interleave_datasets([part.map(fn) for part in parts], weights=weights, by=by).batch(7)

    with make([1, 1], Slow(0.0)).iter() as it:
        for _ in range(40):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    found = []
    for seed in range(4):
        with draw.jumping_time(seed), make([1, 5], Slow(0.0)).iter(state, allow={"weights"}) as it:
            found.append([next(it)["n"].tolist() for _ in range(60)])
    assert found == found[:1] * 4


def test_what_is_left_out_of_batches_in_arrival_order_is_counted_once() -> None:
    def make() -> bf.Batches:
        return numbers(61).map(lambda row: {"input_ids": [7] * (row["n"] % 4 > 0)}).batch(3, drop_last=True)

    def counted(it: Any) -> tuple[int, int]:
        return it.stats._counters.counts().get("empty", 0), it.stats.dropped

    with make().iter() as it:
        list(it)
        whole = counted(it)
    assert whole[1] == 1
    for stop in (1, 7, 19):
        with make().iter() as it:
            for _ in range(stop):
                next(it)
            first, state = counted(it), it.state_dict()
        with make().iter(state) as it:
            list(it)
            assert tuple(one + other for one, other in zip(first, counted(it))) == whole
