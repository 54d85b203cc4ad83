"""Several shards read at once, a row of each in turn; where one ends, the next of the list takes its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from brimful.ragged import concat
from brimful.rows import Block
from brimful.sources.shard import OpenShard, Position


class Rotation:
    """The open shards in their turn, and those opened ahead.

    What a turn gives depends on the positions alone, not on how much has been read ahead.
    """

    def __init__(
        self,
        open_shard: Callable[[int, Position], OpenShard],
        num_shards: int,
        begun: int,
        positions: list[list[int]],
        num_active: int,
        num_standby: int,
    ) -> None:
        self._open, self._num_shards = open_shard, num_shards
        self._num_active, self._num_standby = num_active, num_standby
        self.begun = begun
        self._active = [open_shard(number, Position(offset, line)) for number, offset, line in positions]
        self._standby: deque[OpenShard] = deque()
        self._top_up()

    @property
    def positions(self) -> list[list[int]]:
        """[shard, byte, line] of each open shard, in turn."""
        return [[shard.number, *shard.at] for shard in self._active]

    def fill(self, rounds: int, size: int) -> int:
        """How many whole rounds can be taken: up to `rounds`, fewer where a shard's part passes `size` bytes.

        0 at the end of all shards. Shards that have ended give their place to the next ones.
        """
        counts: list[int] = []
        while len(counts) < self._num_active:
            turn = len(counts)
            if turn == len(self._active):
                if not self._standby:
                    break
                self._active.append(self._next())
            rows = self._active[turn].fill(rounds, size)
            if rows:
                counts.append(rows)
            else:
                self._active.pop(turn).close()
                if self._standby:
                    self._active.insert(turn, self._next())
        return min(counts, default=0)

    def take(self, rounds: int) -> Block:
        """The rows of the next `rounds` rounds."""
        block = concat([shard.take(rounds) for shard in self._active])
        if len(self._active) == 1:
            return block
        turns = np.arange(block.num_rows).reshape(len(self._active), rounds).T.ravel()
        return block.take(pa.array(turns))

    def close(self) -> None:
        for shard in (*self._active, *self._standby):
            shard.close()

    def _next(self) -> OpenShard:
        self.begun += 1
        shard = self._standby.popleft()
        self._top_up(coming=1)
        return shard

    def _top_up(self, coming: int = 0) -> None:
        wanted = self._num_standby + max(0, self._num_active - len(self._active) - coming)
        while len(self._standby) < max(1, wanted) and self.begun + len(self._standby) < self._num_shards:
            self._standby.append(self._open(self.begun + len(self._standby), Position(0, 0)))
