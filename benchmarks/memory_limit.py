"""Batches that grow by themselves under a hard limit: small models on the CPU, peaks and limit by the kernel.

    python benchmarks/memory_limit.py [texts]

Each line is a process of its own (RLIMIT_DATA): what it has, what the first batch of the longest texts takes beside that, 5 %,
and 12 MiB for the interpreter. An allocation beyond fails, and the process with it. The peak of a batch is the most that was
resident (VmHWM, begun anew before each batch) beside what was before the first one. "fixed" makes all batches as large as the
first one; "default" is `build_dynamic_batch_dataloader` with `peak_bytes=` and nothing else. Texts/s: of processor time.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import brimful as bf

VOCABULARY, WIDTH, BATCH, LONGEST = 8_000, 16, 8, 134
SPARE, INTERPRETER = 1.05, 12 << 20
# Memory goes back to the kernel as it is freed, or the most that was resident would be that of all batches before.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
# Nor may libraries hold more for each new shape, or for each thread.
LIBRARIES = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(found.split()[1]) * 1024


def peak_beside(held: int) -> float:
    """The most that was resident since it was last asked, beside `held` bytes."""
    most = status("VmHWM") - held
    Path("/proc/self/clear_refs").write_text("5")
    return float(max(most, 1))


def make_model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "encoder":
        heads: dict[str, Any] = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 4 * WIDTH}
        made: Any = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, **heads))
    else:
        sizes: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
        made = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes))
    return made.eval()


def make_texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [
        " ".join(map(str, random.integers(0, VOCABULARY - 1, size))) for size in random.integers(4, LONGEST + 1, count)
    ]


def make_tokenizer() -> Any:
    words = Tokenizer(
        models.WordLevel({str(n): n for n in range(VOCABULARY - 1)} | {"[PAD]": VOCABULARY - 1}, unk_token="0")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped: Any = PreTrainedTokenizerFast
    return wrapped(tokenizer_object=words, pad_token="[PAD]")


def batches(way: str, texts: list[str], tokenizer: Any, peak: Callable[[], float]) -> Iterable[Any]:
    if way == "default":
        return bf.build_dynamic_batch_dataloader(texts, tokenizer, BATCH, LONGEST, num_workers=0, peak_bytes=peak)
    texts.sort(key=lambda text: -text.count(" "))
    starts = range(0, len(texts), BATCH)
    return (tokenizer(texts[start : start + BATCH], padding=True, return_tensors="pt") for start in starts)


def child(kind: str, way: str, count: int) -> None:
    torch.set_num_threads(1)
    model, tokenizer, texts = make_model(kind), make_tokenizer(), make_texts(count)

    @torch.no_grad()
    def step(batch: Any) -> None:
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])

    longest = {name: torch.ones(BATCH, LONGEST, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    for _ in range(3):
        step(longest)  # workspaces of libraries stay
    held = 0
    made = batches(way, texts, tokenizer, lambda: peak_beside(held))
    next(iter(made))  # the threads and buffers of the tokenizer stay
    bf.memory.MemoryModel.fit([(n, 9 * n) for n in range(1, 40)], range(1, 40))  # numpy's too
    held = status("VmRSS")
    peak_beside(held)
    step(longest)
    first = peak_beside(held)
    limit = status("VmData") + int(SPARE * first) + INTERPRETER
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sizes, peaks, began = [], [], time.process_time()
    for batch in batches(way, texts, tokenizer, lambda: peak_beside(held)) if way == "fixed" else made:
        if way == "fixed":
            peak_beside(held)
        step(batch)
        sizes.append(len(batch["input_ids"]))
        peaks.append(status("VmHWM") - held)
    seconds = time.process_time() - began
    assert sum(sizes) == count
    print(
        f"{kind:<10}{way:<9}{len(sizes):>8,}{np.mean(sizes) / BATCH:>8.2f}{first / 2**20:>12.1f}{max(peaks) / first:>9.2f}"
        f"{np.minimum(np.array(peaks) / first, 1).mean():>8.1%}{count / seconds:>10,.0f}"
    )


def main() -> None:
    if len(sys.argv) == 4:
        child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    count = sys.argv[1] if len(sys.argv) > 1 else "32000"
    print(
        f"{platform.machine()}, one thread; {int(count):,} texts of 4 to {LONGEST} tokens; the first batch has {BATCH}"
    )
    print(f"{'':<19}{'batches':>8}{'size x':>8}{'first, MiB':>12}{'highest':>9}{'used':>8}{'texts/s':>10}")
    for kind in ("encoder", "decoder"):
        for way in ("fixed", "default"):
            run = subprocess.run(
                [sys.executable, __file__, kind, way, count],
                env={**os.environ, **ALLOCATOR, **LIBRARIES},
                capture_output=True,
                text=True,
            )
            print(
                run.stdout if run.returncode == 0 else f"{kind:<10}{way:<9} killed: {run.stderr[-300:]}",
                end="",
                flush=True,
            )


if __name__ == "__main__":
    main()
