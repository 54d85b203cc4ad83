from __future__ import annotations

import logging
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import tokens

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def batches(sizes: list[int], **options: Any) -> bf.Batches:
    return tokens(*([1] * size for size in sizes), id=range(len(sizes))).batch_by_tokens(20, **options)


def numbers(data: bf.Batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in data]


@given(lengths, st.integers(1, 20))
def test_a_shuffled_epoch_has_the_batches_of_the_plan_in_another_order(sizes: list[int], window: int) -> None:
    in_order = numbers(batches(sizes, window=window, shuffle_batches=False))
    shuffled = numbers(batches(sizes, window=window))
    assert sorted(map(tuple, shuffled)) == sorted(map(tuple, in_order))
    assert sorted(number for batch in shuffled for number in batch) == list(range(len(sizes)))


@given(lengths, st.integers(2, 4))
def test_groups_of_neighbours_stay_together(sizes: list[int], group: int) -> None:
    in_order = [tuple(batch) for batch in numbers(batches(sizes, shuffle_batches=False))]
    shuffled = [tuple(batch) for batch in numbers(batches(sizes, balance_group=group))]
    groups = [in_order[first : first + group] for first in range(0, len(in_order), group)]
    place = 0
    while place < len(shuffled):
        (its,) = [one for one in groups if one[0] == shuffled[place]]
        assert shuffled[place : place + len(its)] == its
        place += len(its)


def test_each_epoch_and_seed_has_another_order() -> None:
    sizes = list(range(1, 10)) * 10

    def order(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(batch.numbers.tolist()) for batch in batches(sizes, seed=seed).plans(epoch)]

    orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(one) for one in orders}) == 4
    assert order(1, 0) == orders[0]


def test_drop_last_leaves_out_what_is_incomplete() -> None:
    data = tokens(*([1] * size for size in range(1, 8)), id=range(7))
    assert [len(batch["id"]) for batch in data.batch(3)] == [3, 3, 1]
    assert [len(batch["id"]) for batch in data.batch(3, drop_last=True)] == [3, 3]
    assert list(data.take(2).batch(3, drop_last=True)) == []


def test_the_number_of_batches_is_known_for_indexed_data() -> None:
    data = batches([3] * 40, window=10)
    assert len(data) == len(numbers(data))
    with pytest.raises(
        TypeError,
        match=r"^the number of batches is not known: the data set is streamed \(by map\); to_store\(path\) or cache\(",
    ):
        len(tokens([1]).map(lambda sample: sample).batch(1))


def test_resume_is_exact_at_every_batch() -> None:
    for options in ({}, {"window": 7}, {"balance_group": 3}, {"drop_last": True}):
        assert_exact_resume(lambda: batches(list(range(20)), **options))  # noqa: B023


def test_a_group_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^balance_group must be at least 1 batch \(got 0\)$"):
        batches([1], balance_group=0)


@pytest.mark.parametrize("overlong", ["raise", "split"])
def test_every_packed_batch_has_as_many_rows_as_were_asked_for(overlong: Any) -> None:
    rows = [{"input_ids": list(range(1, 2 + number % 7))} for number in range(90)]
    packed = bf.from_sequence(rows).pack(6 if overlong == "split" else 7, rows=8, window=41, overlong=overlong)
    with packed.iter() as batches:
        found = list(batches)
        stats = batches.stats
    length = found[0]["input_ids"].shape[1]
    assert {tuple(batch["input_ids"].shape) for batch in found} == {(8, length)}
    assert packed.shapes() == {(8, length): len(packed)} == {(8, length): len(found)}
    assert (stats.samples, stats.slots) == (90, len(found) * 8 * length), "empty rows are counted, as padding"
    assert sum(len(packed.explain(batch)) for batch in found) == sum(len(batch["lengths"]) for batch in found)
    partly = [batch for batch in found if (batch["segment_ids"] == 0).all(1).any()]
    assert partly, "a window's rows are no multiple of 8"
    for batch in partly:
        empty = (batch["segment_ids"] == 0).all(1)
        assert not empty[0], "a batch has a sample"
        assert (batch["labels"][empty] == -100).all()
        assert not batch["input_ids"][empty].any()
        bounds = batch["cu_seqlens"].tolist()
        assert (bounds[-1], batch["max_seqlen"]) == (8 * length, length)
        begins = (empty.nonzero().flatten() * length).tolist()
        assert all({begin, begin + length} <= {*bounds} for begin in begins), "an empty row is one segment of padding"
        assert not any(begin < bound < begin + length for begin in begins for bound in bounds)
    complete = bf.from_sequence(rows).pack(length, rows=8, window=41, overlong=overlong, drop_last=True)
    assert len(complete) == len(found) - len(partly)
    assert not any((batch["segment_ids"] == 0).all(1).any() for batch in complete)


def test_fillers_of_packed_batches_have_the_shape_of_all() -> None:
    rows = [{"input_ids": [1, 2, 3, 4]}] * 9
    ranks = [list(bf.from_sequence(rows).pack(4, rows=8).shard(rank, 3)) for rank in range(3)]
    assert [batch["input_ids"].shape for (batch,) in ranks] == [(8, 4)] * 3
    assert [batch["is_filler"] for (batch,) in ranks] == [False, False, True]
    filler = ranks[2][0]
    assert (filler["labels"] == -100).all()
    assert int((filler["segment_ids"] > 0).any(1).sum()) == 1


def test_an_automatic_window_of_packed_rows_fills_250_batches() -> None:
    rows = [{"input_ids": [1] * 50}] * 20_000
    for each, windows in ((1, {500}), (2, {1_000}), (8, {4_000})):
        sizes = [len(batch.window) for batch in bf.from_sequence(rows).pack(100, rows=each).plans()]
        assert {*sizes[: len(sizes) // 2]} == windows


@pytest.mark.parametrize("method", ["batch", "batch_by_tokens", "pack"])
@pytest.mark.parametrize("stored", [False, True])
def test_batches_without_tokens_are_named_once(
    method: str, stored: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text(("the dog\n" + 23 * "\n") * 150)  # several windows
    made = methodcaller(method, 8)
    data = bf.from_files(tmp_path / "a.txt").tokenize(lambda texts: [list(text.encode()) for text in texts])
    batches = made(data.to_store(tmp_path / "store", version="1") if stored else data)
    with caplog.at_level(logging.WARNING, "brimful"):
        assert sum(len(batches.explain(batch)) for batch in batches) == 3_600, "none is left out"
        assert not stored or len(batches) > 0
    (message,) = caplog.messages
    assert "batches of a window have no tokens: " in message
    assert ("samples have none (one is shard a.txt, line " in message) is not stored
    caplog.clear()
    with caplog.at_level(logging.WARNING, "brimful"):
        assert len(list(made(data.filter(lambda sample: len(sample["input_ids"]) > 0)))) > 0
        assert len(list(bf.from_sequence([{"id": 1}]).batch(1))) == 1, "nobody asked for tokens"
    assert caplog.messages == []


@pytest.mark.parametrize("method", ["batch", "batch_by_tokens", "pack"])
@pytest.mark.parametrize("lengths", [[0] * 7 + [5] * 7, [0]])
def test_a_window_of_nothing_but_blank_lines_is_named(
    method: str, lengths: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in lengths])
    with caplog.at_level(logging.WARNING, "brimful"):
        assert len(list(methodcaller(method, 5, window=7)(data))) > 0
    (message,) = caplog.messages
    assert f"batches of a window have no tokens: {lengths.count(0)} samples have none" in message
