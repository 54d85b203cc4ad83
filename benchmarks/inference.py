"""A small encoder-decoder model with random weights generates for 2,000 texts, on one core.

    python benchmarks/inference.py [texts]

In batches of one number of samples as they come, and planned over windows; then in a process that is killed twice, whose output
must be that of the unbroken run. Last, what a guard adds to a step that fits.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

import brimful as bf
from brimful.memory import oom_safe_generate

WINDOW, SAMPLES, TOKENS = 250, 32, 4_096
STEPS = 2_000


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        "".join(draw.choices("abcdefgh ", k=min(400, max(4, int(draw.lognormvariate(4.2, 0.7)))))) for _ in range(count)
    ]


def letters(rows: list[str]) -> list[list[int]]:
    return [[2 + ord(letter) % 58 for letter in row] for row in rows]


def answers(count: int, policy: bf.Policy, output: str | None) -> list[dict[str, str]]:
    torch.manual_seed(0)
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = T5ForConditionalGeneration(T5Config(vocab_size=60, d_model=64, d_kv=16, d_ff=128, num_layers=2, **ids))
    model = model.double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    generate = oom_safe_generate(model, max_new_tokens=8, do_sample=False)

    def answer(batch: dict[str, Any]) -> list[dict[str, str]]:
        found = generate(batch).tolist()
        return [
            {"text": text, "found": " ".join(map(str, row))} for text, row in zip(batch["text"], found, strict=True)
        ]

    data = bf.from_sequence(texts(count)).tokenize(letters)
    if output is None:
        return list(bf.map_batches_in_order(answer, data, policy, window=WINDOW))
    return list(bf.map_batches_in_order(answer, data, policy, output=output, window=WINDOW, version="1"))


def killed(count: int, folder: Path, files: int) -> None:
    """Runs in a process that is killed when so many windows are written, and a little later."""
    child = subprocess.Popen([sys.executable, __file__, str(count), str(folder)])
    while len(list(folder.glob("*.jsonl"))) < files:
        assert child.poll() is None, "it ended by itself"
        time.sleep(0.005)
    time.sleep(0.2)
    child.send_signal(signal.SIGKILL)
    child.wait()


def guarded() -> float:
    """Microseconds that a guard adds to a step of nothing."""
    batch = {name: torch.zeros(32, 128, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}
    guard = bf.memory.oom_guard(
        lambda batch, scale: None, parameters=[torch.zeros(1, requires_grad=True)] * 200, weigh="tokens"
    )
    guard(batch)
    began = time.perf_counter()
    for _ in range(STEPS):
        guard(batch)
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    budget = bf.TokenBudget(TOKENS)
    if len(sys.argv) > 2:
        answers(count, budget, sys.argv[2])
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores; torch {torch.__version__}; {count:,} texts")
    runs: dict[str, tuple[bf.Policy, list[dict[str, str]]]] = {}
    for name, policy in (("as they come", bf.FixedSize(SAMPLES, sort=False)), ("planned", budget)):
        began = time.perf_counter()
        runs[name] = policy, answers(count, policy, None)
        print(f"{name:14}{count / (time.perf_counter() - began):8,.0f} texts/s")
    expected = runs["planned"][1]
    assert expected == runs["as they come"][1], "other batches, other results"
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "out")
        for files in (2, 5):
            killed(count, folder, files)
        found = answers(count, budget, str(folder))
        lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
        assert found == lines == expected, "what was killed has other results"
        print(
            f"killed twice   {len(found):,} results, those of the unbroken run; {len({row['found'] for row in found}):,} distinct"
        )
    print(f"a guard        {guarded():8.0f} us a step, of 200 parameters")


if __name__ == "__main__":
    main()
