"""Several shards read at once, a row of each in turn; where one ends, the next of the list takes its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import array_of, concat, offsets_of, runs
from brimful.sources.reader import Position
from brimful.sources.shard import OpenShard


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
        self.begun = begun
        self._active = [open_shard(number, tuple(at)) for number, *at in positions]
        self._standby: deque[OpenShard] = deque()
        self._open_ahead(num_active - len(positions) + num_standby())
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
        self._open_ahead(max(1, len(self._standby)))
        if not self._standby:
            return False
        self._active.insert(turn, self._standby.popleft())
        self.begun += 1
        self._open_ahead(self._num_active - len(self._active) + self._num_standby())
        return True

    def _open_ahead(self, count: int) -> None:
        """Opens shards until there are `count` on standby."""
        while len(self._standby) < count and self.begun + len(self._standby) < self._num_shards:
            self._standby.append(self._open(self.begun + len(self._standby), None))
