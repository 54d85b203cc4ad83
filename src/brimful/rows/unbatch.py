"""Blocks to samples: one dict a row."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from brimful.core.repeat import awaited
from brimful.core.stage import END, Stage, State
from brimful.tables.blocks import Block, samples
from brimful.tables.checksums import checksums, in_state
from brimful.tables.resize import resumed


@dataclass(frozen=True)
class Unbatch(Stage[Any]):
    """The rows of each block as dicts, or the user's own objects that they stand for.

    State: [upstream's state before the block, rows of it handed on, if there are any its rows and their checksums].
    """

    verb = ""

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, []]

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        before, done, compared, saved = at
        originals = self.upstream.originals
        with awaited(self.upstream, before) as items:
            for block, after in resumed(self.upstream, items, done, compared, saved):
                if compared != block.num_rows > 1:
                    compared, saved = block.num_rows, in_state(checksums(block))
                rest = block.slice(done)
                rows = samples(rest) if originals is None else originals.samples(rest)
                for row, sample in enumerate(rows, start=done + 1):
                    if row < block.num_rows:
                        yield sample, [before, row, compared, saved]
                    else:
                        yield sample, END if after == END else [after, 0, 0, []]
                before, done, compared = after, 0, 0
