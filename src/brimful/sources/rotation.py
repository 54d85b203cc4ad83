"""Several shards read at once, a row of each in turn, each one block ahead in the background; where one ends, the next of the
list takes its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

import numpy as np

from brimful.core.counters import Counts, add_counts, apart, count
from brimful.core.threads import Workers, awaited
from brimful.sources.format import Position, RowsAt, no_rows
from brimful.tables.blocks import Block, concat
from brimful.tables.ragged import array_of, offsets_of, runs

T = TypeVar("T")


class Rotation:
    """The open shards in their turn, and those opened ahead.

    What a turn gives depends on the positions alone, not on how much has been read ahead.
    """

    def __init__(
        self,
        open_shard: Callable[[int, Position | None], OpenShard],
        num_shards: int,
        begun: int,
        positions: list[list[int]],
        num_active: int,
        num_standby: Callable[[], int],
    ) -> None:
        self._open, self._num_shards = open_shard, num_shards
        self._num_active, self._num_standby = num_active, num_standby
        self.begun: int = begun
        self._active = [open_shard(number, tuple(at)) for number, *at in positions]
        self._standby: deque[OpenShard] = deque()
        self._open_ahead()
        while len(self._active) < num_active and self._begin(len(self._active)):
            pass

    @property
    def positions(self) -> list[list[int]]:
        """[shard, *position] of each open shard, in turn."""
        return [[shard.number, *shard.at] for shard in self._active]

    def fill(self, rounds: int, size: int) -> int:
        """How many whole rounds can be taken: up to `rounds`, fewer where a shard's part passes `size` bytes.

        0 at the end of all shards. Shards that have ended give their place to the next ones.
        """
        counts: list[int] = []
        while len(counts) < len(self._active):
            turn = len(counts)
            rows = self._active[turn].fill(rounds, size)
            if rows:
                counts.append(rows)
            else:
                self._active.pop(turn).close()
                self._begin(turn)
        return min(counts, default=0)

    def take(self, rounds: int) -> Block:
        """The rows of the next `rounds` rounds."""
        parts = [shard.take(rounds) for shard in self._active]
        block = concat([part.block for part in parts])
        if len(parts) == 1 or not block.num_rows:
            return block
        turns = np.arange(len(parts) * rounds).reshape(len(parts), rounds).T.ravel()
        ends = [part.ends for part in parts if part.ends is not None]
        if not ends:
            return block.take(array_of(turns))
        counts = np.concatenate([np.diff(one, prepend=0) for one in ends])
        return block.take(array_of(runs((np.cumsum(counts) - counts)[turns], offsets_of(counts[turns]))))

    def close(self) -> None:
        for shard in (*self._active, *self._standby):
            shard.close()

    def _begin(self, turn: int) -> bool:
        """Puts the next shard in its place; False where there is none."""
        self._open_ahead()
        if not self._standby:
            return False
        self._active.insert(turn, self._standby.popleft())
        self.begun += 1
        return True

    def _open_ahead(self) -> None:
        """Opens shards until there are as many on standby as there should be, beside those that the turn lacks."""
        count = self._num_active - len(self._active) + self._num_standby()
        while len(self._standby) < count and self.begun + len(self._standby) < self._num_shards:
            self._standby.append(self._open(self.begun + len(self._standby), None))


class Readable(Protocol):
    """The rows of a shard: a `ShardReader`, or a stream from one elsewhere."""

    def read(self) -> RowsAt | None: ...

    def close(self) -> None: ...


class OpenShard:
    """A shard being read: the rows not yet taken, and the next block on its way.

    Args:
        workers: read ahead; None: the rows are made ahead elsewhere, and reading only waits for them.
    """

    number: int
    at: Position

    def __init__(
        self,
        number: int,
        open_reader: Callable[[], Readable],
        at: Position,
        workers: Workers | None,
        url: str,
        timeout: float,
        unit: str,
    ) -> None:
        self.number, self.at = number, at
        self._open, self._workers, self._url, self._timeout, self._unit = open_reader, workers, url, timeout, unit
        self._reader: Readable | None = None
        self._rows = no_rows(at)
        self._end: Exception | bool = False
        self._rest: Counts = {}  # left out after the last row
        self._next = None if workers is None else workers.submit(self._read)

    def fill(self, rows: int, size: int) -> int:
        """Reads on until there are `rows` rows, or fewer of `size` bytes in all; returns how many of them there are.

        At least one where the shard has one; an error is raised only where no row lies before it.
        """
        while (ready := self._up_to(rows, size)) > self._rows.num_rows and self._end is False:
            try:
                more, self._rest = apart(self._arrived)
            except Exception as error:
                self._end = error
                continue
            if more is None:
                self._end = True
                continue
            self._rows = self._rows.then(more)
            self._next = None if self._workers is None else self._workers.submit(self._read)
        if self._end is not False and not self._rows.num_rows:
            if isinstance(self._end, Exception):
                raise self._end
            rest, self._rest = self._rest, {}
            add_counts(rest)
        return min(ready, self._rows.num_rows)

    def take(self, rows: int) -> RowsAt:
        """The next `rows` of the rows that `fill` counted."""
        taken, self._rows = self._rows.split(rows)
        self.at = tuple(taken.positions[-1].tolist())
        count("skipped", int(taken.skipped.sum()))
        return taken

    def close(self) -> None:
        """Closes the file: now, or where a read is under way, by the thread that runs it, as soon as it has ended."""
        if self._next is None:
            self._close()
        else:
            self._next.cancel()
            self._next.add_done_callback(self._close)

    def _close(self, _: object = None) -> None:
        if self._reader is not None:
            self._reader.close()

    def _arrived(self) -> RowsAt | None:
        if self._next is None:
            return self._read()
        return arrived(self._next, self._url, self._timeout, f"{self._unit} {self.at[-1] + 1:,}")

    def _read(self) -> RowsAt | None:
        if self._reader is None:
            self._reader = self._open()
        return self._reader.read()

    def _up_to(self, rows: int, size: int) -> int:
        """Up to `rows` rows, but no more than reach `size` bytes: more than there are, where these do not."""
        return min(rows, int(np.searchsorted(self._rows.positions[:, 0], self.at[0] + size)) + 1)


def arrived(future: Future[T], url: str, timeout: float, place: str) -> T:
    """The result of a read; `place`: from which on, in words.

    Raises:
        TimeoutError: it gave nothing in time; with the shard's name.
    """
    try:
        return awaited(future, timeout)
    except TimeoutError:
        if future.done():  # the store's own
            raise
        raise TimeoutError(
            f"nothing came from shard {url} within {timeout:g} seconds (at {place}); "
            "raise timeout_seconds or check the store"
        ) from None
