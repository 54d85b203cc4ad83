"""Most row stages take a block and give a block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from brimful.core.stage import Stage, State
from brimful.tables.blocks import Block, visible
from brimful.tables.resize import coalesced


@dataclass(frozen=True)
class Blockwise(Stage[Block]):
    """Abstract: takes a block and gives a block, and passes the state on. Blocks without rows pass through as they are."""

    by_row = True

    upstream: Stage[Block]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        with closing(coalesced(self.upstream, at)) as items:
            for block, after in items:
                yield (self.apply(block) if block.num_rows else block), after

    def known_columns(self) -> pa.Schema | None:
        below = self.upstream.known_columns()
        if below is None:
            return None
        return visible(self.apply(pa.RecordBatch.from_pylist([], below))).schema.remove_metadata()

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The result for one block that has rows."""
