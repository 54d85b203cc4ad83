"""Seconds per million samples of every planner, beside the floor: numpy sorting the same lengths in the same run.

python benchmarks/plan.py [--samples 1000000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from brimful.plan import Packed, Policy, TokenBudget, optimal_buckets

BUDGET = 16_384
Lengths = NDArray[np.int64]


def wiki(num_samples: int, seed: int = 0) -> Lengths:
    """Lengths like those of WikiText-103 paragraphs: a quarter headings, the rest near 111 tokens, at most 512."""
    random = np.random.default_rng(seed)
    heading = random.random(num_samples) < 0.26
    short, long = (random.lognormal(np.log(mean), sd, num_samples) for mean, sd in ((8, 0.35), (111, 0.64)))
    lengths: Lengths = np.clip(np.where(heading, short, long).astype(int) + 2, 4, 512)
    return lengths


def sft(num_samples: int, seed: int = 0) -> Lengths:
    """Lengths like those of instructions with answers: mean 721, at most 4,096."""
    drawn = np.random.default_rng(seed).lognormal(np.log(420), 1.1, num_samples)
    lengths: Lengths = np.clip(drawn.astype(int), 8, 4096)
    return lengths


def seconds(function: Callable[[], object], repeat: int) -> float:
    """The least of several runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def by_window(policy: Policy, lengths: Lengths, rows: int) -> tuple[float, int]:
    """Padding and batches of all windows of that many rows."""
    plans = [policy.plan(lengths[start : start + rows]) for start in range(0, len(lengths), rows)]
    return 1 - sum(plan.tokens for plan in plans) / sum(plan.slots for plan in plans), sum(map(len, plans))


def planners(row_length: int) -> dict[str, Policy]:
    """The policies that are timed, by name."""
    return {
        "greedy": TokenBudget(BUDGET),
        "least padding, same number of batches": TokenBudget(BUDGET, planner="least_padding"),
        "least padding, a batch costs 5 %": TokenBudget(BUDGET, planner="least_padding", step_cost=0.05),
        f"best fit, rows of {row_length}": Packed(row_length),
    }


def report(name: str, lengths: Lengths, row_length: int, repeat: int) -> None:
    """One table: the floor, then every planner in windows of two sizes."""
    millions = len(lengths) / 1e6
    print(f"{name:<40}{'window':>9}{'s/M':>8}{'padding':>10}{'batches':>10}")
    for sort in (np.sort, np.argsort):
        took = seconds(partial(sort, lengths), repeat) / millions
        print(f"{'floor: np.' + sort.__name__:<40}{'all':>9}{took:>8.3f}")
    for title, policy in planners(row_length).items():
        for rows in (10_000, 100_000):
            took = seconds(partial(by_window, policy, lengths, rows), repeat) / millions
            padding, batches = by_window(policy, lengths, rows)
            print(f"{title:<40}{rows:>9,}{took:>8.3f}{padding:>10.3%}{batches:>10,}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} CPUs (one used), numpy {np.__version__}")
    print(f"budget {BUDGET:,} tokens, {options.samples:,} samples, the best of {options.repeat} runs\n")
    report("wiki", wiki(options.samples), 512, options.repeat)
    report("sft", sft(options.samples), 4096, options.repeat)
    lengths = np.repeat(np.arange(1, 4097), np.random.default_rng(0).integers(1, 100, 4096))
    for num_buckets in (8, 32):
        took = seconds(partial(optimal_buckets, lengths, num_buckets), options.repeat)
        print(f"optimal_buckets, 4,096 distinct lengths, {num_buckets:>2} buckets: {took * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
