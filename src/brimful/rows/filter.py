"""A user's function on each sample: whether to keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from brimful.core.counters import OnError
from brimful.core.stage import runtime
from brimful.plan.errors import name_of
from brimful.tables.blocks import KEY, Block, tried
from brimful.tables.parallel import BlockFunction


@dataclass(frozen=True)
class Filter(BlockFunction):
    """The samples for which `fn(sample)` is true."""

    fn: Callable[..., bool]
    seeded: bool = runtime()
    on_error: OnError = "raise"

    @property
    def called_as(self) -> str:
        return f"filter({name_of(self.fn)})"

    def apply(self, block: Block) -> Block:
        kept = [row for row, keep in tried("filter", self.fn, block, self.seeded, self.on_error, bool) if keep]
        block = block.drop_columns([KEY]) if self.seeded else block
        return block if len(kept) == block.num_rows else block.take(pa.array(kept, pa.int64()))
