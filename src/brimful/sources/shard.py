"""One open shard: its rows, read one block ahead in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import numpy as np

from brimful.sources.reader import PlacedRows, Position

T = TypeVar("T")


class Calls(Protocol):
    """What calls functions ahead of use."""

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]: ...


class Readable(Protocol):
    """What gives the rows of a shard: a `Reader`, or who asks one elsewhere."""

    def read(self) -> PlacedRows | None: ...

    def close(self) -> None: ...


class OpenShard:
    """A shard being read: the rows not yet taken, and the next block on its way."""

    def __init__(
        self,
        number: int,
        open_reader: Callable[[], Readable],
        at: Position,
        workers: Calls,
        url: str,
        timeout: float,
        unit: str,
    ) -> None:
        self.number, self.at = number, at
        self._open, self._workers, self._url, self._timeout, self._unit = open_reader, workers, url, timeout, unit
        self._reader: Readable | None = None
        self._rows: PlacedRows | None = None
        self._ended = False
        self._error: Exception | None = None
        self._next: Future[PlacedRows | None] = workers.submit(self._read)

    def fill(self, rows: int, size: int) -> int:
        """Reads on until there are `rows` rows, or fewer of `size` bytes in all; returns how many of them there are.

        At least one where the shard has one; an error is raised only where no row lies before it.
        """
        while not self._ended and not self._error and not self._enough(rows, size):
            try:
                more = arrived(self._next, self._url, self._timeout, f"{self._unit} {self.at[-1] + 1:,}")
            except Exception as error:
                self._error = error
                break
            if more is None:
                self._ended = True
            else:
                self._rows = more if self._rows is None else self._rows.then(more)
                self._next = self._workers.submit(self._read)
        if self._rows is None or not self._rows.num_rows:
            if self._error is not None:
                raise self._error
            return 0
        return self._count(self._rows, rows, size)

    def take(self, rows: int) -> PlacedRows:
        """The next `rows` of the rows that `fill` counted."""
        assert self._rows is not None
        taken, self._rows = self._rows.split(rows)
        self.at = tuple(taken.positions[-1].tolist())
        return taken

    def close(self) -> None:
        """Closes the file: now, or where a read is under way, by the thread that runs it, as soon as it has ended."""
        self._next.cancel()
        self._next.add_done_callback(self._close)

    def _read(self) -> PlacedRows | None:
        if self._reader is None:
            self._reader = self._open()
        return self._reader.read()

    def _close(self, _: Future[PlacedRows | None]) -> None:
        if self._reader is not None:
            self._reader.close()

    def _enough(self, rows: int, size: int) -> bool:
        if self._rows is None:
            return False
        passed = self._rows.positions[:, 0]
        return len(passed) >= rows or (len(passed) > 0 and int(passed[-1]) - self.at[0] >= size)

    def _count(self, held: PlacedRows, rows: int, size: int) -> int:
        passed = held.positions[:, 0]
        by_size = int(np.searchsorted(passed, self.at[0] + size)) + 1
        return min(rows, by_size, len(passed))


def arrived(future: Future[T], url: str, timeout: float, place: str) -> T:
    """What a read gave; `place`: from which on, in words.

    Raises:
        TimeoutError: it gave nothing in time; with the shard's name.
    """
    try:
        return future.result(timeout)
    except TimeoutError:
        if future.done():  # the store's own
            raise
        raise TimeoutError(
            f"nothing came from shard {url} within {timeout:g} seconds (at {place}); "
            "raise timeout_seconds or check the store"
        ) from None
