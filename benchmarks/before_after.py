"""README's loop over a DataLoader with a collator, and the same loop over brimful: JSONL to padded batches, tokenized on the fly.

    python benchmarks/before_after.py [runs]

The text is WikiText-2 from ../shared/data (or $BRIMFUL_TEST_DATA), tokenized as for bert-base-cased. Each run is one epoch in
a fresh process, and the loops take turns. Then each loop goes on behind the middle of its epoch, as after a kill. The DataLoader
makes the first half again and throws it away, as Trainer and Accelerate do (`skip_first_batches`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RUNS = 3
MAX_LENGTH = 512
ROWS, TOKENS = 32, 16_384
LOOPS = ("DataLoader", "DataLoader, 2 workers", "brimful")
DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def dataloader(files: list[str], tokenizer: Any, num_workers: int) -> Any:
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    def collate(rows: list[dict[str, Any]]) -> Any:
        texts = [row["text"] for row in rows]
        return tokenizer(texts, truncation=True, max_length=MAX_LENGTH, padding=True, return_tensors="pt")

    rows = load_dataset("json", data_files=files, split="train")
    return DataLoader(rows, batch_size=ROWS, shuffle=True, collate_fn=collate, num_workers=num_workers)


def run(loop: str) -> dict[str, Any]:
    import torch
    from transformers import PreTrainedTokenizerFast

    import brimful as bf

    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = [str(path) for path in sorted((DATA / "wikitext-2").glob("*.jsonl.gz"))]
    vocabulary = str(DATA / "tokenizers" / "bert-base-cased.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=vocabulary, pad_token="[PAD]", model_max_length=MAX_LENGTH)
    if loop == "brimful":
        tokens = bf.from_files(files, shuffle_shards=True).tokenize(tokenizer, max_length=MAX_LENGTH)
        batches: Any = tokens.batch_by_tokens(TOKENS)
    else:
        batches = dataloader(files, tokenizer, 2 if "workers" in loop else 0)
        next(iter(batches))  # the cache of load_dataset is written
    masks, states = [], []
    began, busy = time.perf_counter(), sum(os.times()[:4])
    with batches.iter() if loop == "brimful" else _Plain(batches) as it:
        for batch in it:
            masks.append((int(batch["attention_mask"].sum()), batch["attention_mask"].numel()))
            states.append(it.state_dict() if loop == "brimful" else None)
    seconds, busy = time.perf_counter() - began, sum(os.times()[:4]) - busy
    real, slots = (sum(column) for column in zip(*masks))
    half = len(masks) // 2
    began = time.perf_counter()
    with batches.iter(states[half]) if loop == "brimful" else _Plain(batches) as it:
        for _ in range(1 if loop == "brimful" else half + 2):
            next(it)
    return {
        "speed": real / seconds / 1e6,
        "busy": busy / real * 1e9,
        "padding": 1 - real / slots,
        "batches": len(masks),
        "resumed": time.perf_counter() - began,
        "state": len(json.dumps(states[half])),
    }


class _Plain:
    """An iterator of a DataLoader, to be left in the middle."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __enter__(self) -> Any:
        return iter(self._loader)

    def __exit__(self, *error: object) -> None:
        pass


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run(sys.argv[2])))
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    seen: dict[str, list[dict[str, Any]]] = {loop: [] for loop in LOOPS}
    for _ in range(runs):
        for loop, figures in seen.items():
            command = [sys.executable, __file__, "--run", loop]
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "HF_DATASETS_CACHE": cache, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
            figures.append(json.loads(done.stdout))
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {runs} runs in turn, each a fresh process"
    )
    for loop, figures in seen.items():
        keys = ("speed", "busy", "padding", "resumed")
        speed, busy, padding, resumed = (median(one[key] for one in figures) for key in keys)
        speeds = [round(one["speed"], 2) for one in figures]
        print(
            f"{loop:22} {speed:5.2f} M tokens/s {speeds}, {busy:,.0f} ns of processors a token, {padding:.1%} padding, "
            f"{figures[0]['batches']} batches; "
            f"first new batch after a kill {resumed:.2f} s, state {figures[0]['state']} bytes"
        )


if __name__ == "__main__":
    main()
