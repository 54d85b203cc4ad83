"""What the trainers of these tests read: token n is of sample n."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import brimful as bf

STREAMS = 4
LENGTHS = [3, 9, 1, 5, 7, 2, 8, 4, 6, 3, 5, 1, 9, 2, 2, 7, 4, 1, 8, 3, 6, 5, 2, 9, 4, 1, 7, 3, 8, 2]


def write_shards(folder: Path) -> Path:
    """Streams of very unequal length, and the same rows in memory."""
    rows = rows_of(len(LENGTHS))
    for number, share in enumerate((rows[:15], rows[15:20], rows[20:21], rows[21:])):
        (folder / f"shard-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in share))
    return folder


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": [number + 1] * length} for number, length in enumerate(LENGTHS[:count])]


def batches(kind: str, folder: Path) -> bf.Batches:
    if kind == "indexed":
        return bf.from_sequence(rows_of(len(LENGTHS)), shuffle=True).batch_by_tokens(20, window=16).shard()
    data = bf.from_files(str(folder / "shard-*.jsonl"), streams=STREAMS).shuffle(8)
    return data.batch_by_tokens(20, window=8).shard(timeout_seconds=30)


def one(batch: Any) -> list[int]:
    """The samples of a batch; none of a filler."""
    return [] if batch.get("is_filler") else sorted(set(batch["input_ids"].flatten().tolist()) - {0})
