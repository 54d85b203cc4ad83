"""What test_crash kills: streams batches, writes a digest of each to a log, and saves its place every few of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brimful as bf

SAVE_EVERY = 3


def letters(texts: list[str]) -> list[list[int]]:
    """A tokenizer: the bytes of a text."""
    return [list(text.encode()) for text in texts]


def batches(folder: Path) -> bf.Batches:
    return (
        bf.from_files(str(folder / "*.jsonl*"), shuffle_shards=True, n_active_shards=3, repeat=True)
        .tokenize(letters)
        .shuffle(300)
        .batch_by_tokens(400, window=100)
        .prefetch(2)
    )


def digests(folder: Path, state: dict[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """A digest of each batch (ids, mask and record numbers), and the iterator that gave it."""
    with batches(folder).iter(state) as it:
        for batch in it:
            content = [batch[name].tolist() for name in ("input_ids", "attention_mask", "id")]
            yield hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16], it


def run(folder: str, seconds_per_batch: float, until: int | None) -> None:
    """Goes on from what was saved last, if anything; without end where `until` is None."""
    place, log = Path(folder) / "place.json", Path(folder) / "log.txt"
    saved = json.loads(place.read_text()) if place.exists() else {"count": 0, "state": None}
    lines = log.read_text().splitlines(keepends=True)[: saved["count"]] if log.exists() else []
    log.write_text("".join(lines))
    with open(log, "a") as out:
        stream = digests(Path(folder), saved["state"])
        for count, (digest, it) in enumerate(
            itertools.islice(stream, until and until - saved["count"]), saved["count"] + 1
        ):
            out.write(digest + "\n")
            if count % SAVE_EVERY == 0:
                out.flush()
                os.fsync(out.fileno())
                place.with_suffix(".part").write_text(json.dumps({"count": count, "state": it.state_dict()}))
                os.replace(place.with_suffix(".part"), place)
            time.sleep(seconds_per_batch)
