"""One data set after another."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from brimful.core.stage import END, Stage, State, running
from brimful.tables.blocks import Block
from brimful.tables.schema import as_text, from_text
from brimful.tables.several import conformed, union_of
from brimful.tables.typed import Typed


@dataclass(frozen=True)
class Concat(Typed):
    """All rows of the first, then all of the second, and so on, in the columns of all of them.

    State: [epoch, which one, its state, the types as text].
    """

    verb = "concat_datasets"
    flat: ClassVar[bool] = True
    fills_nulls: ClassVar[bool] = True

    upstreams: tuple[Stage[Block], ...]

    def start(self, epoch: int) -> State:
        return [epoch, 0, self.upstreams[0].start(epoch), ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, number, before, text = at
        schema = from_text(text) if text else self.schema
        text = text or as_text(schema)
        for which in range(number, len(self.upstreams)):
            if which > number:
                before = self.upstreams[which].start(epoch)
            with running(self.upstreams[which], before) as items:
                for block, after in items:
                    out = conformed(block, schema, self.verb, which) if block.num_rows else block
                    if after != END:
                        yield out, [epoch, which, after, text]
                    elif which + 1 < len(self.upstreams):
                        yield out, [epoch, which + 1, self.upstreams[which + 1].start(epoch), text]
                    else:
                        yield out, END

    def first_types(self) -> pa.Schema:
        return union_of(self.upstreams, "concat_datasets")
