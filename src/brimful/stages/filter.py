"""A user's function on each sample: whether to keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from brimful.rows import KEY, Block, Blockwise, call


@dataclass(frozen=True)
class Filter(Blockwise):
    """The samples for which `fn(sample)` is true."""

    fn: Callable[..., bool]
    seeded: bool

    def apply(self, block: Block) -> Block:
        kept = list(call("filter", self.fn, block, self.seeded, bool))
        block = block.drop_columns([KEY]) if self.seeded else block
        return block if all(kept) else block.filter(pa.array(kept, pa.bool_()))
