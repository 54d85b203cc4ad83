"""What most row stages are: a block in, a block out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from brimful.blocks.blocks import Block
from brimful.blocks.resize import gathered
from brimful.core.stage import Stage, State


@dataclass(frozen=True)
class Blockwise(Stage[Block]):
    """Abstract: a block in, a block out, the state passed on. Blocks without rows are passed on as they are."""

    by_row = True

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        with closing(gathered(self.upstream, at)) as items:
            for block, after in items:
                yield (self.apply(block) if block.num_rows else block), after

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The block that one non-empty block becomes."""
