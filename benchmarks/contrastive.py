"""Contrastive steps with gradient caching on a CPU: parts by tokens against random parts of equal memory, in texts a second.

    python benchmarks/contrastive.py [TEXTS]

The seconds are of processor time. A step has 1,024 texts, and each of its parts at most 8,192 slots: texts times the longest. A
random part has as many texts as fit if the longest of all is among them. Both are laid out by brimful, train the same model on
the same steps, and take turns.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import brimful as bf

STEP = 1_024
SLOTS = 8_192
LONGEST = 1_024
VOCABULARY = 1_024
RUNS = 2


def texts(count: int) -> bf.IndexedDataset:
    """Two texts a topic, of some 60 tokens, a few of them ten times as long: log-normal."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(np.log(60), 0.9, count)), 4, LONGEST).astype(int)
    return bf.from_sequence(
        [{"topic": number // 2, "input_ids": random.integers(1, VOCABULARY, n)} for number, n in enumerate(lengths)]
    )


class Encoder(nn.Module):
    """Two layers of attention, and the mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        tokens, mask = batch["input_ids"], batch["attention_mask"]
        hidden = self.layers(self.embedding(tokens), src_key_padding_mask=mask == 0) * mask[..., None]
        return nn.functional.normalize(hidden.sum(1) / mask.sum(1, keepdim=True), dim=-1)


def loss_of(vectors: torch.Tensor, topics: torch.Tensor) -> torch.Tensor:
    scores = (vectors @ vectors.T / 0.1).fill_diagonal_(-torch.inf)
    same = (topics[:, None] == topics).fill_diagonal_(False)
    return -scores.log_softmax(-1)[same].mean()


def trained(batches: bf.Batches) -> tuple[float, list[tuple[int, int]], int]:
    """Seconds of processor time for a pass of steps, the shapes of their parts, and the tokens in them."""
    torch.manual_seed(0)
    encoder = Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
    shapes, tokens, parts = [], 0, []
    began = time.process_time()
    for batch in batches:
        parts.append(batch)
        shapes.append(tuple(batch["input_ids"].shape))
        tokens += int(batch["lengths"].sum())
        if not batch["ends_step"]:
            continue
        with torch.no_grad():
            own = [encoder(part) for part in parts]
        everything = torch.cat(own).requires_grad_()
        loss_of(everything, torch.cat([part["topic"] for part in parts])).backward()
        assert everything.grad is not None
        for part, gradient in zip(parts, everything.grad.split([len(one) for one in own]), strict=True):
            encoder(part).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        parts = []
    return time.process_time() - began, shapes, tokens


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_048
    data = texts(count).units("topic", within="step").shuffle(count)
    how = {"samples_per_step": STEP, "micro_batches": "as_needed"}
    both = {
        "random parts": data.batch(bf.FixedSize(SLOTS // LONGEST, sort=False), **how),
        "brimful": data.batch_by_tokens(SLOTS, **how),
    }
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, 1 thread; {count:,} texts\n")
    trained(texts(STEP).batch_by_tokens(SLOTS, **how))
    seconds: dict[str, list[float]] = {way: [] for way in both}
    found: dict[str, tuple[list[tuple[int, int]], int]] = {}
    for _ in range(RUNS):
        for way, batches in both.items():
            took, *found[way] = trained(batches)
            seconds[way].append(took)
    print("| parts | texts a second | parts of all steps | padding | largest part, slots |\n|---|---|---|---|---|")
    for way, (shapes, tokens) in found.items():
        speeds = [count / one for one in seconds[way]]
        slots = [rows * width for rows, width in shapes]
        print(
            f"| {way} | {statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}) | {len(shapes)} | "
            f"{1 - tokens / sum(slots):.1%} | {max(slots):,} of {SLOTS:,} |"
        )
    ratio = statistics.median(seconds["random parts"]) / statistics.median(seconds["brimful"])
    print(f"\nTimes the texts a second of random parts: {ratio:.2f}")


if __name__ == "__main__":
    main()
