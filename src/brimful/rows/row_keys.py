"""A key for each row, from which a user's function draws its randomness."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.core.stage import END, Stage, State, place, running
from brimful.plan import random
from brimful.plan.errors import settle
from brimful.tables.blocks import KEY, Block
from brimful.tables.ragged import array_of, with_column


@dataclass(frozen=True)
class RowKeys(Stage[Block]):
    """Adds a hidden column of random 64-bit keys. State: [epoch, upstream's state, the next row's number]."""

    verb = ""
    itemwise = True
    draws = True

    upstream: Stage[Block]
    seed: int

    def __post_init__(self) -> None:
        settle(self, "seed", None)

    @property
    def streamed_by(self) -> str:
        return self.upstream.streamed_by or "seed"

    def stream(self, number: int, count: int) -> RowKeys:
        return RowKeys(self.upstream.stream(number, count), random.key(self.seed, number))

    def start(self, epoch: int) -> State:
        return [epoch, self.upstream.start(epoch), 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, before, number = at
        key = random.key(self.seed, place(self), epoch)
        with running(self.upstream, before) as items:
            for block, after in items:
                if block.num_rows:
                    keys = random.hashes(key, block.num_rows, first=number)
                    block = with_column(block, KEY, array_of(keys))
                number += block.num_rows
                yield block, END if after == END else [epoch, after, number]
