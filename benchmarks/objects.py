"""JSON lines with objects, read row by row, beside streaming by Hugging Face's `datasets`; in turn, on one core.

    python benchmarks/objects.py [thousands of rows]

Flat rows have a number, a text and a float. Others have an object of mixed types, or a conversation of two messages. The file
lies in the system's page cache. Each figure is the median of five runs.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import datasets

import brimful as bf

RUNS = 5
WORDS = ("alpha", "beta", "gamma", "delta", "tokens", "water")


def text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=25))


KINDS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "flat": lambda draw, number: {"id": number, "text": text(draw), "score": draw.random()},
    "objects": lambda draw, number: {
        "id": number,
        "text": text(draw),
        "meta": {"url": f"http://x/{number}", "n": draw.choice([1, 2.5, None]), "tags": ["a", "b"]},
    },
    "conversations": lambda draw, number: {
        "messages": [{"role": "user", "content": text(draw)}, {"role": "assistant", "content": text(draw)}]
    },
}


def ours(path: Path) -> Iterable[Any]:
    return bf.from_files(path, n_active_shards=1)


def theirs(path: Path) -> Iterable[Any]:
    return datasets.load_dataset("json", data_files=str(path), split="train", streaming=True)


def seconds(read: Callable[[Path], Iterable[Any]], path: Path, count: int) -> float:
    start = time.perf_counter()
    assert sum(1 for _ in read(path)) == count
    return time.perf_counter() - start


def main(count: int) -> None:
    datasets.disable_progress_bars()
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {count:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        for name, row in KINDS.items():
            path, draw = Path(folder, f"{name}.jsonl"), random.Random(0)
            path.write_text("".join(json.dumps(row(draw, number)) + "\n" for number in range(count)))
            pairs = [(seconds(ours, path, count), seconds(theirs, path, count)) for _ in range(RUNS)]
            one, other = (median(times) * 1e6 / count for times in zip(*pairs))
            print(f"{name:<14} brimful {one:5.2f} us a row, datasets {other:5.2f}: {other / one:.2f} times as fast")


if __name__ == "__main__":
    main(1_000 * int(sys.argv[1] if len(sys.argv) > 1 else 100))
