"""A function in Python that computes: rows a second with threads and with processes, beside the same function by itself.

    python benchmarks/workers.py [rows]

The limit is the function called in a plain loop, times the cores; multiprocessing.Pool.imap is what users write by hand.

Then a function that waits for 4 ms a sample, in front of steps of 40 ms on batches of 8: the longest wait after the first
batches, and the time of all steps. Ideal are no waits: one worker makes a batch in 32 ms.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import brimful as bf

ROUNDS = 400
"""Of a function that takes about a millisecond."""
STEPS = 150


def compute(row: dict[str, Any]) -> dict[str, Any]:
    """Python, without an end of the interpreter's lock."""
    value = row["x"]
    for _ in range(ROUNDS * 40):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return {"x": row["x"], "hash": value}


def rate(rows: int, run: Callable[[], int]) -> float:
    began = time.perf_counter()
    assert run() == rows
    return rows / (time.perf_counter() - began)


def pooled(data: list[dict[str, Any]], workers: int) -> int:
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return sum(1 for _ in pool.imap(compute, data, chunksize=32))


def waits(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.004)
    return {"input_ids": [row["x"]] * 3}


def stalls(workers: int) -> tuple[float, float]:
    """The longest wait of a step, and the seconds of all steps."""
    batches = bf.from_iterable([{"x": x} for x in range(3_000)]).map(waits, max_workers=workers).batch(8)
    found = []
    with batches.iter() as it:
        next(it)  # it imports torch
        began = time.perf_counter()
        for _ in range(STEPS):
            asked = time.perf_counter()
            next(it)
            found.append(time.perf_counter() - asked)
            time.sleep(0.04)
    return max(found[2:]), time.perf_counter() - began


def main(rows: int) -> None:
    cores = os.cpu_count() or 1
    data = [{"x": x} for x in range(rows)]
    source = bf.from_sequence(data)
    print(
        f"{platform.processor() or platform.machine()}, {cores} cores, Python {platform.python_version()}; {rows:,} rows"
    )
    alone = rate(rows, lambda: sum(1 for row in data if compute(row)))
    print(f"{'the function in a loop':<40}{alone:>12,.0f} rows/s")
    print(f"{'times the cores':<40}{alone * cores:>12,.0f} rows/s")
    print(f"{'multiprocessing.Pool.imap by hand':<40}{rate(rows, lambda: pooled(data, cores)):>12,.0f} rows/s")
    for workers in sorted({0, 1, 2, cores}):
        for kind in ("thread", "process") if workers else ("thread",):
            made = source.map(compute, max_workers=workers, executor_type=kind)
            found = rate(rows, lambda made=made: sum(1 for _ in made))
            words = f"map, {workers} {kind}{'' if workers == 1 else {'thread': 's', 'process': 'es'}[kind]}"
            print(f"{words:<40}{found:>12,.0f} rows/s")
    print(f"{STEPS} steps of 40 ms on batches of 8, 4 ms a sample: {STEPS * 0.04:.1f} s are ideal")
    for workers in (0, 1, 2):
        longest, whole = stalls(workers)
        print(f"{f'map, {workers} threads':<40}{longest:>10.2f} s longest wait, {whole:.1f} s in all")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
