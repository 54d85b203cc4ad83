"""One writer at a time: others wait as long as it makes progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from filelock import FileLock, Timeout

from brimful.core.errors import logger
from brimful.store.journal import seen_progress, writer_of

LOCK: Final = "writer.lock"
POLL_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 1.0
"""Between two looks at how the writer gets on."""
SAID_AFTER_SECONDS: Final = 3.0
"""A shorter wait for another writer is not worth a line."""


@contextmanager
def one_writer(folder: Path, timeout_seconds: float) -> Iterator[None]:
    """Holds the lock of a folder. The operating system gives it back when its holder ends, even by kill -9.

    Raises:
        TimeoutError: the holder, which is named, has made no progress for `timeout_seconds`.
    """
    lock = FileLock(folder / LOCK)
    began = since = monotonic()
    seen, said = seen_progress(folder), False
    while True:
        try:
            lock.acquire(timeout=min(LOOK_SECONDS, timeout_seconds), poll_interval=POLL_SECONDS)
            break
        except Timeout:
            now = seen_progress(folder)
            if now != seen:
                seen, since = now, monotonic()
            if monotonic() - since >= timeout_seconds:
                raise TimeoutError(
                    f"{folder} is being written by {writer_of(folder)}, which has made no progress for {timeout_seconds:g} s; "
                    "end it, or wait longer: timeout_seconds="
                ) from None
            if not said and monotonic() - began >= SAID_AFTER_SECONDS:
                said = True
                logger.warning("waiting for %s, which writes %s", writer_of(folder), folder)
    try:
        yield
    finally:
        lock.release()
