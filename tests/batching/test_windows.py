from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.windows import Buffered, Planned
from brimful.core.run import Run
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, running
from brimful.plan import TokenBudget
from brimful.tables.blocks import Block
from brimful.testing import assert_exact_resume
from tests.samples import tokens

LENGTHS = ("input_ids",)


def streamed(sizes: list[int]) -> bf.Dataset:
    return bf.from_iterable([{"input_ids": [number] * size} for number, size in enumerate(sizes)])


def run(stage: Buffered | Planned, at: Any = None) -> list[Any]:
    return [window for window, _ in stage.items(stage.start(0) if at is None else at, Run())]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 15))
def test_windows_hold_the_rows_in_order_and_a_short_last_one_joins_the_one_before(sizes: list[int], size: int) -> None:
    indexed = Planned(tokens(*([7] * length for length in sizes)).stage, size, LENGTHS, True)  # type: ignore[arg-type]
    buffered = Buffered(streamed(sizes).stage, size, LENGTHS, True)
    for windows in (run(buffered), run(indexed)):
        assert [length for window in windows for length in window.lengths.tolist()] == sizes
        assert [window.number for window in windows] == list(range(len(windows)))
        assert all(len(window) == size for window in windows[:-1])
        assert not windows or len(sizes) < size or size // 2 <= len(windows[-1]) < size + (size + 1) // 2


def test_a_window_gives_its_rows_in_any_order() -> None:
    (window,) = run(Buffered(streamed([1, 2, 3]).stage, 5, LENGTHS, True))
    block = window.take(np.array([2, 0]))
    assert block.column("input_ids").to_pylist() == [[2, 2, 2], [0]]


def test_auto_is_resolved_once_and_stays_in_the_state() -> None:
    stage = Buffered(streamed([number % 50 for number in range(3_000)]).stage, 0, LENGTHS, True, TokenBudget(200))
    items = list(stage.items(stage.start(0), Run()))
    size = items[0][1]["size"]
    assert [len(window) for window, _ in items] == [1_024, 1_976], "a rest shorter than half of the size joins"
    assert 1_024 < size < 1_976
    assert {state["size"] for _, state in items[:-1]} == {size}
    assert [len(window) for window in run(stage, items[0][1])] == [len(window) for window, _ in items[1:]]


@pytest.mark.parametrize(("share", "first"), [(0.0, 1_024), (0.4, 2_000)])
def test_an_automatic_window_begins_short_in_each_epoch(
    share: float, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.batching.windows.auto_rows", lambda *_: 5_000)
    read: list[int] = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        read.append(1)
        return sample

    rows = streamed([1 + number % 50 for number in range(20_000)]).map(noted).stage
    stage = Buffered(rows, 0, LENGTHS, True, TokenBudget(200), first_share=share)
    for epoch in range(2):
        items = stage.items(stage.start(epoch), Run())
        read.clear()
        sizes = [len(next(items)[0])]
        assert len(read) <= first + first // 2 + 2 * BLOCK_ROWS
        sizes += [len(window) for window, _ in items]
        assert sizes[:2] == [first, min(4 * first, 5_000)]
        assert sizes[2] == 5_000
        assert sum(sizes) == 20_000


def test_windows_of_so_many_batches_do_not_begin_short() -> None:
    rows = streamed([1 + number % 50 for number in range(9_000)]).stage
    stage = Buffered(rows, 0, LENGTHS, True, TokenBudget(200), 500)
    assert len(next(stage.items(stage.start(0), Run()))[0]) > 3_000


def test_only_rows_that_are_wanted_are_read() -> None:
    read: list[int] = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        read.append(1)
        return sample

    stage = Buffered(streamed([1] * 5_000).map(noted).stage, 300, LENGTHS, True)
    items = stage.items(stage.start(0), Run())
    next(items)
    assert len(read) <= 300 + 150 + 256 + 1_000 + 256, "and those that its types are told by"
    items.close()


def test_a_slow_function_is_called_for_few_rows_before_the_first_batch_in_arrival_order() -> None:
    read: list[int] = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        read.append(sample["id"])
        return sample

    data = bf.from_iterable([{"id": number, "input_ids": [1]} for number in range(9_000)]).map(noted)
    first = next(iter(data.batch(8)))
    assert first["id"].tolist() == list(range(8))
    assert len(read) <= 256, "one window, and one that is read ahead"
    found = [batch["id"].tolist() for batch in data.batch(7)]
    assert found == [list(range(at, min(at + 7, 9_000))) for at in range(0, 9_000, 7)]
    assert_exact_resume(lambda: bf.from_iterable(rows_of(300)).batch(3))


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "input_ids": [1] * (1 + number % 5)} for number in range(count)]


def test_another_column_does_not_change_an_automatic_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.batching.windows.AUTO_BYTES", 40_000)
    lean, rich = (
        bf.from_iterable([row | ({"text": "x" * 500} if text else {}) for row in rows_of(6_000)]).batch_by_tokens(256)
        for text in (False, True)
    )
    seen = [[batch["id"].tolist() for batch in data] for data in (lean, rich)]
    assert seen[0] == seen[1]
    sizes = {len(batch.window) for batch in lean.plans()}
    assert max(sizes) < 3_000, "the limit is at work"


def test_whole_rows_of_an_automatic_window_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.batching.windows.AUTO_ROW_BYTES", 100_000)
    data = bf.from_iterable([row | {"text": "x" * 500} for row in rows_of(3_000)]).batch_by_tokens(256)
    assert max(len(batch.window) for batch in data.plans()) < 300


def test_resume_is_exact_at_every_window() -> None:
    assert_exact_resume(lambda: Buffered(streamed([1, 2, 0, 3] * 200).stage, 100, LENGTHS, True))
    assert_exact_resume(lambda: Planned(tokens([1], [2, 3], [], [4]).stage, 2, LENGTHS, True))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [bf.from_sequence, bf.from_iterable])
@pytest.mark.parametrize("sizes", [[(10, 10)] * 10 + [(10, 70)], [(10, 70)]], ids=["one pair", "all pairs"])
def test_an_automatic_window_is_judged_without_the_pairs_that_are_too_long(rows: Any, sizes: Any) -> None:
    pairs = rows([{"input_ids": [1] * source, "labels": [2] * target} for source, target in sizes])

    def lengths(overlong: str) -> list[Any]:
        batches = pairs.batch_by_tokens(60, length_column=("input_ids", "labels"), overlong=overlong)
        return sorted(tuple(pair) for batch in batches for pair in batch["lengths"].tolist())

    assert lengths("drop") == sizes[:-1]
    assert lengths("alone") == sizes
    with pytest.raises(bf.DataError, match=rf"10 \+ 70 tokens \(\w+, row {len(sizes) - 1}\) cannot fit max_tokens=60"):
        lengths("raise")


@dataclass(frozen=True)
class Cut(Stage[Block]):
    """Rows in blocks of `size` from any row on: a state names rows, so that the next run may cut them otherwise."""

    size: int
    rows: int = 60

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        for first in range(at, self.rows, self.size):
            last = min(first + self.size, self.rows)
            tokens = [[number] * (1 + number % 5) for number in range(first, last)]
            yield pa.RecordBatch.from_pydict({"input_ids": tokens}), END if last == self.rows else last


@pytest.mark.parametrize("again", [1, 3, 7, 100])
def test_a_window_goes_on_where_its_rows_come_in_other_blocks(again: int) -> None:
    def windows(size: int, at: Any = None) -> list[Any]:
        stage = Buffered(Cut(size), 8, LENGTHS, True)
        with running(stage, stage.start(0) if at is None else at) as items:
            return [(window.lengths.tolist(), window.checksums, after) for window, after in items]

    found = windows(7)
    for number, (*_, after) in enumerate(found[:-1], 1):
        assert [one[:2] for one in windows(again, after)] == [one[:2] for one in found[number:]]
        if after.get("done"):  # rows of the block have gone
            with pytest.raises(bf.StateError, match=rf"gave other rows at {after['done']} rows into a block"):
                windows(again, after | {"crc": [0]})
