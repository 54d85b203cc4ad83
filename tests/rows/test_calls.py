"""How often a user's function is called before the first thing is out: at 20 ms a call, 1,000 calls are 20 seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import brimful as bf
from brimful.batching.windows import Buffered
from brimful.core.run import Run
from brimful.rows import pace
from tests.samples import all_stages
from tests.shards import write

ROWS = 10_000


@pytest.fixture(autouse=True)
def functions_take_no_time() -> Iterator[None]:
    """`tests/rows/test_pace.py` has those that take some."""
    with patch.object(pace, "now", lambda: 0.0):
        yield


def noted(calls: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def note(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["x"])
        return {"x": row["x"], "input_ids": [row["x"]] * (1 + row["x"] % 9)}

    return note


def sequence() -> bf.Dataset:
    return bf.from_sequence([{"x": number} for number in range(ROWS)])


def streamed(data: bf.Dataset) -> bf.Dataset:
    return data.map_blocks(lambda block: block)


CHAINS: dict[str, Callable[[Any], bf.Dataset]] = {
    "map": lambda fn: sequence().map(fn),
    "of an iterable": lambda fn: bf.from_iterable([{"x": number} for number in range(ROWS)]).map(fn),
    "after a shuffle": lambda fn: streamed(sequence()).shuffle(5_000).map(fn),
    "twice": lambda fn: sequence().map(fn).map(lambda row: row),
    "and columns": lambda fn: sequence().map(fn).select(["input_ids", "x"]).add_bos_eos(1, 2),
    "filter_map": lambda fn: sequence().filter_map(fn),
    "filter": lambda fn: streamed(sequence()).filter(lambda row: fn(row) is not None),
    "flat_map": lambda fn: sequence().flat_map(lambda row: [fn(row)] * 2),
    "of many of each": lambda fn: sequence().flat_map(lambda row: [row] * 100).map(fn),
    "scan": lambda fn: sequence().scan(lambda carry, row: (carry + 1, fn(row)), 0),
    "seeded": lambda fn: sequence().map(lambda row, rng: fn(row), seed=1),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_first_sample_takes_32_calls_and_a_resume_no_more(chain: str) -> None:
    calls: list[int] = []
    data = CHAINS[chain](noted(calls))
    with data.iter() as it:
        next(it)
        assert len(calls) <= 32
        for _ in range(200):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    calls.clear()
    with CHAINS[chain](noted(calls)).iter(state) as it:
        next(it)
    assert len(calls) <= 128, "the block in which the state lies"


def test_a_resume_calls_for_no_row_before_its_block_also_in_a_later_epoch() -> None:
    calls: list[int] = []

    def make() -> bf.Dataset:
        return bf.from_sequence([{"x": number} for number in range(1_000)], repeat=True).map(noted(calls))

    with make().iter() as it:
        state = [next(it) and it.state_dict() for _ in range(1_600)][-1]
    calls.clear()
    assert next(make().iter(json.loads(json.dumps(state))))["x"] == 600
    assert min(calls) >= 512


def test_a_window_asks_for_the_rows_that_it_needs() -> None:
    calls: list[int] = []
    for batches, most in (
        (sequence().map(noted(calls)).batch_by_tokens(64, window=64), 128),
        (sequence().map(noted(calls)).batch(8, window=8), 32),
        (sequence().map(noted(calls)).batch(8), 2_048),
        (sequence().map(noted(calls)).batch_by_tokens(64), 8_192),
    ):
        calls.clear()
        stage = next(stage for stage in all_stages(batches.stage) if isinstance(stage, Buffered))
        next(stage.items(stage.start(0), Run()))
        assert len(calls) <= most, batches


def test_workers_read_no_further_ahead_than_they_are_told() -> None:
    calls: list[int] = []
    with sequence().map(noted(calls), max_workers=2, prefetch_factor=1).iter() as it:
        next(it)
        assert len(calls) <= 32 + 2 * (1 + 1) * 16


def test_types_that_are_not_told_by_32_results_take_up_to_1000() -> None:
    calls: list[int] = []

    def late(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["x"])
        return {"y": None if row["x"] < 500 else 0.5}

    samples = list(sequence().take(600).map(late))
    assert samples[499:501] == [{"y": None}, {"y": 0.5}]
    assert len(calls) == 600, "none is called for twice"


def test_a_shard_function_is_not_read_further_than_the_first_rows_where_it_has_a_schema(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.jsonl", [{"x": number} for number in range(2_000)])
    calls: list[int] = []

    def read(file: Any) -> Any:
        for line in file:
            calls.append(len(calls))
            yield json.loads(line)

    def given(**how: Any) -> int:
        calls.clear()
        with bf.from_files(shard, format=read, **how).iter() as it:
            next(it)
        return len(calls)

    assert given() <= 32 + 3 * 64
