"""The rows of a stage in any portions."""

from __future__ import annotations

from brimful.blocks.blocks import Block, check_replay
from brimful.blocks.ragged import EMPTY, fingerprint
from brimful.blocks.resize import gathered
from brimful.core.stage import END, Stage, State


class Cursor:
    """The rows of a stage in any portions. State: [the stage's state before the block at hand, rows of it taken, its crc32]."""

    def __init__(self, stage: Stage[Block], before: State, taken: int, crc: int) -> None:
        self._stage = stage
        self._before, self._taken, self._crc = before, taken, crc
        self._items = None if before == END else gathered(stage, before)
        self._rest = EMPTY  # of the block at hand
        self._after = before

    @property
    def state(self) -> list[State]:
        return [self._before, self._taken, self._crc]

    @property
    def rest(self) -> Block:
        """The rows at hand."""
        return self._rest

    def fill(self) -> int:
        """How many rows are at hand, after reading on where there were none; 0 at the end."""
        while not self._rest.num_rows and self._items is not None:
            item = next(self._items, None)
            block, self._after = item or (EMPTY, END)
            if self._taken:
                check_replay(self._stage, fingerprint(block), self._crc, f"{self._taken:,} rows into a block")
            if item is None:
                self.close()
                break
            self._rest = block.slice(self._taken)
            if not self._rest.num_rows:
                self._before = self._after
        return int(self._rest.num_rows)

    def take(self, rows: int) -> Block:
        """The next `rows` of the rows at hand."""
        if 0 < rows < self._rest.num_rows and not self._taken:
            self._crc = fingerprint(self._rest)
        piece, self._rest = self._rest.slice(0, rows), self._rest.slice(rows)
        self._taken += rows
        if rows and not self._rest.num_rows:
            self._before, self._taken, self._crc = self._after, 0, 0
        return piece

    def close(self) -> None:
        if self._items is not None:
            self._items.close()
            self._items = None
