"""Long blocks cut, as a stage that makes many rows of one may yield them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.core.stream import BLOCK_ROWS, END, Stage, State, running
from brimful.rows.blocks import Block, check_replay, cut
from brimful.rows.ragged import (
    fingerprint,
)


@dataclass(frozen=True)
class Rebatch(Stage[Block]):
    """Cuts long blocks (what a stage that makes many rows of one may yield) at 4,096 rows.

    State: [upstream's state before the block, rows of it handed on, its crc32].
    """

    verb = ""
    by_row = True

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, done, saved = at
        with running(self.upstream, before) as items:
            for block, after in items:
                crc = fingerprint(block) if done or block.num_rows > BLOCK_ROWS else 0
                if done:
                    check_replay(self.upstream, crc, saved, f"{done:,} rows into a block")
                for piece in cut(block.slice(done)) if block.num_rows else (block,):
                    done += piece.num_rows
                    ended = done >= block.num_rows
                    yield piece, (END if after == END else [after, 0, 0]) if ended else [before, done, crc]
                before, done = after, 0
            if done:
                check_replay(self.upstream, 0, saved, "a block that is gone")
