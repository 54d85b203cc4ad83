"""From a token store to padded int64 ids and mask, shuffled, by a budget of tokens, on one core; beside memcpy and numpy.

    python benchmarks/store.py [millions of samples]

Lengths are those of WikiText-103 with a BERT tokenizer (mean 104, at most 512), tokens are uint16. The store is written to
a temporary folder, and lies in the system's page cache when it is read.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import brimful as bf

MAX_TOKENS = 16_384
RUNS = 3
FIRST_BATCH = """
import sys, time
import torch, brimful as bf
began = time.perf_counter()
batches = bf.from_store(sys.argv[1], shuffle=True).batch_by_tokens(int(sys.argv[2]))
it = batches.iter()
next(it)
first = time.perf_counter() - began
for _ in range(int(sys.argv[3])):
    next(it)
state = open("/proc/self/status").read() if sys.platform == "linux" else ""
kB = {line.split(":")[0]: int(line.split()[1]) for line in state.splitlines() if line.startswith(("RssAnon", "RssFile"))}
print(first, kB.get("RssAnon", 0) / 1e3, kB.get("RssFile", 0) / 1e3)
"""


def lengths_of(count: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(0)
    heading = draw.random(count) < 0.26
    text = np.where(heading, draw.lognormal(np.log(8), 0.35, count), draw.lognormal(np.log(111), 0.64, count))
    return np.clip(text.astype(int) + 2, 4, 512)


def write(folder: Path, count: int) -> None:
    lengths = lengths_of(count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.random.default_rng(1).integers(0, 30_522, offsets[-1]).astype(np.uint16)
    rows = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
    began = time.perf_counter()
    len(bf.from_sequence(rows).cache(folder))
    seconds = time.perf_counter() - began
    print(f"written in {seconds:.2f} s: {seconds / offsets[-1] * 1e9:.1f} ns a token")


def ours(folder: Path) -> tuple[int, float]:
    """Tokens and seconds of an epoch, in tensors."""
    batches = bf.from_store(folder, shuffle=True).batch_by_tokens(MAX_TOKENS)
    tokens = 0
    began = time.perf_counter()
    with batches.iter() as it:
        for _ in it:
            pass
        tokens = int(it.stats.tokens)
    return tokens, time.perf_counter() - began


def with_numpy(folder: Path) -> tuple[int, float]:
    """The same batches from the same file by plain numpy: planned ahead, tokens gathered by flat indices."""
    plans = [(batch.window, batch.numbers) for batch in bf.from_store(folder, shuffle=True).batch_by_tokens(MAX_TOKENS).plans()]
    index = bf.from_store(folder).stage.rows
    orders = {id(window): window.locate.args[0] for window, _ in plans}
    block, _ = index.locate(np.arange(len(index)))  # all rows, in memory
    values, offsets = block.column("input_ids").values.to_numpy(), block.column("input_ids").offsets.to_numpy().astype(np.int64)
    tokens = 0
    began = time.perf_counter()
    for window, numbers in plans:
        rows = orders[id(window)][numbers]
        starts, counts = offsets[rows], offsets[rows + 1] - offsets[rows]
        width = int(counts.max())
        places = np.arange(width)
        mask = places < counts[:, None]
        ids = np.where(mask, values.take(starts[:, None] + places, mode="clip"), 0).astype(np.int64)
        mask = mask.astype(np.int64)
        tokens += int(counts.sum())
        del ids
    return tokens, time.perf_counter() - began


def memcpy(tokens: int) -> float:
    """Seconds to copy as many bytes as the ids and the mask of so many tokens take, a batch at a time."""
    source = np.ones((2, MAX_TOKENS), dtype=np.int64)
    began = time.perf_counter()
    for _ in range(tokens // MAX_TOKENS):
        source.copy()
    return time.perf_counter() - began


def best(run: Callable[[], tuple[int, float]]) -> float:
    tokens, seconds = run()
    return tokens / seconds / 1e6


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    import torch

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one in use; {platform.system()}")
    print(f"{millions:g} M samples, {MAX_TOKENS:,} tokens a batch; medians of {RUNS} runs in turn")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write(store, int(millions * 1e6))
        speeds: dict[str, list[float]] = {"brimful": [], "numpy gather": [], "memcpy": []}
        for _ in range(RUNS):
            tokens, seconds = ours(store)
            speeds["brimful"].append(tokens / seconds / 1e6)
            speeds["numpy gather"].append(best(lambda: with_numpy(store)))
            speeds["memcpy"].append(tokens / memcpy(tokens) / 1e6)
        for name, values in speeds.items():
            print(f"{name:14} {median(values):6.0f} M tokens/s")
        for steps in (0, 2000):
            command = [sys.executable, "-c", FIRST_BATCH, str(store), str(MAX_TOKENS), str(steps)]
            first, anonymous, file = map(float, subprocess.check_output(command, text=True).split())
            print(f"first batch after {first:.3f} s; memory after {steps:,} more: {anonymous:.0f} MB of its own, {file:.0f} MB of files")


if __name__ == "__main__":
    main()
