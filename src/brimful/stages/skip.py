"""All but the first n samples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from brimful.errors import require
from brimful.rows import Block
from brimful.stream import END, Stage, State, running, share


@dataclass(frozen=True)
class Skip(Stage[Block]):
    """The rows after the first `count`, which are read and left out. State: [upstream's state, rows still to skip]."""

    upstream: Stage[Block]
    count: int

    def __post_init__(self) -> None:
        require("n", self.count, 0, "samples")

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), int(self.count)]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, left = at
        with running(self.upstream, before) as items:
            for block, after in items:
                rest = block.slice(left)
                left -= block.num_rows - rest.num_rows
                yield rest, END if after == END else [after, left]

    def dealt(self, stream: int, num_streams: int) -> Skip:
        """The rows that are this stream's where a row of each is skipped in turn."""
        return replace(self, count=share(self.count, stream, num_streams))
