"""One data set after another."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from brimful.rows import Block
from brimful.stream import END, Stage, State, running


@dataclass(frozen=True)
class Concat(Stage[Block]):
    """All rows of the first, then all of the second, and so on. State: [epoch, which one, its state]."""

    upstreams: tuple[Stage[Block], ...]

    def start(self, epoch: int) -> State:
        return [epoch, 0, self.upstreams[0].start(epoch)]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, number, before = at
        for which in range(number, len(self.upstreams)):
            if which > number:
                before = self.upstreams[which].start(epoch)
            with running(self.upstreams[which], before) as items:
                for block, after in items:
                    if after != END:
                        yield block, [epoch, which, after]
                    elif which + 1 < len(self.upstreams):
                        yield block, [epoch, which + 1, self.upstreams[which + 1].start(epoch)]
                    else:
                        yield block, END
