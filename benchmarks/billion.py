"""A position among a billion samples: how large it is, and how long a resume from it takes to the first batch.

    python benchmarks/billion.py

The samples are made as they are asked for, from a hash of their number, so that nothing is measured but planning; the
limit beside it is one permutation of the 131,072 rows of a shuffle window, which any part of the order takes.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

import brimful as bf
from brimful.core.states import sealed
from brimful.index.index import DataIndex
from brimful.index.sequence import FromSequence
from brimful.plan import random
from brimful.tables.blocks import Block

RUNS = 9


@dataclass(frozen=True, eq=False)
class Synthetic(DataIndex):
    """Rows of 1 to 256 tokens, by a hash of their number."""

    count: int

    def __len__(self) -> int:
        return self.count

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        raise AssertionError("the lengths of all rows are not wanted")

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        return (mixed % np.uint64(256)).astype(np.int64) + 1

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        offsets = np.concatenate(([0], np.cumsum(self.lengths_at(numbers, (), False))))
        tokens = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(np.zeros(offsets[-1], np.int32)))
        return pa.RecordBatch.from_arrays([tokens], ["input_ids"]), np.arange(len(numbers))

    def fingerprint(self) -> dict[str, int]:
        return {"rows": self.count}


def shuffled(count: int) -> bf.IndexedDataset:
    return bf.IndexedDataset(FromSequence(Synthetic(count), shuffle=True, seed=42))


WAYS: dict[str, Callable[[], bf.Dataset]] = {
    "shuffled": lambda: shuffled(10**9),
    "skip, take": lambda: shuffled(10**9).skip(700_000_000).take(200_000_000),
    "shuffle again": lambda: shuffled(10**9).shuffle(100_000),
    "mix of two": lambda: bf.interleave_datasets([shuffled(10**9), shuffled(10**7)], weights=[3, 1], stop="all_repeat"),
}


def milliseconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    limit = milliseconds(lambda: random.permutation(131_072, 1))
    print(f"10^9 samples, one core; a permutation of 131,072 rows {limit:.1f} ms")
    for name, make in WAYS.items():
        it = make().batch_by_tokens(16_384).iter()
        next(it)
        state = it.state_dict()
        it.close()
        window = state["position"][0]
        window[1] = 3_000  # windows on
        state = sealed(state["header"], [window, 0, 0])

        def resumed(state: Any = state, make: Callable[[], bf.Dataset] = make) -> None:
            with make().batch_by_tokens(16_384).iter(state) as it:
                next(it)

        size = len(json.dumps(state))
        print(f"{name:14} state {size:5,} bytes, resumed to the first batch in {milliseconds(resumed):6.1f} ms")


if __name__ == "__main__":
    main()
