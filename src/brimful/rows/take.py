"""The first n samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.core.errors import settle
from brimful.core.stream import END, Stage, State, refuse_streams, running
from brimful.rows.blocks import Block


@dataclass(frozen=True)
class Take(Stage[Block]):
    """The first `count` rows. State: [upstream's state, rows taken]."""

    upstream: Stage[Block]
    count: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "take")
        settle(self, "count", 0, "samples", "n")

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0] if self.count else END

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, taken = at
        with running(self.upstream, before) as items:
            for block, after in items:
                block = block.slice(0, self.count - taken)
                taken += block.num_rows
                yield block, END if taken == self.count or after == END else [after, taken]
                if taken == self.count:
                    return
