"""What test_s3 kills: reads shards of S3, and writes how far it came after each thousand samples."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import brimful as bf
from brimful.sources import bytes as reading

SAVE_EVERY = 1_000


def samples(options: dict[str, Any]) -> bf.Dataset:
    return bf.from_files("s3://bucket/rows-*.jsonl", n_active_shards=2, storage_options=options, timeout_seconds=15)


def run(folder: Path, options: dict[str, Any]) -> None:
    reading.BLOCK_BYTES = 1 << 16  # type: ignore[misc]
    it = samples(options).iter()
    taken: list[int] = []
    for sample in it:
        taken.append(sample["id"])
        if len(taken) % SAVE_EVERY == 0:
            saved = folder / "saved.part"
            saved.write_text(json.dumps({"taken": taken, "state": it.state_dict()}))
            os.replace(saved, folder / "saved.json")


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(sys.argv[2]))
