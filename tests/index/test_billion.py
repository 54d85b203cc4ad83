"""A billion samples: a position is a few integers, and costs what a window costs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import brimful as bf
from brimful.core.states import sealed
from brimful.dataset import dataset_of
from brimful.index.index import DataIndex
from brimful.index.sequence import FromSequence
from brimful.tables.blocks import Block
from brimful.tables.ragged import list_array

COUNT = 10**9


@dataclass(frozen=True, eq=False)
class Synthetic(DataIndex):
    """Rows of 1 to 256 tokens by a hash of their number; made as they are asked for. All lengths at once are refused."""

    seed: int
    count: int = COUNT

    def __len__(self) -> int:
        return self.count

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        raise AssertionError("the lengths of all rows are not wanted")

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        mixed = (numbers.astype(np.uint64) + np.uint64(self.seed)) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(40)) % np.uint64(256) + np.uint64(1)).astype(np.int64)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        lengths = self.lengths_at(numbers, (), False)
        tokens = list_array(np.repeat(numbers, lengths), np.concatenate(([0], np.cumsum(lengths))))
        block = pa.RecordBatch.from_arrays([pa.array(numbers), tokens], ["id", "input_ids"])
        return block, np.arange(len(numbers))

    def fingerprint(self) -> dict[str, int]:
        return {"rows": self.count, "seed": self.seed}


def synthetic(seed: int = 0, **options: Any) -> bf.Dataset:
    return dataset_of(FromSequence(Synthetic(seed), shuffle=True, seed=42), **options)


WAYS: dict[str, Callable[[], bf.Dataset]] = {
    "shuffled": synthetic,
    "skipped": lambda: synthetic().skip(700_000_000).take(200_000_000),
    "shuffled once more": lambda: synthetic().skip(5).shuffle(100_000),
    "joined": lambda: synthetic() + synthetic(1).take(10**8),
    "mixed": lambda: bf.interleave_datasets([synthetic(), synthetic(1).take(10**7)], weights=[3, 1], stop="all_repeat"),
    "endless": lambda: synthetic(repeats=True).skip(10**12),
}


@pytest.mark.parametrize("way", WAYS)
def test_in_the_middle_of_a_billion_samples(way: str) -> None:
    batches = WAYS[way]().batch_by_tokens(16_384, window="auto" if way == "shuffled" else 20_000)
    it = batches.iter()
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    it.close()
    window = state["position"]["windows"] | {"window": 3_000}  # far into the epoch
    state = sealed(state["header"], {"windows": window | {"size": window["size"] or 20_000}})
    it = batches.iter(state)
    taken = [next(it)["id"].tolist() for _ in range(3)]
    state = it.state_dict()
    expected = [next(it)["id"].tolist() for _ in range(40)]
    it.close()
    assert len(json.dumps(state)) < 1_024
    tracemalloc.start()
    with WAYS[way]().batch_by_tokens(16_384, window="auto" if way == "shuffled" else 20_000).iter(state) as it:
        found = [next(it)["id"].tolist() for _ in range(40)]
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == expected
    assert found[0] not in taken
    assert peak < 100e6, f"{peak / 1e6:.0f} MB"


def test_samples_far_out_cost_a_block() -> None:
    data = synthetic().skip(999_999_000)
    assert len(data) == 1_000
    tracemalloc.start()
    samples = list(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len({sample["id"] for sample in samples}) == 1_000
    assert peak < 100e6
    (last,) = synthetic().skip(COUNT - 1)
    assert last["id"] == samples[-1]["id"]
    assert list(synthetic().skip(COUNT)) == []


@pytest.mark.timeout(60)
def test_the_number_of_the_first_batches_takes_the_plan_of_no_more() -> None:
    """Also where nobody asks for it: `list` does, before it begins."""
    batches = synthetic().batch_by_tokens(16_384, window=20_000)
    assert len(list(batches.take(3))) == 3
    assert len(batches.shard(1, 4).take(200).map(dict)) == 200
    assert len(batches.take(200).enumerate().take(7)) == 7
    assert len(synthetic().take(40).batch(4).shard(0, 4, uneven="drop").take(100)) == 2


def test_the_lengths_of_a_mixture_take_little_more_than_themselves() -> None:
    mixed = bf.interleave_datasets([synthetic(), synthetic(1).skip(5)]).take(4_000_000)
    tracemalloc.start()
    assert len(mixed.lengths()) == 4_000_000  # 32 MB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 110e6, f"{peak / 1e6:.0f} MB"
