"""What a block costs in each row stage, however few rows it has, and the time to a first batch of long chains of small blocks.

    python benchmarks/blocks.py [chain ...]

A stage is timed alone, on blocks of rows of 100 tokens that are in memory, and what these cost by themselves is taken off.
All seconds are those of the processor, so that other processes on the machine do not count.
"""

from __future__ import annotations

import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import brimful as bf
from brimful.batching.windows import Buffered
from brimful.core.ahead import Ahead
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.rows.buffer import Unbatch
from brimful.rows.mixing import Concat
from brimful.tables.blocks import Block
from brimful.tables.origins import ORIGIN, origins

ROWS = 4096
TOKENS = 100
RUNS = 3


@dataclass(frozen=True)
class Blocks(Stage[Block]):
    """So many blocks of some rows each, cut from one; `sizes` follow one another."""

    count: int
    sizes: tuple[int, ...]

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        for number in range(at, self.count):
            size = self.sizes[number % len(self.sizes)]
            first = number * 7 % (ROWS - size + 1)
            yield TABLE.slice(first, size), number + 1 if number + 1 < self.count else END


def table() -> Block:
    values = np.random.default_rng(0).integers(0, 30_000, ROWS * TOKENS, dtype=np.int32)
    ids = pa.ListArray.from_arrays(pa.array(np.arange(ROWS + 1, dtype=np.int32) * TOKENS), pa.array(values))
    columns = {"id": pa.array(np.arange(ROWS)), "text": pa.array(["some text"] * ROWS), "input_ids": ids}
    block = pa.RecordBatch.from_pydict(columns)
    return block.append_column(ORIGIN, origins("memory", np.arange(ROWS), "row"))


TABLE = table()


def blocks(count: int, *sizes: int) -> bf.Dataset:
    return bf.Dataset(Blocks(count, sizes))


def even(sample: Any) -> bool:
    return bool(sample["input_ids"][0] % 2 == 0)


def seldom(sample: Any) -> bool:
    return bool(sample["input_ids"][0] % 50 == 0)


def same(sample: Any) -> Any:
    return sample


def twice(sample: Any) -> list[Any]:
    return [sample, sample]


def letters(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


STAGES: dict[str, Callable[[bf.Dataset], Stage[Any]]] = {
    "add_bos_eos": lambda data: data.add_bos_eos(1, 2).stage,
    "chunk": lambda data: data.chunk(32).stage,
    "concat_datasets": lambda data: Concat((data.stage,)),
    "concat_chunk, short": lambda data: data.concat_chunk(64).stage,
    "concat_chunk, long": lambda data: data.concat_chunk(100_000).stage,
    "enumerate": lambda data: data.enumerate().stage,
    "filter": lambda data: data.filter(even).stage,
    "flat_map": lambda data: data.flat_map(twice).stage,
    "interleave_datasets": lambda data: bf.interleave_datasets([data, data]).stage,
    "the same by tokens": lambda data: bf.interleave_datasets([data, data], by="tokens").stage,
    "map": lambda data: data.map(same).stage,
    "map_blocks": lambda data: data.map_blocks(same).stage,
    "pack_chunk, short": lambda data: data.pack_chunk(250).stage,
    "pack_chunk, long": lambda data: data.pack_chunk(100_000).stage,
    "pad": lambda data: data.pad(128, {"input_ids": 0}).stage,
    "prefetch": lambda data: Ahead(data.stage, 2),
    "samples": lambda data: Unbatch(data.stage),
    "select": lambda data: data.select("input_ids").stage,
    "skip": lambda data: data.skip(1).stage,
    "stride": lambda data: data.stride(2, 0).stage,
    "take": lambda data: data.take(1 << 40).stage,
    "tokenize": lambda data: data.tokenize(letters, output_column="tokens").stage,
    "windows": lambda data: Buffered(data.stage, 1000, ("input_ids",), True),
    "shuffle": lambda data: data.shuffle(1000).stage,
}


def nested(depth: int, leaf: Callable[[int], bf.Dataset], number: int = 0) -> bf.Dataset:
    """Pairs of pairs of data sets, mixed at each level with unlike weights."""
    if not depth:
        return leaf(number)
    pair = [nested(depth - 1, leaf, 2 * number + side) for side in (0, 1)]
    return bf.interleave_datasets(pair, weights=[1.0, 0.7], stop="all")


def unlike(number: int) -> bf.Dataset:
    """Blocks of unlike lengths, unlike those of any other."""
    return blocks(4000, *(1 + (3 * number + 5 * place) % 11 for place in range(7)))


CHAINS: dict[str, Callable[[], bf.Batches]] = {
    "nested interleaves": lambda: nested(4, unlike).batch_by_tokens(16_384, window=10_000),
    "interleave of large and small": lambda: bf.interleave_datasets(
        [blocks(100, ROWS), blocks(30_000, 1)]
    ).batch_by_tokens(16_384, window=10_000),
    "concat_chunk of nested interleaves": lambda: nested(3, unlike).concat_chunk(200_000).batch(4, window=8),
    "pack_chunk of nested interleaves": lambda: nested(3, unlike).pack_chunk(200_000).batch(4, window=8),
    "concat_chunk of single rows": lambda: blocks(50_000, 1).concat_chunk(1_000_000).batch(2, window=4),
    "filters, then concat_chunk": lambda: (
        blocks(100_000, 4).filter(even).filter(seldom).concat_chunk(100_000).batch(2, window=4)
    ),
    "a cache of an interleave, flat_map, pack_chunk": lambda: (
        bf.interleave_datasets([unlike(1), unlike(2)]).cache().flat_map(twice).pack_chunk(1000).batch(8, window=1000)
    ),
    "all of them": lambda: (
        bf.interleave_datasets([nested(2, unlike).pack_chunk(3000), nested(2, unlike).filter(even)])
        .flat_map(twice)
        .filter(even)
        .concat_chunk(50_000)
        .batch(8, window=100)
    ),
}


def seconds(stage: Stage[Any]) -> float:
    """To read all that a stage gives."""
    began = time.process_time()
    with running(stage, stage.start(0)) as items:
        for _ in items:
            pass
    return time.process_time() - began


def microseconds(make: Callable[[bf.Dataset], Stage[Any]], rows: int) -> float:
    """A block of so many rows."""
    count = 500 if rows == 1 else 10
    took = []
    for _ in range(RUNS):
        data = blocks(count, rows)
        took.append((seconds(make(data)) - seconds(data.stage)) / count * 1e6)
    return statistics.median(took)


def first_batch(make: Callable[[], bf.Batches]) -> float:
    began = time.process_time()
    with make().iter() as it:
        next(it)
        return time.process_time() - began


def main() -> None:
    logging.disable()
    print(f"{platform.machine()}, {os.cpu_count()} cores; medians of {RUNS} runs")
    if not sys.argv[1:]:
        print(f"{'microseconds a block of':<40}{'1 row':>12}{f'{ROWS:,} rows':>12}")
        for name, stage in STAGES.items():
            print(f"{name:<40}" + "".join(f"{microseconds(stage, rows):>12,.0f}" for rows in (1, ROWS)), flush=True)
    print("seconds to a first batch of")
    for name in sys.argv[1:] or CHAINS:
        took = statistics.median(first_batch(CHAINS[name]) for _ in range(RUNS))
        print(f"{name:<52}{took:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
