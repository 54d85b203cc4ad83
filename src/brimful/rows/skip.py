"""All but the first n samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.blocks.blocks import Block
from brimful.core.errors import settle
from brimful.core.stage import END, Stage, State, refuse_streams, running


@dataclass(frozen=True)
class Skip(Stage[Block]):
    """The rows after the first `n`, which are read and left out. State: [upstream's state, rows still to skip]."""

    carries = False

    upstream: Stage[Block]
    n: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "skip")
        settle(self, "n", 0, "samples")

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), self.n]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, left = at
        with running(self.upstream, before) as items:
            for block, after in items:
                rest = block.slice(left)
                left -= block.num_rows - rest.num_rows
                yield rest, END if after == END else [after, left]
