"""From a token store to padded int64 ids and mask, shuffled, by a budget of tokens, on one core; beside memcpy and numpy.

    python benchmarks/store.py [millions of samples]

Lengths are those of WikiText-103 with a BERT tokenizer (mean 104, at most 512), tokens are uint16. The stores are written to
a temporary folder and lie in the system's page cache when they are read. infinibatch is compared where it can be imported.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch

import brimful as bf
from brimful.index import indexed
from brimful.store import writer

MAX_TOKENS = 16_384
SORTED = 10_000
"""The window, in samples, of what sorts by itself."""
PACKED_ROWS, ROW_LENGTH = 8, 512
STEPS = 12
RUNS = 5
FRESH = """
import sys, time
import torch, brimful as bf
import brimful.batches, brimful.read, brimful.store.index, brimful.store.local, brimful.tensors.in_torch

began = time.perf_counter()
it = bf.from_store(sys.argv[1], shuffle=True).batch_by_tokens(int(sys.argv[2])).iter()
next(it)
first = time.perf_counter() - began
for batch in it:
    pass
with open("/proc/self/status") as file:
    resident = {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in file if line.startswith(("Rss", "VmHWM"))}
print(first, resident["RssAnon"], resident["RssFile"], resident["VmHWM"])
"""


def lengths_of(count: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(0)
    heading = draw.random(count) < 0.26
    text = np.where(heading, draw.lognormal(np.log(8), 0.35, count), draw.lognormal(np.log(111), 0.64, count))
    return np.clip(text.astype(int) + 2, 4, 512)


def write(folder: Path, count: int) -> float:
    """Writes a store of so many samples; ns a token."""
    lengths = lengths_of(count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.random.default_rng(1).integers(0, 30_522, offsets[-1], dtype=np.uint16)
    rows = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
    began = time.perf_counter()
    bf.from_sequence(rows).to_store(folder)
    return (time.perf_counter() - began) / float(offsets[-1]) * 1e9


def epoch(batches: bf.Batches) -> tuple[int, float]:
    """Tokens and seconds of processor time of an epoch, in tensors."""
    began = time.process_time()
    with batches.iter() as it:
        for _ in it:
            pass
        seconds = time.process_time() - began
        return int(it.stats.tokens), seconds


class WithNumpy:
    """The same batches by hand: planned ahead, all tokens in memory, each batch gathered by flat indices."""

    def __init__(self, folder: Path, window: int | Literal["auto"]) -> None:
        stored = bf.from_store(folder)
        block, _ = stored.stage.rows.locate(np.arange(len(stored)))  # type: ignore[attr-defined]
        column = block.column("input_ids")
        self.values, self.offsets = column.values.to_numpy(), column.offsets.to_numpy().astype(np.int64)
        plans = bf.from_store(folder, shuffle=True).batch_by_tokens(MAX_TOKENS, window=window).plans()
        self.batches = [plan.window.samples[plan.numbers] for plan in plans]

    def epoch(self) -> float:
        began = time.process_time()
        for rows in self.batches:
            starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
            places = np.arange(counts.max())
            filled = places < counts[:, None]
            gathered = self.values.take(starts[:, None] + places, mode="clip")
            torch.from_numpy(np.where(filled, gathered, 0).astype(np.int64))
            torch.from_numpy(filled.astype(np.int64))
        return time.process_time() - began

    def infinibatch(self) -> tuple[int, float]:
        """As many samples as an epoch has, by infinibatch's own iterators as in its tutorial: from chunks (here in memory),
        shuffled in a buffer, sorted in windows of 10,000, as many to a batch as fit padded, and collated by numpy."""
        from infinibatch.datasets import chunked_dataset_iterator
        from infinibatch.iterators import BucketedReadaheadBatchIterator, MapIterator

        def samples(first: int) -> Iterator[np.ndarray[Any, Any]]:
            bounds = self.offsets[first : first + SORTED + 1].tolist()
            return (self.values[begin:end] for begin, end in pairwise(bounds))

        def collate(batch: list[np.ndarray[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
            ids = np.zeros((len(batch), len(batch[0])), dtype=np.int64)
            mask = np.zeros_like(ids)
            for place, sample in enumerate(batch):
                ids[place, : len(sample)] = sample
                mask[place, : len(sample)] = 1
            return torch.from_numpy(ids), torch.from_numpy(mask)

        left = count = len(self.offsets) - 1
        began = time.process_time()
        shuffled = chunked_dataset_iterator([*range(0, count, SORTED)], samples, buffer_size=10 * SORTED, seed=0)
        batches = MapIterator(
            BucketedReadaheadBatchIterator(shuffled, SORTED, len, lambda longest: MAX_TOKENS // len(longest)), collate
        )
        while left > 0:
            left -= len(next(batches)[0])
        return int(self.offsets[-1]), time.process_time() - began


def memcpy(tokens: int) -> float:
    """Seconds to copy as many bytes as the ids and the mask of so many tokens take, a batch at a time."""
    source = np.ones((2, MAX_TOKENS), dtype=np.int64)
    began = time.process_time()
    for _ in range(tokens // MAX_TOKENS):
        source.copy()
    return time.process_time() - began


def step_of(world_size: int, folder: Path, window: int | Literal["auto"]) -> float:
    """Seconds of processor time that a step takes on one of so many ranks, on average over some 2 M samples."""
    endless = bf.from_store(folder, shuffle=True, repeat=True).batch_by_tokens(MAX_TOKENS, window=window)
    with endless.shard(world_size - 1, world_size).iter() as it:
        next(it)
        began = time.process_time()
        for _ in range(STEPS):
            next(it)
        return (time.process_time() - began) / STEPS


def fresh(folder: Path) -> str:
    """The time to the first batch, and the memory after an epoch, of a process of its own."""
    command = [sys.executable, "-c", FRESH, str(folder), str(MAX_TOKENS)]
    first, own, files, most = map(float, subprocess.check_output(command, text=True).split())
    size = sum(path.stat().st_size for path in folder.glob("*.arrow")) / 1e6
    return (
        f"{size:5.0f} MB: first batch after {first:.3f} s; an epoch later {own:.0f} MB of its own, {files:.0f} MB mapped; at "
        f"most {most:.0f} MB"
    )


def opening(folder: Path) -> str:
    """How long it takes to open a store of 1,000 files, and to know the lengths of its rows."""
    rows = pa.table({"input_ids": [[1, 2, 3]] * 2000})
    small = (patch.object(writer, "BATCH_BYTES", 1), patch.object(writer, "FILE_BYTES", 1))
    with small[0], small[1], patch.object(indexed, "BLOCK_ROWS", 2), patch("os.fsync"):
        bf.from_sequence(rows).to_store(folder)
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        bf.from_store(folder).lengths()
        seconds.append(time.perf_counter() - began)
    return f"a store of {len(list(folder.glob('*.arrow'))):,} files opens in {median(seconds) * 1e3:.0f} ms"


def compare(store: Path, data: bf.IndexedDataset) -> None:
    """Prints how fast each way is, and pairs of them. All take turns, so that all see the same machine."""
    by_hand, by_hand_auto = WithNumpy(store, SORTED), WithNumpy(store, "auto")
    auto = data.batch_by_tokens(MAX_TOKENS)
    small = data.batch_by_tokens(PACKED_ROWS * ROW_LENGTH)
    packed = data.pack(ROW_LENGTH, rows=PACKED_ROWS)
    tokens, _ = epoch(auto)
    ways: dict[str, Callable[[], tuple[int, float]]] = {
        "window of 10,000": partial(epoch, data.batch_by_tokens(MAX_TOKENS, window=SORTED)),
        "... numpy, by hand": lambda: (tokens, by_hand.epoch()),
        "... infinibatch": by_hand.infinibatch,
        "automatic window": partial(epoch, auto),
        "... numpy by hand": lambda: (tokens, by_hand_auto.epoch()),
        "memcpy": lambda: (tokens, memcpy(tokens)),
        "a rank of 2": partial(epoch, auto.shard(1, 2)),
        "a rank of 8": partial(epoch, auto.shard(7, 8)),
        "4,096 tokens": partial(epoch, small),
        "pack(512, rows=8)": partial(epoch, packed),
    }
    if find_spec("infinibatch") is None:
        print("infinibatch is absent: clone github.com/microsoft/infinibatch and name the folder in PYTHONPATH")
        del ways["... infinibatch"]
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            count, seconds = way()
            speeds[name].append(count / seconds / 1e6)
    print(f"best and median of {RUNS} epochs in turn, M tokens a second of processor time")
    for name, found in speeds.items():
        print(f"  {name:20} {max(found):5.0f} {median(found):5.0f}")
    print("ratios of the two, best and median")
    for one, other, least in (
        ("window of 10,000", "... numpy, by hand", 0.61),
        ("window of 10,000", "... infinibatch", 4.0),
        ("automatic window", "... numpy by hand", 0.8),
        ("pack(512, rows=8)", "4,096 tokens", 0.7),
        ("a rank of 8", "automatic window", 0.6),
    ):
        if other not in speeds:
            continue
        pairs = [first / second for first, second in zip(speeds[one], speeds[other], strict=True)]
        best = max(speeds[one]) / max(speeds[other])
        print(f"  {one:20} to {other.removeprefix('... '):20} {best:.2f} {median(pairs):.2f} (at least {least})")


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    print(
        f"{processor()}, {os.cpu_count()} cores, one in use; Python {platform.python_version()}, numpy {np.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        store, quarter = Path(folder, "store"), Path(folder, "quarter")
        price = write(store, int(millions * 1e6))
        write(quarter, int(millions * 2.5e5))
        print(f"{millions:g} M samples, {MAX_TOKENS:,} tokens a batch; written at {price:.1f} ns a token")
        data = bf.from_store(store, shuffle=True)
        compare(store, data)
        for window in (SORTED, "auto"):
            steps = [step_of(1024, store, window) * 1e3 for _ in range(RUNS)]  # type: ignore[arg-type]
            print(f"a step on one of 1,024 ranks, window {window}: {min(steps):.1f} ms at best, {median(steps):.1f} ms")
        del data
        for path in (quarter, store):
            print(fresh(path))
        print(opening(Path(folder, "thousand")))


if __name__ == "__main__":
    main()
