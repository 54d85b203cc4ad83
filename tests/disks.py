"""A disk that is full: a small one of its own, as root may mount it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CONTINUE = "The disk is full. Free space on it, and run the same call again"


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A folder on a disk of this size; skips the test where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {getattr(error, 'stderr', None) or error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
