"""All but the first n samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.core.repeat import awaited, passed, passing
from brimful.core.stage import END, Stage, State, refuse_streams
from brimful.plan.errors import settle
from brimful.tables.blocks import Block


@dataclass(frozen=True)
class Skip(Stage[Block]):
    """The rows after the first `n`, which are read and left out.

    State: [upstream's state, rows still to skip]. Until the first row comes out, it is kept from those who count the epochs that
    repeating data have come to (`passing`): these go by, and are no empty ones.
    """

    carries = False

    upstream: Stage[Block]
    n: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "skip")
        settle(self, "n", 0, "samples")

    def start(self, epoch: int) -> State:
        return passing([self.upstream.start(epoch), self.n])

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, left = passed(at)
        with awaited(self.upstream, before) as items:
            for block, after in items:
                rest = block.slice(left)
                left -= block.num_rows - rest.num_rows
                state = END if after == END else [after, left]
                yield rest, passing(state) if left else state
