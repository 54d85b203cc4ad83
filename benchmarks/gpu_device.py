"""Training on a device from a token store, side by side: real tokens a second, padding, time waited, copies hidden.

    python benchmarks/gpu_device.py [device] [seconds a variant]

A causal transformer with random weights (bfloat16 on a GPU) on samples of WikiText-103's lengths, at most 512 tokens, 16,384
slots a batch: padded to 512; random batches padded to their longest; a token budget; 8 buckets and
torch.compile(dynamic=False), warmed up; packed rows with FlexAttention. On a CPU model and batches are small, nothing is compiled
and packed rows have a dense mask: its figures say that it runs.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from _training import Layer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import brimful as bf

VOCABULARY = 30_522
MAX_LENGTH = 512


def lengths_of(count: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(0)
    heading = draw.random(count) < 0.26
    text = np.where(heading, draw.lognormal(np.log(8), 0.35, count), draw.lognormal(np.log(111), 0.64, count))
    return np.clip(text.astype(int) + 2, 4, MAX_LENGTH)


def stored(folder: Path, count: int) -> bf.Dataset:
    lengths = lengths_of(count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, offsets[-1], dtype=np.uint16)
    rows = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
    bf.from_sequence(rows).to_store(folder)
    return bf.from_store(folder, shuffle=True, repeat=True)


class Model(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(MAX_LENGTH, width)
        self.layers = nn.ModuleList([Layer(width, width // 64) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, positions: Tensor, labels: Tensor, block_mask: Any = None) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if block_mask is None:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # padding comes last: no query sees it
            if isinstance(block_mask, Tensor):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=block_mask)
            return flex_attention(q, k, v, block_mask=block_mask)  # type: ignore[return-value]

        hidden = self.tokens(ids) + self.places(positions)
        for layer in self.layers:
            hidden = layer(hidden, attend)
        logits = self.head(hidden[:, :-1]).flatten(0, 1).float()
        return F.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def run(name: str, batches: bf.Batches, device: torch.device, seconds: float, compiled: bool = False) -> None:
    """Trains on batches for so long, and prints what came of it."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    model = Model(512, 8).to(device, torch.bfloat16) if on_gpu else Model(64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    forward = torch.compile(model, dynamic=False) if compiled and on_gpu else model

    def step(batch: Any) -> None:
        ids = batch["input_ids"]
        mask = None
        if "segment_ids" in batch:
            positions, labels = batch["position_ids"], batch["labels"]
            mask = bf.attention.flex_block_mask(batch) if on_gpu else bf.attention.document_mask(batch)
        else:
            positions = torch.arange(ids.shape[1], device=device)
            labels = ids.masked_fill(batch["attention_mask"] == 0, -100)
        forward(ids, positions, labels, mask).backward()

    def synchronize() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    began = time.perf_counter()
    if compiled and on_gpu:
        bf.warm_up(step, batches)
    with batches.iter() as it:
        for _ in range(5 if on_gpu else 1):
            step(next(it))
        optimizer.zero_grad()
        synchronize()
        warm = time.perf_counter() - began
        tokens, waited, slots = it.stats.tokens, it.stats.seconds_waited, it.stats.slots
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            step(next(it))
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % 8 == 0:
                synchronize()  # the host runs no further ahead
        synchronize()
        took = time.perf_counter() - began
        tokens, slots = it.stats.tokens - tokens, it.stats.slots - slots
        waited = it.stats.seconds_waited - waited
    print(
        f"{name:34} {tokens / took / 1e3:9.1f} k tokens/s  padding {1 - tokens / slots:5.1%}  waited {waited / took:6.2%}  "
        f"{steps:5} steps, {warm:.1f} s before them"
    )


def hidden(device: torch.device, data: bf.Dataset, budget: int) -> None:
    """How much of the copies of batches is hidden behind a kernel of their length: alone, then beside it."""

    def seconds(prefetch: int, work: float) -> float:
        batches = data.batch_by_tokens(budget, window=10_000).to_device(device, prefetch=prefetch)
        with batches.iter() as it:
            for _ in range(20):
                next(it)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(200):
                next(it)
                torch.cuda._sleep(int(work * 1e9))
            torch.cuda.synchronize()
            return time.perf_counter() - began

    for milliseconds in (0.5, 1, 2, 5):
        work = milliseconds / 1e3
        ahead, in_turn, alone = seconds(2, work), seconds(0, work), seconds(2, 0)
        print(
            f"200 batches, each with a kernel of some {milliseconds} ms: {ahead:.3f} s ahead, {in_turn:.3f} s in turn, batches "
            f"alone {alone:.3f} s: {min(1.0, max(0.0, (in_turn - ahead) / alone)):.0%} of making and copying them hidden"
        )


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu")
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}")
    budget = 16_384 if on_gpu else 1_024
    with tempfile.TemporaryDirectory() as folder:
        data = stored(Path(folder, "store"), 200_000 if on_gpu else 5_000)
        lengths = bf.from_store(Path(folder, "store")).lengths()
        rows = budget // MAX_LENGTH
        budgeted = data.batch_by_tokens(budget, window=10_000)
        static = data.batch(bf.StaticShapes(bf.optimal_buckets(lengths, 8), budget), window=10_000)
        variants = {
            "padded to 512": (data.batch(rows, pad_to_multiple_of=MAX_LENGTH), False),
            "random, padded to the longest": (data.batch(rows), False),
            "token budget": (budgeted, False),
            "8 buckets, compiled": (static, True),
            "packed, FlexAttention, compiled": (data.pack(MAX_LENGTH, rows=rows), True),
        }
        for name, (batches, compiled) in variants.items():
            run(name, batches.to_device(device), device, seconds, compiled)
        if on_gpu:
            hidden(device, data, budget)


if __name__ == "__main__":
    main()
