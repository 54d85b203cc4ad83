"""Files that are whole whenever they are there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, *, alone: bool = False) -> None:
    """Replaces a file at once: after a crash it holds the old content or the new, never a part.

    Args:
        alone: no other process writes it meanwhile, as in a folder that is locked: what a crash left of a part is then written
            over.
    Price: two fsyncs.
    """
    part = part_of(path) if alone else path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        settle(part, path)
    finally:
        part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """The name of a file until it is complete."""
    return path.with_name(f"{path.name}.part")


def settle(part: Path, path: Path) -> None:
    """Gives a file that is complete its name, for good: what this has returned from outlives the machine."""
    _sync(part)
    part.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
