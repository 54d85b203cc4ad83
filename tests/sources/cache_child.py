"""What test_cache kills: reads a file again and again through a cache that is too small for it, and compares each byte."""

from __future__ import annotations

import hashlib
import sys

import fsspec
import numpy as np

from brimful.sources.cache import DiskCache
from brimful.sources.objects import Object, ObjectStore, Spans

FILE_BYTES = 12 << 20
LIMIT_BYTES = 8 << 20
SPAN_BYTES = 300_000


def content(name: str) -> bytes:
    """Random bytes of a file, which its name tells."""
    return np.random.default_rng(list(hashlib.sha256(name.encode()).digest()[:8])).bytes(FILE_BYTES)


def run(folder: str, url: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = {name: content(name) for name in ("a", "b")}
    objects = [Object(f"{url}/{name}", f"{url}/{name}") for name in known]
    store = ObjectStore(fsspec.filesystem("http", skip_instance_cache=True), 60, DiskCache(folder, LIMIT_BYTES))
    while True:
        files = rng.integers(0, len(known), 4)
        firsts = rng.integers(0, FILE_BYTES - SPAN_BYTES, 4)
        lasts = firsts + rng.integers(1, SPAN_BYTES, 4)
        parts = store.read(objects, Spans(files, firsts, lasts))
        for file, first, last, part in zip(files.tolist(), firsts.tolist(), lasts.tolist(), parts, strict=True):
            if part != list(known.values())[file][first:last]:
                print(f"wrong bytes {first} to {last} of file {file}", flush=True)
        print("right", flush=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
