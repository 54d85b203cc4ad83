"""The contents of a batch in 16 hexadecimal digits: equal for equal batches, however they were made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.core.atomic import write_atomically


def digest(batch: Mapping[str, Any]) -> str:
    """Over each column's name, type, shape and content. Price: about 1 ns a byte."""
    whole = hashlib.blake2b(digest_size=8)
    for name, value in sorted(batch.items()):
        if hasattr(value, "numpy"):
            array = value.numpy()
            whole.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            whole.update(array.tobytes())
        else:
            whole.update(f"{name} {json.dumps(value, default=str)}\n".encode())
    return whole.hexdigest()


class DigestFile:
    """A line a batch: its number from 0, its shape, its digest, between tabs. Close it.

    Where a run goes on after batch `done`, what the file holds of later batches (those between the last saved state and
    the end of that run) is cut off and comes again, so that the file ends up as that of an unbroken run.
    """

    def __init__(self, path: Path, done: int) -> None:
        kept = path.read_text("utf-8").splitlines(keepends=True)[:done] if done and path.exists() else []
        if len(kept) < done:
            raise ValueError(
                f"{path} holds the digests of {len(kept):,} batches, but this run goes on after batch {done:,}; "
                "give the file that the run began with, or none"
            )
        write_atomically(path, "".join(kept).encode())
        self._file = path.open("a", encoding="utf-8")
        self._number = done

    def add(self, batch: Mapping[str, Any]) -> None:
        """Writes the line of the next batch."""
        rows, width = batch["attention_mask"].shape
        self._file.write(f"{self._number}\t{rows}x{width}\t{digest(batch)}\n")
        self._number += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
