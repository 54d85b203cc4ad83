"""Rows to windows, streamed: holds the rows of a window and a half."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.batching.window import Window, Windowed, auto_rows
from brimful.blocks.blocks import Block, check_replay, visible
from brimful.blocks.ragged import EMPTY, concat, fingerprint, token_counts
from brimful.blocks.unmasked import unmasked
from brimful.core.errors import ORIGIN
from brimful.core.fruitless import Waiting
from brimful.core.once import once
from brimful.core.repeat import endless
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, running
from brimful.plan.window import rest_rows, window_ends

AUTO_BYTES: Final = 256 << 20
"""The most that the rows of one window may take where its size is chosen for the user."""


@dataclass(frozen=True)
class Buffered(Windowed):
    """Windows of `size` rows, in arrival order; a last one shorter than half joins the one before it.

    A size of 0 is resolved once, from the first rows of the epoch in which the stream began, to what `policy` needs for
    1 % padding. State: [epoch, rows' state before the block in which the window begins, rows of it that came before,
    their crc32 with the rest of that block, number of the window, size]. A resume reads the rows of the window again.
    """

    upstream: Stage[Block]

    @once
    def over_epochs(self) -> Stage[Window]:
        return replace(self, upstream=endless(self.upstream))

    def start(self, epoch: int) -> State:
        return [epoch, self.upstream.start(epoch), 0, 0, 0, self.size]

    def items(self, at: State) -> Generator[tuple[Window, State], None, None]:
        epoch, before, skip, crc, number, size = at
        held: deque[_Held] = deque()
        rows = 0
        ended = False
        waiting = Waiting()
        with running(self.upstream, before) as items:
            while True:
                while not ended and rows < (size + rest_rows(size) if size else BLOCK_ROWS):
                    block, after = next(items, (EMPTY, END))
                    ended = after == END
                    waiting.got(block.num_rows)
                    if skip:
                        check_replay(self.upstream, fingerprint(block), crc, f"window {number}")
                    if block.num_rows > skip:
                        held.append(_Held(before, skip, crc, block.slice(skip)))
                        rows += block.num_rows - skip
                    before, skip, crc = after, 0, 0
                if not rows:
                    return
                if not size:
                    block = concat(one.rest for one in held).slice(0, BLOCK_ROWS)
                    size = self._resolve(unmasked(block, self.unmasked))
                    continue
                count = window_ends(rows, size)
                window = self._window(epoch, number, unmasked(concat(_pop(held, count)), self.unmasked))
                rows -= count
                number += 1
                if rows:
                    yield window, [epoch, *held[0][:3], number, size]
                else:
                    yield window, END
                    return

    def _window(self, epoch: int, number: int, block: Block) -> Window:
        rows = np.arange(block.num_rows)
        return Window(epoch, number, self._lengths(block), rows, lambda own: (block, own), fingerprint(block))

    def _lengths(self, block: Block) -> NDArray[np.int64]:
        return token_counts(block, self.length_columns, self.lengths_required)

    def _resolve(self, block: Block) -> int:
        assert self.policy is not None
        wanted = auto_rows(self.policy, self._lengths(block), self.batches)
        size = visible(block).nbytes + 8 * block.num_rows * (
            ORIGIN in block.schema.names
        )  # however long files' names are
        affordable = AUTO_BYTES * block.num_rows // max(1, int(size))
        return max(1, min(wanted, int(affordable)))


class _Held(NamedTuple):
    """A block of which some rows are held: the state before it, its rows that are gone, its crc32 if some are."""

    before: State
    gone: int
    crc: int
    rest: Block


def _pop(held: deque[_Held], count: int) -> list[Block]:
    """Takes `count` rows off the front."""
    taken = []
    while count:
        before, gone, crc, rest = held.popleft()
        piece = rest.slice(0, count)
        taken.append(piece)
        count -= piece.num_rows
        if piece.num_rows < rest.num_rows:
            crc = crc if gone else fingerprint(rest)
            held.appendleft(_Held(before, gone + piece.num_rows, crc, rest.slice(piece.num_rows)))
    return taken
