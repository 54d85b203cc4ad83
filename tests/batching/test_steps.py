"""Optimizer steps of exactly so many samples, in random trials: whatever the ranks, each step has the same parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

import brimful as bf
from brimful.integrations.follow import accumulated
from tests.strategies import small

POLICIES: list[Any] = [bf.TokenBudget(24), bf.FixedSize(5), bf.StaticShapes([3, 6], 24), bf.FixedSize(3, sort=False)]
Step = list[list[int]]


def rows_of(random: Random, most: int = 40) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key in range(random.randint(1, most)):
        for _ in range(random.randint(1, 4)):
            labels = [random.choice([1, -100]) for _ in range(random.randint(1, 6))]
            rows.append({"key": key, "id": len(rows), "input_ids": [1] * len(labels), "labels": labels})
    return rows[:most]


def ids_of(batch: Any) -> list[int]:
    """Without fillers, and copies up to a static shape."""
    weights = batch.get("sample_weights", [1] * len(batch["id"]))
    return [int(number) for number, weight in zip(batch["id"], weights, strict=True) if weight and batch["weight"]]


def steps_of(batches: Any) -> list[list[Any]]:
    steps, step = [], []
    for batch in batches:
        step.append(batch)
        if batch["ends_step"]:
            steps.append(step)
            step = []
    assert not step
    return steps


def made(data: bf.Dataset, policy: Any, samples_per_step: int, **more: Any) -> bf.Batches:
    return data.batch(policy, samples_per_step=samples_per_step, micro_batches="as_needed", **more)


@pytest.mark.parametrize("kind", ["sequence", "iterable"])
def test_a_step_has_exactly_so_many_samples_in_the_order_of_the_data(kind: str) -> None:
    random = Random(kind)
    for _ in range(120):
        rows, n = rows_of(random), random.randint(1, 12)
        data: Any = bf.from_sequence(rows) if kind == "sequence" else bf.from_iterable(rows)
        data = data.shuffle(random.randint(1, 30))
        order = [sample["id"] for sample in data]
        drop_last = random.random() < 0.5
        with small(random.randint(1, 6)):
            steps = steps_of(made(data, random.choice(POLICIES), n, drop_last=drop_last))
        parts = [[number for part in step for number in ids_of(part)] for step in steps]
        expected = [sorted(order[first : first + n]) for first in range(0, len(order), n)]
        if drop_last:
            expected = [one for one in expected if len(one) == n]
        assert [sorted(one) for one in parts] == expected
        for step, numbers in zip(steps, parts, strict=True):
            asked = sum(label != -100 for number in numbers for label in rows[number]["labels"])
            assert {int(part["num_items_in_batch"]) for part in step} == {asked}


@pytest.mark.parametrize("world_size", range(1, 9))
def test_ranks_share_out_the_parts_of_each_step(world_size: int) -> None:
    random = Random(world_size)
    for _ in range(30):
        rows, n, policy = rows_of(random), random.randint(1, 14), random.choice(POLICIES)
        batches = made(bf.from_sequence(rows).shuffle(9), policy, n)
        whole = [[ids_of(part) for part in step] for step in steps_of(batches)]
        of_ranks = [steps_of(batches.shard(rank, world_size)) for rank in range(world_size)]
        assert {len(batches.shard(rank, world_size)) for rank in range(world_size)} == {
            sum(len(step) for step in of_ranks[0])
        }
        for number, parts in enumerate(whole):
            own = [of_rank[number] for of_rank in of_ranks]
            assert {len(one) for one in own} == {-(-len(parts) // world_size)}
            dealt = [part for turn in zip(*own, strict=True) for part in turn]
            assert [ids_of(part) for part in dealt if not part["is_filler"]] == parts
            assert len({int(part["num_items_in_batch"]) for part in dealt}) == 1
            assert all(part["is_filler"] for part in dealt[len(parts) :])


@pytest.mark.parametrize("within", ["batch", "step"])
@pytest.mark.parametrize("kind", ["sequence", "iterable"])
def test_a_step_has_whole_units(kind: str, within: Any) -> None:
    random = Random(kind + within)
    parted = 0
    for _ in range(100):
        rows, n = rows_of(random), random.randint(4, 12)
        data: Any = bf.from_sequence(rows) if kind == "sequence" else bf.from_iterable(rows)
        data = data.units("key", within=within).shuffle(random.randint(1, 30))
        order = [[row["id"] for row in own] for _, own in groupby(data, lambda row: row["key"])]
        policy = random.choice([bf.TokenBudget(24), bf.FixedSize(4)])
        steps = [[ids_of(part) for part in step] for step in steps_of(made(data, policy, n))]
        expected: list[list[int]] = [[]]
        for unit in order:
            if len(expected[-1]) + len(unit) > n:
                expected.append([])
            expected[-1] += unit
        assert [sorted(number for part in step for number in part) for step in steps] == list(map(sorted, expected))
        for unit in order:
            owners = [part for step in steps for part in step if {*unit} & {*part}]
            parted += len(owners) > 1
            assert within == "step" or len(owners) == 1
    assert parted or within == "batch"


def test_a_state_fits_the_same_ranks_inside_a_step_and_any_between_two() -> None:
    random = Random(0)
    for _ in range(25):
        rows, n, policy = rows_of(random), random.randint(3, 14), random.choice(POLICIES)
        data: Any = bf.from_sequence(rows)
        data = data.units("key", within="step") if random.random() < 0.5 else data
        batches = made(data.shuffle(9), policy, max(4, n))
        whole = [[ids_of(part) for part in step] for step in steps_of(batches)]
        ranks = random.randint(1, 4)
        own, states, done = [], [], []
        with batches.shard(0, ranks).iter() as it:
            for batch in islice(it, 30):
                own.append((ids_of(batch), int(batch["num_items_in_batch"])))
                states.append(json.loads(json.dumps(it.state_dict())))
                done.append(bool(batch["ends_step"]))
        ended = 0
        for number, state in enumerate(states):
            with batches.shard(0, ranks).iter(state) as it:
                rest = [(ids_of(batch), int(batch["num_items_in_batch"])) for batch in islice(it, 29 - number)]
            assert rest == own[number + 1 :]
            ended += done[number]
            if done[number] and random.random() < 0.5:
                others = random.randint(1, 5)
                of_ranks = []
                for rank in range(others):
                    with batches.shard(rank, others).iter(state) as it:
                        of_ranks.append(steps_of(it))
                dealt = [
                    [ids_of(part) for turn in zip(*step, strict=True) for part in turn if not part["is_filler"]]
                    for step in zip(*of_ranks, strict=True)
                ]
                assert dealt == whole[ended:]
            elif not done[number]:
                with (
                    pytest.raises(bf.StateError, match=f"dealt to {ranks:,} rank.*and there are {ranks + 1:,}"),
                    batches.shard(0, ranks + 1).iter(state) as it,
                ):
                    next(it)


def test_each_rank_counts_its_own_labels_where_no_index_knows_those_of_all(tmp_path: Path) -> None:
    rows = rows_of(Random(5))
    shifted = [{**row, "shift_labels": row["labels"]} for row in rows]
    for row in shifted:
        del row["labels"]
    bf.from_sequence(shifted).to_store(tmp_path / "store")
    batches = made(bf.from_store(tmp_path / "store").shuffle(9), bf.TokenBudget(24), 6)
    for ranks in (2, 3, 8):
        of_ranks = [steps_of(batches.shard(rank, ranks)) for rank in range(ranks)]
        for step in zip(*of_ranks, strict=True):
            numbers = [number for own in step for part in own for number in ids_of(part)]
            asked = [[label != -100 for label in rows[number]["labels"]] for number in numbers]
            for own in step:
                assert len({int(part["num_items_on_rank"]) for part in own}) == 1
            assert sum(int(own[0]["num_items_on_rank"]) for own in step) == sum(map(sum, asked))
            assert sum(int(own[0]["num_samples_on_rank"]) for own in step) == sum(map(any, asked))
    bare = made(bf.from_sequence([{"input_ids": [1]}] * 9), 2, 3)
    assert not any("num_items_on_rank" in batch for rank in range(4) for batch in bare.shard(rank, 4))


ROWS = [{"id": number, "key": number // 3, "input_ids": [1, 2]} for number in range(12)]


def data() -> Any:
    return bf.from_sequence(ROWS)


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: data().batch(2, micro_batches="as_needed"), "micro_batches='as_needed' needs samples_per_step"),
    (lambda: data().batch(2, samples_per_step=6), "samples_per_step=6 goes with micro_batches='as_needed' (got 1)"),
    (lambda: made(data(), 2, 0), "samples_per_step must be at least 1 sample (got 0)"),
    (
        lambda: data().batch_by(2, key=len, samples_per_step=-2, micro_batches="as_needed"),
        "samples_per_step must be at least 1 sample (got -2)",
    ),
    (lambda: made(data(), bf.FixedSize(2), 6, window=8), "samples_per_step=6 the window is a step: leave window out (got 8)"),
    (lambda: data().units("key", within="step").batch(3), "units('key', within='step') keeps samples in one optimizer step"),
    (
        lambda: list(made(data(), 2, 6, collate_fn=list).shard(0, 2)),
        "collate_fn returned a list, and shard(uneven='pad') marks a filler in a dict. Return a dict",
    ),
    (lambda: made(data(), 2, 6).shard(0, 2, uneven="drop"), "uneven='drop' would leave out parts of a step"),
    (lambda: made(data(), 2, 6).loader(steps_per_epoch=3), "with samples_per_step an optimizer step has as many as it needs"),
    (
        lambda: list(made(data().units("key"), 3, 2)),
        "a unit of 'key' has 3 samples, and samples_per_step=2 (sample 0 of epoch 0); no step may part it: filter it",
    ),
    (
        lambda: list(made(bf.from_iterable(ROWS).units("key"), 3, 2)),
        "a unit of 'key' has more than 2 samples, and samples_per_step=2 (iterable, row 0); no step may part it",
    ),
    (lambda: list(made(bf.from_iterable(ROWS), 3, 6).shard(0, 2)), "cannot be divided among 2 ranks with samples_per_step"),
    (
        lambda: accumulated([made(data(), 2, 6).loader()], 1, "gradient_accumulation_steps"),
        "samples_per_step=6, of as many batches as they need, and gradient_accumulation_steps=1 adds up the gradients of a",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), MESSAGES, ids=range(len(MESSAGES)))
def test_what_does_not_go_with_steps_of_samples_is_told(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError, bf.DataError), match=re.escape(words)) as found:
        make()
    assert "uneven='drop'" not in str(found.value).removeprefix("uneven='drop'"), "it is refused"


def test_pack_and_batch_by_make_steps_of_samples_too() -> None:
    packed = steps_of(data().pack(8, rows=2, samples_per_step=6, micro_batches="as_needed"))
    assert [sum(len(part["id"]) for part in step) for step in packed] == [6, 6]
    keyed = steps_of(data().batch_by(4, key=lambda row: row["id"], samples_per_step=6, micro_batches="as_needed"))
    assert [[ids_of(part) for part in step] for step in keyed] == [[[5, 4, 3, 2], [1, 0]], [[11, 10, 9, 8], [7, 6]]]


def test_epochs_follow_each_other_in_whole_steps() -> None:
    repeating = bf.from_sequence(ROWS, repeat=True)
    steps = steps_of(made(repeating, 2, 5).take(14))
    assert [sum(len(ids_of(part)) for part in step) for step in steps] == [5, 5, 2, 5, 5, 2]


def test_a_window_beside_the_samples_of_a_step_is_refused_in_batch_by_too() -> None:
    data = bf.from_sequence([[1], [2]])
    steps: dict[str, Any] = {"samples_per_step": 9, "micro_batches": "as_needed"}
    assert len(list(data.batch_by(4, key=len, **steps))) == 1
    with pytest.raises(ValueError, match=r"samples_per_step=9 the window is a step: leave window out \(got 5\)"):
        data.batch_by(4, key=len, window=5, **steps)
