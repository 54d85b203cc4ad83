"""A batch of very different lengths, padded as one and in groups of like length: time, peak memory, and what groups cost.

    python benchmarks/grouping.py

Both sides have the same samples, model, optimizer and warm-up, and take turns. First 1,024 samples of lengths 1, 4, 16, 64, the
more the shorter (embedding, linear, masked max-pool, linear; a training step); then attention at 73 % padding (forward alone);
then each step on the way into groups and out of them. Peak memory is that of a process of its own for each side.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from brimful.grouping import Collection, LengthThresholds, OneGroup, OptimalGroups, find_thresholds

RUNS = 7
WARM_UP = 2
STEPS = 5
ONE: Any = OneGroup()


class MaxPooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 128)
        self.first, self.second = nn.Linear(128, 256), nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.embedding(tokens)).masked_fill(~mask[..., None], -torch.inf)
        pooled: torch.Tensor = self.second(hidden.amax(1))
        return pooled


def demo() -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    lengths = random.permutation(np.repeat([1, 4, 16, 64], [771, 193, 48, 12]))
    return [torch.from_numpy(random.integers(0, 10_000, length)) for length in lengths]


def thresholds_of(samples: list[torch.Tensor]) -> Any:
    return LengthThresholds("seq", find_thresholds([len(sample) for sample in samples], 4))


def trained(grouper: Any, steps: int) -> Callable[[], None]:
    """A function that trains for some steps, from samples to weights, once it is warm."""
    samples = demo()
    torch.manual_seed(0)
    model = MaxPooled()
    optimizer = torch.optim.Adam(model.parameters())
    target = torch.randn(len(samples), 10)

    def run() -> None:
        for _ in range(steps):
            collection = Collection(samples, "seq").group(grouper)
            results = torch.stack(collection.apply(model, masks="seq", outputs="10").ungroup())
            optimizer.zero_grad()
            (results - target).square().mean().backward()
            optimizer.step()

    for _ in range(WARM_UP):
        run()
    return run


def peak(grouper: Any) -> float:
    """MB that training took at most beyond what there was before; called in a process of its own."""
    torch.set_num_threads(1)
    demo()
    before = high_water()
    trained(grouper, STEPS)()
    return high_water() - before


def high_water() -> float:
    """MB that this process had at most; `ru_maxrss` would be that of the process that started it, if that had more."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def attended() -> tuple[Collection, nn.Module, float]:
    """64 samples of 32 numbers a token at 73 % padding, and an attention layer."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(96), 0.8, 64).astype(int), 4, 512)
    lengths[0] = 512
    collection = Collection([torch.randn(int(length), 128) for length in lengths], "seq 128")
    return collection, nn.MultiheadAttention(128, 4, batch_first=True).eval(), 1 - lengths.sum() / (64 * lengths.max())


def attend(collection: Collection, attention: nn.Module, grouper: Any) -> None:
    with torch.no_grad():
        collection.group(grouper).apply(
            attention,
            inputs={"query": "", "key": "", "value": ""},
            masks={"key_padding_mask": "~seq"},
            outputs=("seq 128", None),
        )[0].ungroup()


def in_turn(sides: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median processor time in ms of each side, the sides in turn."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(RUNS):
        for name, run in sides.items():
            began = time.process_time()
            run()
            spent[name].append((time.process_time() - began) * 1e3)
    return {name: statistics.median(times) for name, times in spent.items()}


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, one used; processor time, medians of {RUNS} runs in turn")
    samples = demo()
    by_threshold = thresholds_of(samples)
    print(f"thresholds {list(by_threshold.thresholds)}")
    sides = {"padded": ONE, "4 groups": by_threshold}
    spent = in_turn({name: trained(grouper, STEPS) for name, grouper in sides.items()})
    for name, grouper in sides.items():
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            megabytes = fresh.submit(peak, grouper).result()
        print(f"training step, {name:10} {spent[name] / STEPS:8.1f} ms   peak {megabytes:6.0f} MB")
    print(f"{spent['padded'] / spent['4 groups']:.1f} times faster")

    collection, attention, padding = attended()
    groupers = {"padded": ONE, "4 groups": OptimalGroups("seq", 4), "8 groups": OptimalGroups("seq", 8)}
    calls = {
        name: (lambda grouper=grouper: attend(collection, attention, grouper)) for name, grouper in groupers.items()
    }
    attend(collection, attention, ONE)
    spent = in_turn(calls)
    for name in groupers:
        print(f"attention at {padding:.0%} padding, {name:10} {spent[name]:8.1f} ms")
    print(f"{spent['padded'] / spent['4 groups']:.1f} and {spent['padded'] / spent['8 groups']:.1f} times faster")

    ungrouped = Collection(samples, "seq")
    grouped = ungrouped.group(by_threshold)
    wide = grouped.apply(nn.Embedding(10_000, 64), outputs="seq 64")
    steps: dict[str, Callable[[], Any]] = {
        "Collection": lambda: Collection(samples, "seq"),
        "find_thresholds": lambda: thresholds_of(samples),
        "group": lambda: ungrouped.group(by_threshold),
        "regroup": lambda: wide.regroup(ONE),
        "ungroup": wide.ungroup,
    }
    for name, milliseconds in in_turn(steps).items():
        print(f"{name:20} of 1,024 samples {milliseconds:8.2f} ms")


if __name__ == "__main__":
    main()
