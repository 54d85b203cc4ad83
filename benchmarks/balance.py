"""How even the work of ranks is: `bf.balance` beside largest differencing, pipelines with `balance_cost=`, and real steps.

    python benchmarks/balance.py

Lengths are those of WikiText-2 (bert-base-cased, at most 512), a lognormal of instructions, and a mix with a heavy tail. Work is
linear + quadratic: that of a transformer 768 wide. First the dearest part over the lower bound, the larger of the mean and the
dearest sample; then the time for 10^5 lengths; then how micro batches of like lengths, `balance` and groups of pairs grow with
the number of samples, in time and in memory beside the input; then the share of time that ranks wait for the slowest of their
step. At last the wall time of training steps of two processes (gloo, a thread each) with a transformer 128 wide, whose attention
sees one sample at
a time: the same samples dealt at random, to equal tokens, and to equal work as measured. The three take turns. Beside it stands
the processor time of the busier one, which other programs disturb less.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from _training import Layer
from numpy.typing import NDArray
from plan import sft
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import brimful as bf
from brimful.plan.costs import sample_costs
from brimful.plan.groups import optimal_partition

DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
WORK = bf.AttentionCost(quadratic=1 / (6 * 768))
WIDTH, LAYERS, STEP_SAMPLES, STEPS = 128, 2, 64, 16
Lengths = NDArray[np.int64]
Parts = Sequence[Lengths]


@cache
def lines() -> Lengths:
    shards = sorted((DATA / "wikitext-2").glob("train-*.jsonl.gz"))
    if not shards:
        raise SystemExit(f"there is no WikiText-2 at {DATA}; set BRIMFUL_TEST_DATA")
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizers" / "bert-base-cased.json"))
    tokenizer.enable_truncation(512)
    texts = [json.loads(line)["text"] for shard in shards for line in gzip.open(shard, "rt", encoding="utf-8")]
    return np.array([len(one.ids) for one in tokenizer.encode_batch_fast(texts)])


def wikitext(count: int, seed: int = 0) -> Lengths:
    lengths = lines()
    return np.random.default_rng(seed).permutation(np.tile(lengths, -(-count // len(lengths))))[:count]


def heavy(count: int, seed: int = 0) -> Lengths:
    """One of twenty from a tail without variance, the rest near 150; at most 16,384."""
    draw = np.random.default_rng(seed)
    drawn = np.where(draw.random(count) < 0.05, 500 + 2_000 * draw.pareto(1.1, count), draw.lognormal(5, 1, count))
    lengths: Lengths = np.clip(drawn.astype(int), 4, 16_384)
    return lengths


def differencing(costs: NDArray[np.float64], num_parts: int) -> list[list[int]]:
    """Karmarkar and Karp: the two most unequal ways to deal some samples become one, dear parts beside cheap ones."""
    heap = [
        (-cost, number, [(cost, [number])] + [(0.0, [])] * (num_parts - 1))
        for number, cost in enumerate(costs.tolist())
    ]
    heapify(heap)
    while len(heap) > 1:
        _, number, one = heappop(heap)
        _, _, other = heappop(heap)
        joined = sorted(
            ((a + b, members + more) for (a, members), (b, more) in zip(one, reversed(other), strict=True)),
            key=lambda part: -part[0],
        )
        least = joined[-1][0]
        heappush(heap, (least - joined[0][0], number, [(cost - least, members) for cost, members in joined]))
    return [members for _, members in heap[0][2]]


def over_the_bound(costs: NDArray[np.float64], parts: Sequence[Sequence[int]] | Parts) -> float:
    bound = max(costs.sum() / len(parts), costs.max())
    return float(max(costs[np.asarray(part, np.int64)].sum() for part in parts) / bound)


def deal(name: str, draw: Callable[[int, int], Lengths]) -> None:
    print(
        f"{name:<12}{'ranks':>6}{'a rank':>8}{'work':>11}{'random':>9}{'KK':>9}{'balance':>9}{'equal n':>9}{'KK, ms':>8}{'ms':>7}"
    )
    for ranks in (8, 64):
        for each in (32, 128):
            lengths = draw(ranks * each, 1)
            for title, cost in (("tokens", None), ("attention", WORK)):
                costs = sample_costs(lengths, cost)
                start = time.perf_counter()
                other = differencing(costs, ranks)
                between = time.perf_counter()
                parts = bf.balance(lengths, ranks, cost=cost)
                end = time.perf_counter()
                equal = bf.balance(lengths, ranks, cost=cost, equal_count=True)
                found = [
                    over_the_bound(costs, way)
                    for way in (np.arange(len(lengths)).reshape(ranks, -1), other, parts, equal)
                ]
                took = f"{1e3 * (between - start):>8.0f}{1e3 * (end - between):>7.1f}"
                print(f"{'':<12}{ranks:>6}{each:>8}{title:>11}{''.join(f'{one:>9.4f}' for one in found)}{took}")


def time_many(name: str, draw: Callable[[int, int], Lengths]) -> None:
    lengths = draw(100_000, 2)
    for title, cost in (("tokens", None), ("attention", WORK)):
        times = []
        for _ in range(7):
            start = time.perf_counter()
            parts = bf.balance(lengths, 64, cost=cost)
            times.append(time.perf_counter() - start)
        ratio = over_the_bound(sample_costs(lengths, cost), parts)
        print(f"{name:<12}{title:>11}{1e3 * min(times):>9.1f}{1e3 * statistics.median(times):>9.1f} ms{ratio:>10.5f}")


def grow() -> None:
    """Processor time, the most memory at once, and how many parts there are, as the number of samples grows."""
    draw = np.random.default_rng(0)
    calls: dict[str, tuple[Callable[[Lengths], Sequence[object]], Callable[[int], Lengths], tuple[int, ...]]] = {
        f"micro batches, {name}": (
            lambda lengths: bf.micro_batches(lengths, 100)[0],
            make,
            (10_000, 100_000, 1_000_000),
        )
        for name, make in {
            "all 34": lambda count: np.full(count, 34),
            "33 and 34": lambda count: draw.integers(33, 35, count),
            "20 to 34": lambda count: draw.integers(20, 35, count),
        }.items()
    }
    calls["balance, attention, a part for 4"] = (
        lambda lengths: bf.balance(lengths, len(lengths) // 4, cost=WORK),
        lambda count: draw.integers(1, 2_001, count),
        (4_096, 10_000, 100_000, 1_000_000),
    )
    calls["6 groups of pairs"] = (
        lambda lengths: optimal_partition(lengths, 6, cost=lambda *pair: sum(pair)),
        lambda count: draw.integers(1, 2_001, (count, 2)),
        (128, 512, 2_048),
    )
    for name, (call, make, counts) in calls.items():
        for count in counts:
            lengths = make(count)
            start = time.process_time()
            parts = len(call(lengths))
            took = time.process_time() - start
            tracemalloc.start()
            call(lengths)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(
                f"{name:<34}{count:>10,}{took:>9.3f} s{peak / count:>8.0f} bytes a sample{parts:>10,} parts", flush=True
            )


def work_of(batches: bf.Batches) -> NDArray[np.float64]:
    windows = groupby(batches.plans(), lambda batch: batch.plan)
    return np.concatenate([plan.costs(WORK)[[batch.place for batch in own]] for plan, own in windows])


def waiting(work: NDArray[np.float64], ranks: int, parts: int) -> float:
    """The share of time that ranks wait, if they do at the end of each step of `parts` batches."""
    steps = work[: len(work) // (ranks * parts) * ranks * parts].reshape(-1, parts, ranks).sum(axis=1)
    return float(1 - steps.mean(axis=1).sum() / steps.max(axis=1).sum())


def pipelines(name: str, lengths: Lengths) -> None:
    data = bf.from_sequence([{"input_ids": np.zeros(length, np.int8)} for length in lengths.tolist()], shuffle=True)
    longest = int(lengths.max())
    ways: dict[str, tuple[int, Callable[..., bf.Batches]]] = {
        "padded": (1, lambda **how: data.batch_by_tokens(4 * longest, **how)),
        "padded, 4 micro batches": (4, lambda **how: data.batch_by_tokens(4 * longest, micro_batches=4, **how)),
        "packed, a row": (1, lambda **how: data.pack(longest, **how)),
        "packed, 8 rows": (1, lambda **how: data.pack(longest, rows=8, **how)),
    }
    for ranks in (8, 64):
        for title, (parts, make) in ways.items():
            found, times = [], []
            for how in ({}, {"balance_group": ranks}, {"balance_group": ranks, "balance_cost": WORK}):
                start = time.perf_counter()
                work = work_of(make(**how))
                times.append(time.perf_counter() - start)
                found.append(waiting(work, ranks, parts))
            shares = "".join(f"{share:>10.2%}" for share in found)
            print(f"{name:<12}{ranks:>6}  {title:<25}{shares}{1e6 * (times[2] - times[1]) / len(lengths):>12.1f} us")


# -- steps of two processes ----------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Causal, over samples that lie end to end: attention sees one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(1_024, WIDTH), nn.Linear(WIDTH, 1_024)
        self.layers = nn.ModuleList([Layer(WIDTH, WIDTH // 32) for _ in range(LAYERS)])

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        def attend(*qkv: Tensor) -> Tensor:
            pieces = zip(*(one.split(lengths, dim=2) for one in qkv), strict=True)
            return torch.cat([F.scaled_dot_product_attention(*piece, is_causal=True) for piece in pieces], dim=2)

        hidden = self.tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return F.cross_entropy(self.head(hidden[0, :-1]), ids[0, 1:], reduction="sum")


def step(model: nn.Module, lengths: Lengths) -> float:
    """Seconds of forward and backward."""
    ids = torch.randint(0, 1_024, (1, int(lengths.sum())))
    start = time.perf_counter()
    model(ids, lengths.tolist()).backward()
    return time.perf_counter() - start


def measured(model: nn.Module) -> bf.AttentionCost:
    """The cost of a sample in seconds, by lengths of 4,096 tokens each."""
    sizes = np.array([128, 512, 1_024, 2_048, 4_096])
    took = [min(step(model, np.full(4_096 // size, size)) for _ in range(3)) for size in sizes.tolist()]
    linear, quadratic = np.linalg.lstsq(
        np.stack([np.full(5, 4_096), 4_096 * sizes], axis=1), np.array(took), rcond=None
    )[0]
    return bf.AttentionCost(linear=max(float(linear), 0.0), quadratic=max(float(quadratic), 0.0))


def train() -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = Transformer()
    costs = [measured(plain)] if rank == 0 else [WORK]
    dist.broadcast_object_list(costs)
    model = DistributedDataParallel(plain)
    ways: dict[str, Callable[[Lengths], Parts]] = {
        "random": lambda lengths: np.arange(len(lengths)).reshape(2, -1),
        "equal tokens": lambda lengths: bf.balance(lengths, 2),
        "equal work": lambda lengths: bf.balance(lengths, 2, cost=costs[0]),
    }
    if rank == 0:
        print(f"a token {1e6 * costs[0].linear:.1f} us, a pair of tokens {1e9 * costs[0].quadratic:.2f} ns")
    for name, draw in (("lognormal", sft), ("heavy tail", lambda count, seed: np.minimum(heavy(count, seed), 8_192))):
        walls: dict[str, list[float]] = {way: [] for way in ways}
        busiest: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(-1, STEPS):  # the first one warms up
            lengths = draw(STEP_SAMPLES, 100 + number)
            for way, dealt in ways.items():
                own = lengths[dealt(lengths)[rank]]
                dist.barrier()
                start, busy = time.perf_counter(), time.process_time()
                step(model, own)
                busy = time.process_time() - busy
                dist.barrier()
                wall = time.perf_counter() - start
                both = [torch.zeros(1) for _ in range(2)]
                dist.all_gather(both, torch.tensor([busy]))
                if number >= 0:
                    walls[way].append(wall)
                    busiest[way].append(max(one.item() for one in both))
        if rank == 0:
            for way in ways:
                found = "".join(
                    f"{1e3 * statistics.mean(times[way]):>9.0f} ms{sum(times[way]) / sum(times['equal work']):>9.3f}"
                    for times in (walls, busiest)
                )
                print(f"{name:<12}{way:<14}{found}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{platform.platform()}, {os.cpu_count()} CPUs, load {load}, numpy {np.__version__}, torch {torch.__version__}"
    )
    kinds: dict[str, Callable[[int, int], Lengths]] = {"WikiText-2": wikitext, "lognormal": sft, "heavy tail": heavy}
    print("\nDearest part over the lower bound")
    for name, draw in kinds.items():
        deal(name, draw)
    print("\n10^5 lengths to 64 parts, best and median of 7, and the dearest part over the bound")
    for name, draw in kinds.items():
        time_many(name, draw)
    print("\nAs the number of samples grows")
    grow()
    print(f"\n{'Ranks wait':<45}{'no group':>10}{'group':>10}{'cost':>10}{'costs a sample':>15}")
    for name, draw in kinds.items():
        pipelines(name, draw(60_000, 3))
    print(
        f"\nA step of two processes, {STEP_SAMPLES} samples: wall time, processor time, over those by work", flush=True
    )
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "ranks"]
    subprocess.run(ranks, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["ranks"] else main()
