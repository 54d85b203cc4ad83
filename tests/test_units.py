"""Units from the data to the batch, in random trials against plain Python: none is parted, and each sample comes once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from random import Random
from typing import Any

import numpy as np
import pytest

import brimful as bf
from tests.strategies import small

Rows = list[dict[str, Any]]


def rows_of(random: Random, first: int = 0, most: int = 12, longest: int = 5) -> Rows:
    """Samples of a few units, of which neighbours may have one key once more, further on."""
    rows: Rows = []
    for unit in range(random.randint(1, most)):
        key = first + unit % 7 if random.random() < 0.8 else f"{unit}"
        rows += [
            {"key": str(key), "id": first * 1000 + len(rows) + place, "input_ids": [1] * random.randint(1, 6)}
            for place in range(random.randint(1, longest))
        ]
    return rows


def units_in(rows: Rows) -> list[tuple[int, ...]]:
    return [tuple(row["id"] for row in own) for _, own in groupby(rows, lambda row: row["key"])]


def kinds(rows: Rows) -> dict[str, Callable[[], bf.Dataset]]:
    return {
        "sequence": lambda: bf.from_sequence(rows),
        "cached": lambda: bf.from_iterable(rows).cache(),
        "sliced": lambda: (bf.from_sequence(rows[:3]) + bf.from_sequence(rows[3:])).take(len(rows)),
        "iterable": lambda: bf.from_iterable(rows),
        "mapped": lambda: bf.from_sequence(rows).map(lambda row: row),
    }


def ids_of(batch: Any) -> list[int]:
    """Without the copies that fill up a static shape."""
    weights = batch.get("sample_weights", [1] * len(batch["id"]))
    return [int(number) for number, weight in zip(batch["id"], weights, strict=True) if weight]


def assert_whole(batches: list[list[int]], units: list[tuple[int, ...]]) -> None:
    """Each unit is in one batch, in its order, its samples beside one another."""
    assert sorted(sum(batches, [])) == sorted(sum(map(list, units), []))
    at = {number: (which, place) for which, batch in enumerate(batches) for place, number in enumerate(batch)}
    for unit in units:
        which, first = at[unit[0]]
        assert [at[number] for number in unit] == [(which, first + place) for place in range(len(unit))]


POLICIES: list[Any] = [bf.FixedSize(6), bf.TokenBudget(30), bf.StaticShapes([3, 6], 36), bf.MultiBudget(padded={"input_ids": 40}, max_samples=7)]  # fmt: skip


@pytest.mark.parametrize("kind", ["sequence", "cached", "sliced", "iterable", "mapped"])
def test_no_batch_parts_a_unit_and_each_sample_comes_once(kind: str) -> None:
    random = Random(kind)
    for _ in range(60):
        rows = rows_of(random)
        data = kinds(rows)[kind]().units("key")
        shuffled = data.shuffle(random.randint(1, 20), seed=random.randint(0, 9)) if random.random() < 0.7 else data
        how = {"window": random.choice([4, 10, "auto"]), "shuffle_batches": random.random() < 0.5}
        batches = shuffled.batch(random.choice(POLICIES), **how)
        with small(random.randint(1, 6)):
            found = list(map(ids_of, batches))
        assert_whole(found, units_in(rows))


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5, 8, 100])
def test_a_shuffle_moves_whole_units_alike_on_indexed_and_streamed_data(buffer_size: int) -> None:
    random = Random(buffer_size)
    for _ in range(60):
        rows = rows_of(random, most=14)
        orders = []
        for kind in ("sequence", "sliced", "iterable", "mapped"):
            with small(random.randint(1, 6)):
                orders.append([row["id"] for row in kinds(rows)[kind]().units("key").shuffle(buffer_size)])
        assert orders == orders[:1] * 4
        assert_whole([orders[0]], units_in(rows))


def test_any_place_of_a_shuffle_is_found_alone() -> None:
    random = Random(0)
    for _ in range(100):
        rows = rows_of(random)
        shuffled = bf.from_sequence(rows, repeat=random.random() < 0.5).units("key").shuffle(random.randint(1, 9))
        order = [row["id"] for row in islice(shuffled, 2 * len(rows) if shuffled.repeats else len(rows))]
        for place in random.sample(range(len(order)), min(5, len(order))):
            assert shuffled[place]["id"] == order[place]


def test_indexed_and_streamed_data_have_the_same_batches() -> None:
    random = Random(1)
    for _ in range(80):
        rows = rows_of(random, most=20)
        policy, window = random.choice(POLICIES), random.randint(1, 12)
        found = []
        for kind in ("sequence", "iterable", "mapped"):
            with small(random.randint(1, 6)):
                found.append(list(map(ids_of, kinds(rows)[kind]().units("key").batch(policy, window=window))))
        assert found == found[:1] * 3


@pytest.mark.parametrize("world_size", range(1, 9))
def test_ranks_share_batches_of_whole_units(world_size: int) -> None:
    random = Random(world_size)
    for _ in range(25):
        rows = rows_of(random)
        batches = bf.from_sequence(rows).units("key").shuffle(9).batch(bf.TokenBudget(30), window=12)
        every = list(map(ids_of, batches))
        of_ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
        steps = [batch for step in zip(*of_ranks, strict=True) for batch in step]
        assert [ids_of(batch) for batch in steps if not batch["is_filler"]] == every
        assert_whole(every, units_in(rows))


def chains(random: Random, rows: Rows) -> Iterator[bf.Dataset]:
    other = rows_of(random, first=50)
    weights = [random.choice([1, 2.5]), 1]
    for kind in ("sequence", "iterable"):
        one, two = (kinds(own)[kind]().units("key") for own in (rows, other))
        yield one.filter(lambda row: row["id"] % 3 > 0).shuffle(7)
        yield one.shuffle(5) + two
        yield bf.interleave_datasets([one.shuffle(5), two], weights=weights, stop="all")
        yield one.train_valid_split(0.5)[0].shuffle(6)
        yield one.enumerate()


def test_chains_of_units_resume_at_every_batch() -> None:
    random = Random(2)
    for _ in range(6):
        for data in chains(random, rows_of(random)):
            with small(random.randint(1, 6)):
                resumed(data.batch(random.choice(POLICIES), window=random.choice([5, 12])))


def resumed(batches: bf.Batches) -> None:
    whole, states = [], []
    with batches.iter() as it:
        for batch in islice(it, 20):
            whole.append(ids_of(batch))
            states.append(json.loads(json.dumps(it.state_dict())))
    for number, state in enumerate(states):
        with batches.iter(state) as it:
            assert [ids_of(batch) for batch in islice(it, len(whole) - number - 1)] == whole[number + 1 :]
