"""Everything that needs a device, in at most 8 minutes, into one JSON file: `make gpu`.

    python benchmarks/gpu.py [--device cuda] [--output build/gpu.json] [--seconds 12] [--only PART ...]

Where a machine has a torch of its own and nothing can be installed: PYTHONPATH=src python benchmarks/gpu.py.

1. The tests in tests/gpu.
2. Training from a token store, side by side: real tokens a second, padding, time waited. A causal transformer with random
   weights (bfloat16 on a GPU) on samples of WikiText-103's lengths, at most 512 tokens, 16,384 slots a batch: padded to 512;
   random batches padded to their longest; a token budget; 8 buckets; packed rows with torch's varlen attention. With
   torch.compile(dynamic=False), warmed up: padded to 512; packed rows with FlexAttention; 8 buckets. AsyncLoader around a
   DataLoader.
3. How much of the making and copying of batches kernels hide.
4. The memory model: fitted to eight probes of that model, against six other shapes; and the largest batch that it allows.

Each part stands for itself: what fails, or finds no time, is said in its place. On a CPU model and batches are small, nothing is
compiled and packed rows have a dense mask: its figures say that it runs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from _training import Layer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.data import DataLoader

import brimful as bf

ROOT = Path(__file__).parents[1]
VOCABULARY = 30_522
MAX_LENGTH = 512
SECONDS = 8 * 60
RESERVE = 45
"""Seconds that a part may take beyond what it was given: a compilation, a step that runs."""


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

    def forward(self, ids: Tensor, positions: Tensor, labels: Tensor, mask: Any = None) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if mask is None:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # padding comes last: no query sees it
            if isinstance(mask, Tensor):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            if isinstance(mask, dict):
                return ended(q, k, v, mask)
            return flex_attention(q, k, v, block_mask=mask)  # type: ignore[return-value]

        hidden = self.tokens(ids) + self.places(positions)
        for layer in self.layers:
            hidden = layer(hidden, attend)
        logits = self.head(hidden[:, :-1]).flatten(0, 1).float()
        return F.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def ended(q: Tensor, k: Tensor, v: Tensor, bounds: dict[str, Any]) -> Tensor:
    """Attention over samples end to end: q, k, v (R, heads, L, dim)."""
    from torch.nn.attention.varlen import varlen_attn

    flat = (one.transpose(1, 2).flatten(0, 1) for one in (q, k, v))
    named = inspect.signature(varlen_attn).parameters
    causal: Any = {"window_size": (-1, 0)} if "window_size" in named else {"is_causal": True}  # the second: torch 2.10
    out: Any = varlen_attn(*flat, *bounds.values(), **causal)
    return out.view(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


class Bench:
    """A device, the sizes that suit it, and what was found on it."""

    def __init__(self, device: torch.device, seconds: float, only: Sequence[str] = ()) -> None:
        self.device, self.seconds, self.only = device, seconds, only
        self.on_gpu = device.type == "cuda"
        self.budget = 16_384 if self.on_gpu else 1_024
        self.until = time.monotonic() + SECONDS
        name = torch.cuda.get_device_name(device) if self.on_gpu else platform.processor() or platform.machine()
        self.found: dict[str, Any] = {
            "device": name,
            "is_gpu": self.on_gpu,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "brimful": bf.__version__,
        }
        if not self.on_gpu:
            print("no GPU: small sizes on the CPU, to show that all of it runs")

    def part(self, name: str, run: Callable[[], Any]) -> None:
        """Runs a part, unless there is no time left for it, and keeps its figures, or what went wrong."""
        if self.only and name not in self.only:
            return
        left = self.until - time.monotonic() - RESERVE
        began = time.perf_counter()
        try:
            found = run() if left > 0 else {"skipped": f"no time left of {SECONDS} s"}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        self.found[name] = found
        print(f"{name} ({time.perf_counter() - began:.0f} s): {json.dumps(found)}", flush=True)

    def synchronize(self) -> None:
        """Waits for all that was computed, as whoever reads a loss does, not for copies beside it."""
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Model(512, 8).to(self.device, torch.bfloat16) if self.on_gpu else Model(64, 1)

    def step_of(self, attention: str = "", compiled: bool = False) -> Callable[[Any], None]:
        """Forward, backward, and the optimizer's step."""
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.on_gpu)
        if compiled:
            torch._dynamo.reset()  # the limit of compilations counts those of all models of this class
        forward = torch.compile(model, dynamic=False) if compiled and self.on_gpu else model

        def step(batch: Any) -> None:
            ids = batch["input_ids"]
            mask: Any = None
            if "segment_ids" in batch:
                positions, labels = batch["position_ids"], batch["labels"]
                if not self.on_gpu:
                    mask = bf.attention.document_mask(batch)
                elif attention == "varlen":
                    mask = bf.attention.varlen(batch)
                else:
                    mask = bf.attention.flex_block_mask(batch)
            else:
                positions = torch.arange(ids.shape[1], device=self.device)
                labels = ids.masked_fill(batch["attention_mask"] == 0, -100)
            forward(ids, positions, labels, mask).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def with_cudnn(self, batches: bf.Batches) -> dict[str, Any]:
        """With the attention that torch prefers on some devices, which plans anew for each shape of a batch."""
        torch.backends.cuda.enable_cudnn_sdp(True)
        try:
            return self.train(batches)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(False)

    def train(self, batches: bf.Batches, attention: str = "", compiled: bool = False) -> dict[str, Any]:
        """Trains on batches for so long; tokens a second, and the share of the time that the loop waited for them."""
        step = self.step_of(attention, compiled)
        batches = batches.to_device(self.device)
        began = time.perf_counter()
        if compiled and self.on_gpu:
            bf.warm_up(step, batches)
        with batches.iter() as it:
            for _ in range(5 if self.on_gpu else 1):
                step(next(it))
            self.synchronize()
            warm = time.perf_counter() - began
            tokens, waited, slots = it.stats.tokens, it.stats.seconds_waited, it.stats.slots
            took, steps = self._loop(it, step)
            tokens, slots = it.stats.tokens - tokens, it.stats.slots - slots
            waited = it.stats.seconds_waited - waited
        return {
            "tokens_per_second": round(tokens / took),
            "padding": round(1 - tokens / slots, 4),
            "waited": round(waited / took, 4),
            "steps": steps,
            "seconds_before": round(warm, 1),
        }

    def _loop(self, batches: Iterable[Any], step: Callable[[Any], None], waits: int = 8) -> tuple[float, int]:
        """Steps for so long, and how many they were; the host waits for its device after each `waits` of them."""
        began, steps = time.perf_counter(), 0
        for batch in batches:
            step(batch)
            steps += 1
            if steps % waits == 0:
                self.synchronize()
            if time.perf_counter() - began > self.seconds:
                break
        self.synchronize()
        return time.perf_counter() - began, steps

    def async_loader(self, data: bf.Dataset) -> dict[str, Any]:
        """A DataLoader's batches, padded to buckets and sent ahead, beside the same sent in the loop: seconds a step.

        The loop waits for each step to end, as one that logs its loss.
        """
        rows = _first(data, 2_000)

        def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
            ids = [torch.as_tensor(one["input_ids"]).long() for one in samples]
            padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
            lengths = torch.tensor([len(one) for one in ids])
            return {"input_ids": padded, "attention_mask": (torch.arange(padded.shape[1]) < lengths[:, None]).long()}

        def loader() -> Iterable[Any]:
            while True:
                data: Any = rows
                yield from DataLoader(data, self.budget // MAX_LENGTH, shuffle=True, collate_fn=collate, drop_last=True)

        buckets = {"max_length": MAX_LENGTH, "num_buckets": 8}
        found, step = {}, self.step_of()
        for name, prefetch in (("", 0), ("ahead", 2), ("in turn", 0)):  # the first has seen all shapes
            batches = bf.AsyncLoader(loader(), self.device, prefetch=prefetch, **buckets)
            took, steps = self._loop(batches, step, waits=1)
            found[name] = round(took / steps, 5)
        return {name: took for name, took in found.items() if name}

    def hidden(self, data: bf.Dataset) -> dict[str, Any]:
        """How much of the making and copying of batches is hidden behind kernels that run beside it, in milliseconds a step.

        The loop waits for each kernel to end. Of two works that need not wait for each other the shorter one can be hidden:
        `hidden` is the share of it that was.
        """
        if not self.on_gpu:
            return {"skipped": "there are no copies without a GPU"}
        large = [{"features": torch.rand(32, 512, 1_024)}] * 240  # 64 MB
        sources: dict[str, Callable[[int], Any]] = {
            "16,384 tokens of a store": lambda prefetch: data.batch_by_tokens(self.budget, window=10_000).to_device(
                self.device, prefetch=prefetch
            ),
            "64 MB of a list": lambda prefetch: bf.AsyncLoader(large, self.device, prefetch=prefetch),
        }
        cycles = _cycles_a_millisecond()

        def milliseconds(batches: Iterator[Any], work: float) -> float:
            for _ in range(30):
                next(batches)
            self.synchronize()
            began = time.perf_counter()
            for _ in range(200):
                next(batches)
                if work:
                    torch.cuda._sleep(int(work * cycles))
                self.synchronize()
            return (time.perf_counter() - began) / 200 * 1e3

        def together(name: str, prefetch: int, work: float) -> float:
            batches = iter(sources[name](prefetch))
            try:
                return milliseconds(batches, work)
            finally:
                batches.close()

        found: dict[str, Any] = {}
        for name in sources:
            alone = together(name, 2, 0)
            found[name] = {"batches_alone": round(alone, 3)}
            for share in (0.5, 1.0, 2.0):
                work = alone * share
                kernels = milliseconds(repeat(None), work)
                ahead, in_turn = together(name, 2, work), together(name, 0, work)
                found[name][f"kernels of {share} as long"] = {
                    "kernels_alone": round(kernels, 3),
                    "ahead": round(ahead, 3),
                    "in_turn": round(in_turn, 3),
                    "hidden": round((alone + kernels - ahead) / min(alone, kernels), 3),
                }
        return found

    def memory(self) -> dict[str, Any]:
        """The model of memory after eight probes: its error at six other shapes, and what its largest batch really takes."""
        step = self.step_of()

        def make_batch(rows: int, length: Any) -> dict[str, Tensor]:
            ids = torch.randint(0, VOCABULARY, (rows, length), device=self.device)
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        scale = 1 if self.on_gpu else 16
        shapes = [
            (b // scale or 1, n)
            for b, n in ((1, 64), (128, 64), (32, 128), (96, 128), (16, 256), (64, 256), (8, 512), (32, 512))
        ]
        others = [(b // scale or 1, n) for b, n in ((64, 96), (24, 200), (80, 160), (12, 384), (40, 320), (24, 512))]
        peaks = bf.memory.probe(step, make_batch, shapes, str(self.device))
        model = bf.memory.MemoryModel.fit(peaks.shapes, peaks.peak_bytes)
        truth = bf.memory.probe(step, make_batch, others, str(self.device))
        told = [float(model.predict(int(b), int(n))) for b, n in truth.shapes]
        errors = [abs(one / real - 1) for one, real in zip(told, truth.peak_bytes.tolist(), strict=True)]
        limit = float(max(peaks.peak_bytes)) * 0.8
        rows = int(model.largest_batch(256, limit))
        (real,) = bf.memory.probe(step, make_batch, [(rows, 256)], str(self.device)).peak_bytes.tolist()
        return {
            "probes": len(shapes),
            "greatest_error": round(max(errors), 4),
            "limit_bytes": round(limit),
            "largest_batch": rows,
            "its_share_of_the_limit": round(real / limit, 4),
        }

    def tests(self) -> dict[str, Any]:
        """How the tests of a device end; without one they are skipped, and say so."""
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-rfE", "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        if done.returncode:
            print(done.stdout, done.stderr, flush=True)
        return {"exit_code": done.returncode, "outcome": lines[-1], "failed": failed}


def _cycles_a_millisecond() -> float:
    """What `torch.cuda._sleep` takes for a millisecond: it counts cycles of a clock that differs from device to device."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(50_000_000)  # until the clock is up
    begun.record()
    torch.cuda._sleep(50_000_000)
    ended.record()
    torch.cuda.synchronize()
    return 50_000_000 / begun.elapsed_time(ended)


def _first(data: bf.Dataset, count: int) -> list[dict[str, Any]]:
    with data.iter() as it:
        return [next(it) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Tests and figures of a device.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu.json")
    parser.add_argument("--seconds", type=float, help="of each variant; the default is 12, and 2 on a CPU")
    parser.add_argument("--only", nargs="+", metavar="PART", default=(), help="these parts, by their names in the file")
    given = parser.parse_args()
    device = torch.device(given.device)
    bench = Bench(device, given.seconds or (12.0 if device.type == "cuda" else 2.0), given.only)
    if bench.on_gpu:  # it plans anew for each shape: what that costs is a part of its own
        torch.backends.cuda.enable_cudnn_sdp(False)
    bench.part("tests", bench.tests)
    with tempfile.TemporaryDirectory() as folder:
        data = stored(Path(folder, "store"), 200_000 if bench.on_gpu else 5_000)
        lengths = bf.from_store(Path(folder, "store")).lengths()
        rows = bench.budget // MAX_LENGTH
        static = bf.StaticShapes(bf.optimal_buckets(lengths, 8), bench.budget)
        packed = data.pack(MAX_LENGTH, rows=rows)
        bench.part("padded to 512", lambda: bench.train(data.batch(rows, pad_to_multiple_of=MAX_LENGTH)))
        bench.part("random, padded to the longest", lambda: bench.train(data.batch(rows)))
        bench.part("token budget", lambda: bench.train(data.batch_by_tokens(bench.budget, window=10_000)))
        if bench.on_gpu:
            ragged = data.batch_by_tokens(bench.budget, window=10_000)
            bench.part("token budget, attention of cuDNN", lambda: bench.with_cudnn(ragged))
        bench.part("8 buckets", lambda: bench.train(data.batch(static, window=10_000)))
        bench.part("packed, varlen", lambda: bench.train(packed, "varlen"))
        bench.part("copies", lambda: bench.hidden(data))
        bench.part("AsyncLoader, seconds a step", lambda: bench.async_loader(data))
        bench.part("memory model", bench.memory)
        whole = bf.StaticShapes([MAX_LENGTH], bench.budget)
        bench.part("padded to 512, compiled", lambda: bench.train(data.batch(whole, window=10_000), compiled=True))
        bench.part("packed, FlexAttention, compiled", lambda: bench.train(packed, "flex", compiled=True))
        bench.part("8 buckets, compiled", lambda: bench.train(data.batch(static, window=10_000), compiled=True))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(bench.found, indent=1) + "\n")
    print(f"written to {given.output}")


if __name__ == "__main__":
    main()
