"""Files that are whole whenever they are there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, content: bytes, *, alone: bool = False) -> None:
    """Replaces a file at once: after a crash it holds the old content or the new, never a part.

    Args:
        alone: no other process writes it meanwhile, as in a folder that is locked: what a crash left of a part is then written
            over.
    Raises:
        OSError: it cannot be written, as on a full disk; names the file. Nothing is left of the new one.
    Price: two fsyncs.
    """
    part = part_of(path) if alone else path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            part.write_bytes(content)
            commit_file(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within, an error of the system that names no file names this one; the error of a full disk says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        if error.errno in _FULL:
            error.add_note("The disk is full. Free space on it, and run the same call again")
        raise


def part_of(path: Path) -> Path:
    """The name of a file until it is complete."""
    return path.with_name(f"{path.name}.part")


def commit_file(part: Path, path: Path) -> None:
    """Gives a file that is complete its name, for good: what this has returned from outlives the machine."""
    sync(part)
    part.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """What a file, or a folder, has by now outlives the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
