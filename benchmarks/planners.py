"""`bf.steps` beside the planners of RL frameworks: greatest load over the mean, micro batches, time.

    python benchmarks/planners.py

The planners of verl, slime, TRL and OpenRLHF are written again from their public descriptions (August 2026). The work of a sample
is that of a transformer 4,096 wide: its length + its square / 24,576.

- verl: largest differencing deals samples to ranks, the same number to each, and then to micro batches. There are as many as the
  fullest rank needs. One more is tried as long as one is above the limit.
- slime: first fit makes micro batches, and the largest are split until each rank has the same number. Largest differencing deals
  them.
- TRL: each sample goes, as it comes, to the rank of the least sum of squares that has room. Where none has, a new micro batch
  begins.
- OpenRLHF: largest differencing of lengths to ranks, and then into as many micro batches as first fit needs.

Then the padding of the case that transformers published: 1,600 lengths, 32 a step on two ranks. At last what a million samples
take.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

import brimful as bf

Lengths = NDArray[np.int64]
Ranks = list[list[list[int]]]
"""For each rank the samples of its micro batches."""
Planner = Callable[[Lengths, int, int], Ranks]
WORK = bf.AttentionCost(quadratic=1 / (6 * 4_096))
SEEDS = 5


def work(lengths: Lengths) -> NDArray[np.float64]:
    found: NDArray[np.float64] = lengths * (1 + lengths / (6 * 4_096))
    return found


# -- five distributions --------------------------------------------------------------------------------------------------


def lognormal(count: int, seed: int = 0) -> Lengths:
    """Instructions with answers: a mean of 721, at most 4,096."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(420), 1.1, count).astype(np.int64), 8, 4_096)


def wikitext(count: int, seed: int) -> Lengths:
    """Paragraphs of WikiText-103: a quarter are headings, the rest near 111 tokens, at most 512."""
    draw = np.random.default_rng(seed)
    drawn = np.where(draw.random(count) < 0.26, draw.lognormal(2.1, 0.35, count), draw.lognormal(4.7, 0.64, count))
    return np.clip(drawn.astype(np.int64) + 2, 4, 512)


def heavy(count: int, seed: int) -> Lengths:
    """One of twenty from a tail without variance, at most 16,384."""
    draw = np.random.default_rng(seed)
    drawn = np.where(draw.random(count) < 0.05, 500 + 2_000 * draw.pareto(1.1, count), draw.lognormal(5, 1, count))
    return np.clip(drawn.astype(np.int64), 4, 16_384)


def rollouts(count: int, seed: int) -> Lengths:
    """Eight answers to a prompt, alike in length, of which a tenth runs into the limit of 8,192."""
    draw = np.random.default_rng(seed)
    answers = np.repeat(draw.lognormal(6.5, 0.8, -(-count // 8)), 8)[:count] * draw.lognormal(0, 0.4, count)
    answers[draw.random(count) < 0.1] = 8_192
    return np.clip(answers.astype(np.int64), 16, 8_192)


def bimodal(count: int, seed: int) -> Lengths:
    """Short answers, and one of four that is near 4,096."""
    draw = np.random.default_rng(seed)
    drawn = np.where(draw.random(count) < 0.25, draw.normal(4_000, 300, count), draw.normal(200, 60, count))
    return np.clip(drawn.astype(np.int64), 16, 5_000)


KINDS: dict[str, Callable[[int, int], Lengths]] = {
    "lognormal": lognormal,
    "heavy tail": heavy,
    "8 a prompt": rollouts,
    "WikiText": wikitext,
    "bimodal": bimodal,
}

# -- planners ------------------------------------------------------------------------------------------------------------


def differencing(costs: NDArray[np.float64], parts: int, equal: bool = False) -> list[list[int]]:
    """Karmarkar and Karp: the two most unequal ways to deal some samples become one, dear parts beside cheap ones. With `equal`,
    one begins with a sample in each part."""
    order = np.argsort(-costs, kind="stable").tolist()
    size = parts if equal else 1
    heap = []
    for number, start in enumerate(range(0, len(order), size)):
        way = [(float(costs[one]), [one]) for one in order[start : start + size]]
        way += [(0.0, [])] * (parts - len(way))
        heap.append((way[-1][0] - way[0][0], number, way))
    heapify(heap)
    while len(heap) > 1:
        (_, number, one), (_, _, other) = heappop(heap), heappop(heap)
        both = [(load + more, own + theirs) for (load, own), (more, theirs) in zip(one, other[::-1], strict=True)]
        both.sort(key=lambda part: -part[0])
        heappush(heap, (both[-1][0] - both[0][0], number, both))
    return [own for _, own in heap[0][2]]


def first_fit(lengths: Lengths, limit: int) -> list[list[int]]:
    parts: list[list[int]] = []
    rooms: list[int] = []
    for sample, length in enumerate(lengths.tolist()):
        at = next((at for at, room in enumerate(rooms) if room >= length), len(rooms))
        if at == len(rooms):
            parts.append([])
            rooms.append(limit)
        parts[at].append(sample)
        rooms[at] -= length
    return parts


def placed(samples: list[int], parts: list[list[int]]) -> list[list[int]]:
    return [[samples[at] for at in part] for part in parts]


def verl(lengths: Lengths, limit: int, ranks: int) -> Ranks:
    costs = work(lengths)
    own = differencing(costs, ranks, equal=True)
    number = max(-(-int(lengths[samples].sum()) // limit) for samples in own)
    while True:
        cut = [placed(samples, differencing(costs[samples], number)) for samples in own]
        if all(lengths[part].sum() <= limit for parts in cut for part in parts):
            return cut
        number += 1


def slime(lengths: Lengths, limit: int, ranks: int) -> Ranks:
    parts = first_fit(lengths, limit)
    while len(parts) % ranks:
        largest = max((part for part in parts if len(part) > 1), key=lambda part: int(lengths[part].sum()))
        parts.remove(largest)
        parts += placed(largest, differencing(lengths[largest].astype(float), 2))
    costs = np.array([work(lengths[part]).sum() for part in parts])
    return [[parts[at] for at in own] for own in differencing(costs, ranks, equal=True)]


def trl(lengths: Lengths, limit: int, ranks: int) -> Ranks:
    found: Ranks = [[[]] for _ in range(ranks)]
    squares, tokens = [0] * ranks, [0] * ranks
    for sample, length in enumerate(lengths.tolist()):
        fits = [rank for rank in range(ranks) if tokens[rank] + length <= limit]
        if not fits:
            squares, tokens, fits = [0] * ranks, [0] * ranks, [*range(ranks)]
            for own in found:
                own.append([])
        rank = min(fits, key=lambda one: squares[one])
        found[rank][-1].append(sample)
        squares[rank] += length**2
        tokens[rank] += length
    return found


def openrlhf(lengths: Lengths, limit: int, ranks: int) -> Ranks:
    own = differencing(lengths.astype(float), ranks, equal=True)
    number = max(len(first_fit(lengths[samples], limit)) for samples in own)
    return [placed(samples, differencing(lengths[samples].astype(float), number)) for samples in own]


def ours(lengths: Lengths, limit: int, ranks: int) -> Ranks:
    (found,) = bf.steps(lengths, limit, ranks, cost=WORK).batches
    return [[part.tolist() for part in parts] for parts in found]


PLANNERS: dict[str, Planner] = {"brimful": ours, "verl": verl, "slime": slime, "TRL": trl, "OpenRLHF": openrlhf}


def compare(count: int, ranks: int) -> None:
    print(f"\n{count:,} samples on {ranks} ranks, limit twice the longest sample; means of {SEEDS}")
    print(f"{'':<12}{'':<10}{'a rank':>9}{'a place':>9}{'micro batches':>15}{'fullest':>9}{'time':>10}")
    for kind, draw in KINDS.items():
        for name, plan in PLANNERS.items():
            rows = []
            for seed in range(SEEDS):
                lengths = draw(count, seed)
                limit, costs = 2 * int(lengths.max()), work(lengths)
                start = time.process_time()
                found = plan(lengths, limit, ranks)
                took = time.process_time() - start
                assert sorted(sample for parts in found for part in parts for sample in part) == list(range(count))
                loads = np.array([[costs[part].sum() if part else 0.0 for part in parts] for parts in found])
                greatest = loads.sum(axis=1).max() / loads.sum(axis=1).mean()
                waits = loads.max(axis=0).sum() / loads.mean(axis=0).sum()
                fullest = max(lengths[part].sum() for parts in found for part in parts if part) / limit
                rows.append((greatest, waits, loads.shape[1], fullest, 1e3 * took))
            greatest, waits, number, fullest, took = (statistics.mean(column) for column in zip(*rows, strict=True))
            print(
                f"{kind:<12}{name:<10}{greatest:>9.4f}{waits:>9.3f}{number:>15.1f}{fullest:>9.2f}{took:>7.1f} ms",
                flush=True,
            )


# -- padding -------------------------------------------------------------------------------------------------------------


def padding() -> None:
    """What share of the slots is padded, on two ranks."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, 1_600), 16, 1_024).astype(np.int64)
    steps = lengths.reshape(-1, 32)
    ways = {
        "random": ([half for step in steps for half in step.reshape(2, 16)], 1),
        "sorted in the step": ([half for step in steps for half in np.sort(step).reshape(2, 16)], 1),
    }
    for limit in (16_384, 8_192, 4_096, 2_048):
        plan = bf.steps(lengths, limit, 2, samples_per_step=32, padded=True, same_count=True)
        parts = [lengths[part] for ranks in plan.batches for parts in ranks for part in parts if len(part)]
        ways[f"bf.steps, {limit:,} slots"] = (parts, plan.counts.mean())
    packed = bf.steps(lengths, 16_384, 2, samples_per_step=32)
    print(f"\n{'1,600 lengths, 32 a step on 2 ranks':<40}{'padding':>9}{'micro batches a rank':>22}{'most slots':>12}")
    for name, (parts, number) in ways.items():
        slots = [len(part) * int(part.max()) for part in parts]
        print(f"{name:<40}{1 - lengths.sum() / sum(slots):>9.1%}{number:>22.2f}{max(slots):>12,}")
    print(f"{'bf.steps, packed, 16,384 tokens':<40}{0:>9.1%}{packed.counts.mean():>22.2f}{'':>12}")


def million() -> None:
    print(f"\n{'':<44}{'processor time':>15}{'memory':>10}")
    for name, count, call in (
        ("1,000,000 samples on 1,024 ranks", 1_000_000, lambda lengths: bf.steps(lengths, 16_384, 1_024)),
        ("the same by work", 1_000_000, lambda lengths: bf.steps(lengths, 16_384, 1_024, cost=WORK)),
        ("the same in 16 steps", 1_000_000, lambda lengths: bf.steps(lengths, 16_384, 1_024, samples_per_step=1 << 16)),
        ("100,000 samples in 64 parts, bf.balance", 100_000, lambda lengths: bf.balance(lengths, 64)),
    ):
        lengths = lognormal(count)
        times = []
        for _ in range(3):
            start = time.process_time()
            call(lengths)
            times.append(time.process_time() - start)
        tracemalloc.start()
        call(lengths)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{name:<44}{min(times):>13.3f} s{peak / 1e6:>7.0f} MB", flush=True)


def main() -> None:
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {load}, numpy {np.__version__}")
    compare(512, 8)
    compare(2_048, 64)
    padding()
    million()


if __name__ == "__main__":
    main()
