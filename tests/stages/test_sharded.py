"""The global order of batches does not depend on the world size, and no rank waits for another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brimful as bf
from brimful.windows import Batch, Packs

WORLDS = (1, 2, 3, 4, 6, 8)
Numbers = tuple[int, ...]


def dataset(count: int, seed: int = 0) -> bf.Dataset:
    lengths = np.random.default_rng(seed).integers(1, 60, count)
    rows = [{"input_ids": [number] * length} for number, length in enumerate(lengths.tolist())]
    return bf.from_sequence(rows, shuffle=True)


def ways(count: int) -> dict[str, bf.Batches]:
    data = dataset(count)
    return {
        "budget": data.batch_by_tokens(120, window=50),
        "groups": data.batch_by_tokens(120, window=50, group=2),
        "buckets": data.batch(bf.StaticShapes([10, 30, 60], 120), window=64),
        "packs": data.pack(64, rows=2, window=40),
        "arrival": data.batch(7),
    }


def rows(batch: Batch | Packs) -> Numbers:
    return tuple(batch.window.rows[batch.numbers].tolist())


def steps(batches: bf.Batches, world_size: int, uneven: Any = "pad") -> Iterator[list[Batch | Packs]]:
    """What all ranks take, step by step; they must take equally many."""
    ranks = [batches.shard(rank, world_size, uneven=uneven).plans() for rank in range(world_size)]
    return (list(step) for step in zip(*ranks, strict=True))


@pytest.mark.parametrize("way", ["budget", "groups", "buckets", "packs", "arrival"])
@pytest.mark.parametrize("world_size", WORLDS)
def test_the_global_order_is_that_of_one_process(way: str, world_size: int) -> None:
    batches = ways(300)[way]
    expected = [rows(batch) for batch in batches.plans()]
    taken = [batch for step in steps(batches, world_size) for batch in step]
    assert [rows(batch) for batch in taken if batch.weight] == expected
    fillers = [batch for batch in taken if not batch.weight]
    assert len(fillers) == -len(expected) % world_size
    assert all(rows(filler)[0] in expected[-1] for filler in fillers)
    assert sorted({number for batch in expected for number in batch}) == list(range(300))


@settings(max_examples=30)
@given(
    count=st.integers(1, 120),
    way=st.sampled_from(["budget", "groups", "buckets", "packs", "arrival"]),
    worlds=st.lists(st.sampled_from(WORLDS), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_state_resumes_on_any_world_size(count: int, way: str, worlds: list[int], data: st.DataObject) -> None:
    batches = ways(count)[way]
    with batches.iter() as it:
        expected = [batch["lengths"].tolist() for batch in it]
    state, taken = None, []
    for place, world_size in enumerate([*worlds, 1]):
        ranks = [batches.shard(rank, world_size).iter(state) for rank in range(world_size)]
        most = len(expected) if place == len(worlds) else data.draw(st.integers(0, 5))
        for _ in range(most):
            step = [next(rank, None) for rank in ranks]
            assert len({batch is None for batch in step}) == 1
            taken += [batch["lengths"].tolist() for batch in step if batch is not None and not batch["is_filler"]]
        states = [json.dumps(rank.state_dict()) for rank in ranks]
        assert len(set(states)) == 1, "all ranks have one state"
        state = json.loads(states[0])
        for rank in ranks:
            rank.close()
    assert taken == expected


@pytest.mark.parametrize(("uneven", "rest"), [("drop", 0), ("wrap", 3)])
def test_uneven_ends_drop_the_step_or_wrap_to_the_first_batches(uneven: str, rest: int) -> None:
    batches = dataset(21).batch(1, shuffle_batches=False)
    taken = [rows(batch)[0] for step in steps(batches, 4, uneven) for batch in step]
    order = [rows(batch)[0] for batch in batches.plans()]
    assert taken == (order[:20] if uneven == "drop" else order + order[:rest])
    assert len(batches.shard(0, 4, uneven=uneven)) == (5 if uneven == "drop" else 6)  # type: ignore[arg-type]


def test_wrap_begins_again_as_often_as_it_must() -> None:
    taken = [rows(batch)[0] for step in steps(dataset(2).batch(1), 5, "wrap") for batch in step]
    assert taken == [taken[0], taken[1], taken[0], taken[1], taken[0]]


def test_an_uneven_end_is_an_error_where_it_is_asked_to_be() -> None:
    with pytest.raises(ValueError, match=r"the last step of the epoch has 1 batches for 4 ranks; choose uneven='pad'"):
        list(dataset(21).batch(1).shard(2, 4, uneven="error"))


def test_a_filler_has_no_weight_and_no_label() -> None:
    data = [
        {"input_ids": [1, 2, 3], "labels": [4, 5, 6]},
        {"input_ids": [7], "labels": [8]},
        {"input_ids": [9], "labels": [9]},
    ]
    last = list(bf.from_sequence(data).batch(1).shard(1, 2))[-1]
    assert (last["weight"], last["is_filler"]) == (0.0, True)
    assert last["input_ids"].tolist() == [[9]]
    assert last["labels"].tolist() == [[-100]]
    first = next(iter(bf.from_sequence(data).batch(1).shard(1, 2)))
    assert (first["weight"], first["is_filler"], first["labels"].tolist()) == (1.0, False, [[8]])


def test_streamed_data_are_refused_at_a_world_size_above_one() -> None:
    streamed = dataset(10).map(lambda sample: sample).batch(2)
    with pytest.raises(ValueError, match="streamed data cannot be shared out among 2 ranks"):
        next(iter(streamed.shard(0, 2)))
    assert len(list(streamed.shard(0, 1))) == 5


def test_the_rank_comes_from_the_environment_or_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = dataset(6).batch(1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE=2 in the environment, but no RANK"):
        next(iter(batches.shard()))
    monkeypatch.setenv("RANK", "1")
    assert [rows(batch) for batch in batches.shard().plans()] == [rows(batch) for batch in list(batches.plans())[1::2]]


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [(2, 2, r"rank must be at least 0 and below world_size=2 \(got 2\)"), (1, None, "rank and world_size go together")],
)
def test_a_rank_outside_the_world_is_refused(rank: int, world_size: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(dataset(4).batch(1).shard(rank, world_size))
