"""Speech, text with images, and molecules on a CPU: brimful's batches against random ones of equal memory, in samples a second of
processor time.

    python benchmarks/modalities.py [SAMPLES]

Both have at most so many slots of memory: frames, patches, or nodes, padding among them. A random batch has a fixed number of
samples, padded to its longest: as many as fit if the longest one is among them. Both are laid out by brimful, train the same
model, and take turns. Sizes are log-normal: a few samples are ten times as large as most.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import brimful as bf

RUNS = 3
WIDTH = 128
Batch = dict[str, torch.Tensor]


class Task(NamedTuple):
    """A model and its data: batches of brimful, and random ones of `size` samples; `column`: what memory is counted by."""

    data: bf.IndexedDataset
    column: str
    slots: int
    ours: Callable[[bf.IndexedDataset], bf.Batches]
    length_column: str
    model: Callable[[], nn.Module]


def sizes(count: int, usual: float, most: int, seed: int) -> list[int]:
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(usual), 0.9, count))
    return np.clip(drawn, 2, most).astype(int).tolist()


class Speech(nn.Module):
    """Two convolutions, and the mean over the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(80, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, batch: Batch) -> torch.Tensor:
        there = batch["attention_mask"][:, None].float()
        hidden = self.first(batch["frames"].mT * there).relu() * there
        hidden = self.second(hidden).relu() * there
        return cross_entropy(self.head(hidden.sum(2) / there.sum(2)), batch["labels"])


class VisionText(nn.Module):
    """The mean of the tokens so far, and of the image's patches, padded or end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 256)
        self.patches = nn.Sequential(nn.Linear(768, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, batch: Batch) -> torch.Tensor:
        patches, tokens = batch["patches"], batch["input_ids"]
        seen = self.patches(patches.flatten(-3))
        if "patches_mask" in batch:
            mask = batch["patches_mask"][..., None]
            images = (seen * mask).sum(1) / mask.sum(1)
        else:
            counts = batch["patches_offsets"].diff()
            owners = torch.arange(len(counts)).repeat_interleave(counts)
            images = torch.zeros(len(counts), WIDTH).index_add(0, owners, seen) / counts[:, None]
        so_far = self.tokens(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        scores = self.head((so_far + images[:, None]).tanh())
        return cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


class Molecules(nn.Module):
    """Two layers of messages, and the mean over the nodes, padded or end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.messages = nn.Linear(16, WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        nodes, edges = batch["nodes"], batch["edges"]
        if "nodes_mask" in batch or "attention_mask" in batch:
            mask = batch.get("nodes_mask", batch.get("attention_mask")).flatten()
            rows, width = nodes.shape[:2]
            edges = (edges + torch.arange(rows)[:, None, None] * width).flatten(0, 1)
            weights, graphs = batch["edges_mask"].flatten(), torch.arange(rows).repeat_interleave(width)
            nodes = nodes.flatten(0, 1)
        else:
            starts = batch["nodes_offsets"]
            rows = len(starts) - 1
            graphs = torch.arange(rows).repeat_interleave(starts.diff())
            edges = edges + starts[torch.arange(rows).repeat_interleave(batch["edges_offsets"].diff())][:, None]
            mask, weights = torch.ones(len(nodes)), torch.ones(len(edges))
        hidden = self.first(nodes).relu()
        for layer in self.messages:
            said = layer(hidden)[edges[:, 0]].relu() * weights[:, None]
            hidden = hidden + torch.zeros_like(hidden).index_add(0, edges[:, 1], said)
        sums = torch.zeros(rows, WIDTH).index_add(0, graphs, hidden * mask[:, None])
        counts = torch.zeros(rows).index_add(0, graphs, mask.float())
        return (self.head(sums / counts[:, None])[:, 0] - batch["labels"]).square().mean()


def tasks(count: int) -> dict[str, Task]:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    speech = [{"frames": normal(n, 80), "labels": n % 5} for n in sizes(count, 60, 1_000, 1)]
    captions = [
        {
            "input_ids": (tokens := random.integers(0, 256, length).tolist()),
            "labels": tokens,
            "patches": normal(n, 3, 16, 16),
        }
        for length, n in zip(sizes(count, 20, 200, 2), sizes(count, 12, 200, 3))
    ]
    graphs = [
        {"nodes": normal(n, 16), "edges": random.integers(0, n, (2 * n, 2)), "labels": float(n % 7)}
        for n in sizes(count, 15, 300, 4)
    ]
    both = bf.MultiBudget(padded={"input_ids": 1_000}, total={"patches": 1_000})
    parts = bf.MultiBudget(total={"nodes": 1_500, "edges": 3_000})
    ends = {"nodes": "concat", "edges": "concat"}
    return {
        "speech": Task(
            *(bf.from_sequence(speech), "frames", 8_000),
            *(lambda data: data.batch_by_tokens(8_000, length_column="frames"), "frames", Speech),
        ),
        "text with images": Task(
            *(bf.from_sequence(captions), "patches", 1_000),
            *(lambda data: data.batch(both, arrays={"patches": "concat"}), "input_ids", VisionText),
        ),
        "molecules": Task(
            *(bf.from_sequence(graphs), "nodes", 1_500),
            *(lambda data: data.batch(parts, arrays=ends), "nodes", Molecules),
        ),
    }


def trained(task: Task, batches: bf.Batches) -> tuple[float, list[int]]:
    """Seconds of processor time for a pass of steps, and the slots of their batches."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    slots = []
    began = time.process_time()
    for batch in batches:
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        values = batch[task.column]
        slots.append(len(values) if f"{task.column}_offsets" in batch else values.shape[0] * values.shape[1])
    return time.process_time() - began, slots


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, 1 thread; {count:,} samples\n")
    print("| task | batches | samples a second | steps | padding | largest batch, slots |\n|---|---|---|---|---|---|")
    ratios = []
    for name, task in tasks(count).items():
        lengths = task.data.lengths(task.column)
        size = task.slots // int(lengths.max())
        both = {
            "random batches": task.data.shuffle(count).batch(size, length_column=task.length_column),
            "brimful": task.ours(task.data),
        }
        trained(task, both["brimful"].take(2))
        seconds: dict[str, list[float]] = {way: [] for way in both}
        slots: dict[str, list[int]] = {}
        for _ in range(RUNS):
            for way, batches in both.items():
                took, slots[way] = trained(task, batches)
                seconds[way].append(took)
        for way, made in slots.items():
            speeds = [count / one for one in seconds[way]]
            print(
                f"| {name} | {way} | {statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}) | {len(made)} | "
                f"{1 - lengths.sum() / sum(made):.1%} | {max(made):,} of {task.slots:,} |"
            )
        ratios.append(
            f"{name} {statistics.median(seconds['random batches']) / statistics.median(seconds['brimful']):.2f}"
        )
    print(f"\nTimes the samples a second of random batches: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
