"""Long blocks cut, as a stage that makes many rows of one may yield them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.blocks.blocks import Block
from brimful.blocks.resize import resized, resized_start
from brimful.core.stage import Stage, State


@dataclass(frozen=True)
class Rebatch(Stage[Block]):
    """Cuts long blocks (a stage that makes many rows of one may yield them); see `resized`."""

    verb = ""
    by_row = True

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return resized_start(self.upstream, epoch)

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        yield from resized(self.upstream, at)
