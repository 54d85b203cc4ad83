"""The number of each sample in the stream, as a column."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.core.stage import END, Stage, State, refuse_streams, running
from brimful.tables.blocks import Block
from brimful.tables.ragged import array_of, with_column


@dataclass(frozen=True)
class Enumerate(Stage[Block]):
    """Adds a count from 0. State: [upstream's state, rows counted]."""

    carries = False

    upstream: Stage[Block]
    count_column: str

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "enumerate")

    def known_columns(self) -> pa.Schema | None:
        below = self.upstream.known_columns()
        if below is None:
            return None
        return pa.schema([*(one for one in below if one.name != self.count_column), (self.count_column, pa.int64())])

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, number = at
        with running(self.upstream, before) as items:
            for block, after in items:
                numbers = np.arange(number, number + block.num_rows, dtype=np.int64)
                number += block.num_rows
                if block.num_rows:
                    block = with_column(block, self.count_column, array_of(numbers))
                yield block, END if after == END else [after, number]
