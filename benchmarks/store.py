"""From a token store to padded int64 ids and mask, shuffled, by a budget of tokens, on one core; beside memcpy and numpy.

    python benchmarks/store.py [millions of samples]

Lengths are those of WikiText-103 with a BERT tokenizer (mean 104, at most 512), tokens are uint16. The stores are written to
a temporary folder and lie in the system's page cache when they are read.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch

import brimful as bf
from brimful.index import indexed
from brimful.store import writer

MAX_TOKENS = 16_384
RUNS = 5
FRESH = """
import sys, time
import torch, brimful as bf

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
    """Tokens and seconds of an epoch, in tensors."""
    began = time.perf_counter()
    with batches.iter() as it:
        for _ in it:
            pass
        seconds = time.perf_counter() - began
        return int(it.stats.tokens), seconds


class WithNumpy:
    """The same batches by hand: planned ahead, all tokens in memory, each batch gathered by flat indices."""

    def __init__(self, folder: Path) -> None:
        stored = bf.from_store(folder)
        block, _ = stored.stage.rows.locate(np.arange(len(stored)))  # type: ignore[attr-defined]
        column = block.column("input_ids")
        self.values, self.offsets = column.values.to_numpy(), column.offsets.to_numpy().astype(np.int64)
        plans = bf.from_store(folder, shuffle=True).batch_by_tokens(MAX_TOKENS).plans()
        self.batches = [plan.window.samples[plan.numbers] for plan in plans]

    def epoch(self) -> float:
        began = time.perf_counter()
        for rows in self.batches:
            starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
            places = np.arange(counts.max())
            filled = places < counts[:, None]
            gathered = self.values.take(starts[:, None] + places, mode="clip")
            torch.from_numpy(np.where(filled, gathered, 0).astype(np.int64))
            torch.from_numpy(filled.astype(np.int64))
        return time.perf_counter() - began


def memcpy(tokens: int) -> float:
    """Seconds to copy as many bytes as the ids and the mask of so many tokens take, a batch at a time."""
    source = np.ones((2, MAX_TOKENS), dtype=np.int64)
    began = time.perf_counter()
    for _ in range(tokens // MAX_TOKENS):
        source.copy()
    return time.perf_counter() - began


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
        batches, numpy = bf.from_store(store, shuffle=True).batch_by_tokens(MAX_TOKENS), WithNumpy(store)
        tokens, _ = epoch(batches)
        ours, gathers, copies = [], [], []
        for _ in range(RUNS):
            ours.append(tokens / epoch(batches)[1] / 1e6)
            gathers.append(tokens / numpy.epoch() / 1e6)
            copies.append(tokens / memcpy(tokens) / 1e6)
        print(f"best and median of {RUNS} epochs in turn, M tokens/s")
        for name, speeds in (("brimful", ours), ("numpy, by hand", gathers), ("memcpy", copies)):
            print(f"  {name:15} {max(speeds):5.0f} {median(speeds):5.0f}")
        for world_size in (2, 8):
            rank = batches.shard(world_size - 1, world_size)
            speeds = [own / seconds / 1e6 for own, seconds in (epoch(rank) for _ in range(RUNS))]
            print(f"  a rank of {world_size:<5} {max(speeds):5.0f} {median(speeds):5.0f}")
        del batches, numpy
        for path in (quarter, store):
            print(fresh(path))
        print(opening(Path(folder, "thousand")))


if __name__ == "__main__":
    main()
