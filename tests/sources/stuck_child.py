"""What test_stuck interrupts: reads shards, or a store, says that rows come, and what ends the loop."""

from __future__ import annotations

import json
import sys
from typing import Any

import brimful as bf


def run(url: str, options: str, timeout: str) -> None:
    how: dict[str, Any] = {"storage_options": json.loads(options) or None, "timeout_seconds": float(timeout)}
    try:
        if url.endswith("/store"):  # of which little is read at once
            it: Any = bf.from_store(url, **how).batch(8).prefetch(2).iter()
        else:
            it = bf.from_files(url, **how).iter()
            if "/begun." in url:
                next(it)
        print("reading", flush=True)
        assert sys.stdin.readline() == "go on\n"
        for _ in it:
            pass
    except (KeyboardInterrupt, TimeoutError) as error:
        print(type(error).__name__, flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
