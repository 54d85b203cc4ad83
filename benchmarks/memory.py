"""Tokens in memory, shuffled, batched by a token budget, padded to int64 ids and mask, on one core, beside two limits.

    python benchmarks/memory.py [samples]

The limits, in the same run: copying the tokens and writing ids and mask (memcpy), and the same batches gathered and padded by
a loop over numpy rows. Then the memory that a stream of the same samples takes from JSON lines: bounded by the window.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch

import brimful as bf

RUNS = 3
BUDGET = 16_384


def wiki(count: int) -> np.ndarray:
    """Lengths like those of WikiText-103 under a BERT tokenizer: mean 104, at most 512."""
    random = np.random.default_rng(0)
    heading = random.random(count) < 0.26
    drawn = np.where(heading, random.lognormal(np.log(8), 0.35, count), random.lognormal(np.log(111), 0.64, count))
    return np.clip(drawn.astype(int) + 2, 4, 512)


def ours(data: bf.Dataset) -> int:
    with data.batch_by_tokens(BUDGET).iter() as it:
        for _ in it:
            pass
        return int(it.stats.tokens)


def memcpy(values: np.ndarray) -> int:
    for first in range(0, len(values), BUDGET):
        values[first : first + BUDGET].astype(np.int64)
        np.ones(BUDGET, dtype=np.int64)
    return len(values)


def by_rows(values: np.ndarray, offsets: np.ndarray, plans: list[np.ndarray]) -> int:
    for rows in plans:
        starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
        width = max(end - start for start, end in zip(starts, ends, strict=True))
        ids = np.zeros((len(rows), width), dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            ids[row, : end - start] = values[start:end]
            mask[row, : end - start] = 1
    return len(values)


def speed(run: Callable[[], int]) -> float:
    """M tokens a second of processor time, so that other processes on the machine do not count."""
    began = time.process_time()
    return run() / (time.process_time() - began) / 1e6


def peak_of_stream(count: int) -> tuple[float, float]:
    """Resident memory in MB, before and at the peak of streaming `count` samples of token lists from JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(1)
        for shard in range(4):
            with open(os.path.join(folder, f"{shard}.jsonl"), "w") as out:
                for _ in range(count // 4):
                    out.write(json.dumps({"input_ids": random.integers(0, 99, 12).tolist()}) + "\n")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        with bf.from_files(folder + "/*.jsonl").batch_by_tokens(BUDGET, window=10_000).iter() as it:
            for _ in it:
                pass
        return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{platform.machine()}, {os.cpu_count()} cores, one used; {count:,} samples; medians of {RUNS} runs in turn")
    before, peak = peak_of_stream(count)
    lengths = wiki(count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values = np.random.default_rng(0).integers(0, 28_996, offsets[-1], dtype=np.int32)
    ids = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
    data = bf.from_sequence(pa.table({"input_ids": ids}), shuffle=True)
    plans = [batch.window.rows[batch.numbers] for batch in data.batch_by_tokens(BUDGET).plans()]
    rates: dict[str, list[float]] = {"memcpy": [], "a loop over rows": [], "brimful": []}
    for _ in range(RUNS):
        rates["memcpy"].append(speed(lambda: memcpy(values)))
        rates["a loop over rows"].append(speed(lambda: by_rows(values, offsets, plans)))
        rates["brimful"].append(speed(lambda: ours(data)))
    for name, measured in rates.items():
        print(f"{name:20} {statistics.median(measured):7.1f} M tokens/s")
    print(f"streaming {count:,} samples: {before:.0f} MB resident before, {peak:.0f} MB at the peak")


if __name__ == "__main__":
    main()
