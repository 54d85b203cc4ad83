"""The results of the window at work on disk, a few seconds behind: after a kill its batches need not be run again.

A window is written when it is done, in the order of its samples. Until then the file `_open_window` has the results of its first
batches, a record each, in the order in which they were run:

1a2b3c4d {"window": 3, "numbers": [7, 2], "digest": 99, "bytes": 40}     a checksum of all that follows in the record; which
                                                                         samples of the window they are of, and a digest of these
...                                                                      the results, as a file of the folder has them
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple
from zlib import crc32

from brimful.batching.batch import Batch
from brimful.batching.window import IntArray, PlanningWindow
from brimful.core.atomic import naming
from brimful.inference.results import ResultFiles
from brimful.plan.errors import StateError
from brimful.tables.checksums import checksums

NAME: Final = "_open_window"
SECONDS: Final = 2.0
"""The longest time that results wait to be written. Windows that are done sooner cost nothing here."""


class BatchRecord(NamedTuple):
    """The results of a batch: of the samples of these numbers in their window, which have this digest."""

    numbers: list[int]
    digest: int
    results: list[Any]

    def check(self, batch: Batch) -> None:
        """Refuses a batch whose results they are not.

        Raises:
            StateError: the data are others.
        """
        if self.numbers != batch.numbers.tolist() or self.digest != digest(batch.window, batch.numbers):
            found = digest(batch.window, batch.numbers)
            raise StateError(
                f"the results that are there are of other data: a batch of window {batch.window.number:,} had "
                f"{len(self.numbers):,} samples with the digest {self.digest:08x}, and has {len(batch):,} with {found:08x} here; "
                "name another folder, or go on with those"
            )


class OpenWindow:
    """The results of the first batches of a window, in a file of the folder of results.

    Args:
        files: say where, and how results are written.
        window: how many windows are done.
    Price: a digest of each sample, and results are written a second time, in windows that take more than `SECONDS`.
    """

    def __init__(self, files: ResultFiles, window: int) -> None:
        self._files, self._path, self._window = files, files.folder / NAME, window
        self._waiting: list[tuple[Batch, Sequence[Any]]] = []
        self._written = monotonic()
        self.found: list[BatchRecord] = self._read()
        """What an earlier run has left, for the batches with which the window begins."""

    def add(self, batch: Batch, results: Sequence[Any]) -> None:
        """The results of the next batch."""
        self._waiting.append((batch, results))
        if not batch.last and monotonic() - self._written >= SECONDS:
            self.write()

    def write(self) -> None:
        """Writes what waits. What cannot be written is an error when the window is done."""
        self._written = monotonic()
        records = []
        with suppress(TypeError, ValueError):
            records = [self._record(batch, results) for batch, results in self._waiting]
        self._waiting.clear()
        if records:
            with naming(self._path), self._path.open("ab") as file:
                file.write(b"".join(records))
                file.flush()
                os.fsync(file.fileno())

    def done(self) -> None:
        """The window is written: the next one begins."""
        self._window += 1
        self._waiting.clear()
        self._written = monotonic()
        self._path.unlink(missing_ok=True)

    def _record(self, batch: Batch, results: Sequence[Any]) -> bytes:
        content, _ = self._files.encoded(results, None)
        about = {
            "window": self._window,
            "numbers": batch.numbers.tolist(),
            "digest": digest(batch.window, batch.numbers),
            "bytes": len(content),
        }
        record = json.dumps(about).encode() + b"\n" + content
        return f"{crc32(record):08x} ".encode() + record

    def _read(self) -> list[BatchRecord]:
        """The records of this window, up to the first that is not whole; removes what is behind them."""
        found: list[BatchRecord] = []
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = 0
        with suppress(ValueError, KeyError):  # the rest of a record that was being written
            while whole < len(content):
                line, _, rest = content[whole:].partition(b"\n")
                about = json.loads(line[9:])
                record = line[9:] + b"\n" + rest[: about["bytes"]]
                if f"{crc32(record):08x}".encode() != line[:8] or about["window"] != self._window:
                    break
                found.append(
                    BatchRecord(about["numbers"], about["digest"], self._files.decoded(rest[: about["bytes"]]))
                )
                whole += 9 + len(record)
        if whole < len(content):
            os.truncate(self._path, whole)
        return found


def digest(window: PlanningWindow, numbers: IntArray) -> int:
    """Of all values of some samples of a window."""
    return crc32(repr(checksums(window.take(numbers))).encode())
