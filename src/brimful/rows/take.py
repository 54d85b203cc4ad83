"""The first n samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.core.stage import END, Stage, State, refuse_streams, running
from brimful.plan.errors import settle
from brimful.tables.blocks import Block


@dataclass(frozen=True)
class Take(Stage[Block]):
    """The first `n` rows. State: [upstream's state, rows taken]."""

    carries = False

    upstream: Stage[Block]
    n: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "take")
        settle(self, "n", 0, "samples")

    @property
    def endless(self) -> bool:
        return False

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0] if self.n else END

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, taken = at
        with running(self.upstream, before) as items:
            for block, after in items:
                block = block.slice(0, self.n - taken)
                taken += block.num_rows
                yield block, END if taken == self.n or after == END else [after, taken]
                if taken == self.n:
                    return
