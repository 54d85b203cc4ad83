"""One writer at a time: whoever holds the lock says who it is, and that it still makes progress."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brimful.errors import logger

LOCK: Final = "writer.lock"
POLL_SECONDS: Final = 0.05
BEAT_SECONDS: Final = 1.0
SAID_AFTER_SECONDS: Final = 3.0
"""A shorter wait for another writer is not worth a line."""


@contextmanager
def locked(folder: Path, timeout_seconds: float) -> Iterator[Callable[[], None]]:
    """Holds the lock of a folder; gives what the holder calls whenever it has made progress.

    The operating system gives the lock back when its holder ends, even by kill -9.

    Raises:
        TimeoutError: the holder has made no progress for `timeout_seconds`; it is named.
    """
    path = folder / LOCK
    descriptor = _acquired(path, timeout_seconds)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode())
        beaten = 0.0

        def beat() -> None:
            nonlocal beaten
            if time.monotonic() - beaten > BEAT_SECONDS:
                beaten = time.monotonic()
                os.utime(descriptor)

        yield beat
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquired(path: Path, timeout_seconds: float) -> int:
    """A descriptor that holds the lock of the file that stands under `path`."""
    seen, since = -1, time.monotonic()
    begun, said = since, False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _stands(descriptor, path):
                return descriptor
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                raise
            beat = os.fstat(descriptor).st_mtime_ns
            if beat != seen:
                seen, since = beat, time.monotonic()
            if not said and time.monotonic() - begun > SAID_AFTER_SECONDS:
                said = True
                logger.warning("waiting for %s, which writes %s", _owner(descriptor), path.parent)
            if time.monotonic() - since > timeout_seconds:
                owner = _owner(descriptor)
                os.close(descriptor)
                raise TimeoutError(
                    f"{path.parent} is being written by {owner}, which has made no progress for {timeout_seconds:g} s; "
                    "end it, or wait longer: timeout_seconds="
                ) from None
        os.close(descriptor)
        time.sleep(POLL_SECONDS)


def _stands(descriptor: int, path: Path) -> bool:
    """Whether the file that was locked is still the one of that name: its last holder took it away."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {owner['process']} on {owner['host']}"
    except (ValueError, KeyError):
        return "another process"
