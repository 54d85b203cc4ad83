"""Whatever the world size, and however often it changes: one sequence of batches, with everything on at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.batch import Batch
from brimful.dataset import dataset_of
from tests.effort import examples
from tests.worlds import WORLDS, plans_by_step, taken_by_worlds

LONG = 60


def kept(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 7 != 3)


def source(count: int, first: int, seed: int) -> bf.Dataset:
    """Shuffled, and filtered: six of seven samples are kept."""
    lengths = np.random.default_rng(seed).integers(1, LONG, count).tolist()
    rows = [{"id": first + row, "input_ids": [first + row] * length} for row, length in enumerate(lengths)]
    return bf.from_sequence(rows, shuffle=True, seed=seed).filter(kept)


@cache
def mixture(one: int, two: int, stop: Any, by: Any) -> bf.Dataset:
    """Two to one, and shuffled once more."""
    sources = [source(one, 0, 1), source(two, 10_000, 2)]
    mixed = bf.interleave_datasets(sources, weights=[2, 1], stop=stop, by=by)
    return (mixed.stream() if by == "tokens" else mixed).shuffle(64)


WAYS = {
    "buckets": lambda data: data.batch(bf.StaticShapes([10, 30, LONG], 120), window=64),
    "buckets in groups": lambda data: data.batch(bf.StaticShapes([10, 30, LONG], 120), window=64, balance_group=2),
    "packs": lambda data: data.pack(64, rows=2, window=40),
    "a budget": lambda data: data.batch_by_tokens(120),
    "a slice": lambda data: data.skip(3).batch_by_tokens(120, window=50),
}
"""How the mixture becomes batches."""


def ids(batch: Batch) -> list[int]:
    block = batch.window.take(batch.numbers)
    return [int(number) for number in block.column("id").to_pylist()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_global_order_is_one_and_each_sample_is_there_once(way: str, epoch: int) -> None:
    data = mixture(300, 170, "all", "samples")
    batches = WAYS[way](data)
    expected = [ids(batch) for batch in batches.plans(epoch)]
    for world_size in WORLDS:
        taken = [batch for step in plans_by_step(batches, world_size, epoch) for batch in step]
        assert [ids(batch) for batch in taken if batch.weight] == expected
        fillers = [batch for batch in taken if not batch.weight]
        assert len(fillers) == -len(expected) % world_size
        assert len(batches.shard(0, world_size)) == -(-len(batches) // world_size)
    samples = [number for batch in expected for number in batch]
    everything = [number for number in [*range(300), *range(10_000, 10_170)] if number % 7 != 3]
    if way == "a slice":
        assert len(set(samples)) == len(samples) == len(everything) - 3
    else:
        assert sorted(samples) == everything


def batch_ids(batch: dict[str, Any]) -> Any:
    return batch["input_ids"].tolist()


@given(
    counts=st.tuples(st.integers(0, 150), st.integers(1, 90)),
    how=st.tuples(st.sampled_from(["first", "all", "all_repeat"]), st.sampled_from(["samples", "tokens"])),
    way=st.sampled_from(sorted(WAYS)),
    repeat=st.booleans(),
    worlds=st.lists(st.sampled_from(WORLDS), min_size=1, max_size=4),
    data=st.data(),
)
@examples(40)
def test_a_state_resumes_on_any_world_size(
    counts: tuple[int, int], how: tuple[str, str], way: str, repeat: bool, worlds: list[int], data: st.DataObject
) -> None:
    mixed = mixture(*counts, *how)
    count = sum(1 for _ in mixed)
    if repeat and count:
        mixed = dataset_of(mixed.stage, repeats=True).take(count + 60)  # into the next epoch of the mixture
    batches = WAYS[way](mixed)
    with batches.iter() as it:
        expected = [batch_ids(batch) for batch in it]
    runs = [(world_size, data.draw(st.integers(0, 5))) for world_size in worlds]
    taken = taken_by_worlds(batches, [*runs, (1, len(expected))], batch_ids)
    assert taken == expected
