"""Shuffle: a window whose plan is one permutation."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.batching.buffered import Buffered
from brimful.batching.window import Window
from brimful.blocks.blocks import Block, check_replay
from brimful.core import random
from brimful.core.ahead import Ahead
from brimful.core.errors import settle
from brimful.core.once import once
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, place, running


@dataclass(frozen=True)
class Shuffle(Stage[Block]):
    """The rows of each window of `buffer_size` in a random order, the next window read ahead of use.

    State: [windows' state before the window, rows of it handed on, its crc32]. A resume reads the window again.
    """

    upstream: Stage[Block]
    buffer_size: int
    seed: int

    def __post_init__(self) -> None:
        settle(self, "buffer_size", 1, "sample")
        settle(self, "seed", None)

    def stream(self, number: int, count: int) -> Shuffle:
        return Shuffle(self.upstream.stream(number, count), self.buffer_size, random.key(self.seed, number))

    @once
    def windows(self) -> Stage[Window]:
        return Ahead(Buffered(self.upstream, self.buffer_size), 1, "window")

    def start(self, epoch: int) -> State:
        return [self.windows.start(epoch), 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, done, crc = at
        here = place(self) + 1  # windows are a stage of their own
        with running(self.windows, before) as windows:
            for window, after in windows:
                if done:
                    check_replay(self.upstream, window.crc32, crc, f"window {window.number}")
                order = random.permutation(len(window), random.key(self.seed, here, window.epoch, window.number))
                while done < len(window):
                    block = window.take(order[done : done + BLOCK_ROWS])
                    done += block.num_rows
                    if done < len(window):
                        yield block, [before, done, window.crc32]
                    else:
                        yield block, END if after == END else [after, 0, 0]
                before, done = after, 0
            if done:
                check_replay(self.upstream, 0, crc, "a window that is gone")
