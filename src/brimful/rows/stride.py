"""Every n-th sample."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from brimful.core.repeat import awaited, passed, passing
from brimful.core.stage import END, Stage, State, refuse_streams
from brimful.plan.errors import integer
from brimful.tables.blocks import Block
from brimful.tables.ragged import array_of


@dataclass(frozen=True)
class Stride(Stage[Block]):
    """Row i where i mod `interval` == `offset`.

    State: [upstream's state, i of the next row mod `interval`]. After blocks of which no row is kept, it is kept from those who
    count the epochs that repeating data have come to (`passing`): these go by, and are no empty ones.
    """

    carries = False

    upstream: Stage[Block]
    interval: int
    offset: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "stride")
        interval, offset = checked(self.interval, self.offset)
        object.__setattr__(self, "interval", interval)
        object.__setattr__(self, "offset", offset)

    def start(self, epoch: int) -> State:
        return passing([self.upstream.start(epoch), 0])

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, phase = passed(at)
        with awaited(self.upstream, before) as items:
            for block, after in items:
                rows = np.arange((self.offset - phase) % self.interval, block.num_rows, self.interval)
                phase = (phase + block.num_rows) % self.interval
                state = END if after == END else [after, phase]
                yield block.take(array_of(rows)) if block.num_rows else block, state if len(rows) else passing(state)


def checked(interval: int, offset: int) -> tuple[int, int]:
    """The settings of `stride`, as ints of Python's.

    Raises:
        ValueError: no sample has this offset.
    """
    interval, offset = integer("interval", interval, 1), integer("offset", offset, None)
    if not 0 <= offset < interval:
        raise ValueError(f"offset must be at least 0 and below interval={interval:,} (got {offset:,})")
    return interval, offset
