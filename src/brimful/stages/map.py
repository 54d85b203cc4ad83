"""A user's function on each sample: another sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, Blockwise, Sample, call, rebuilt


@dataclass(frozen=True)
class Map(Blockwise):
    """`fn(sample)` in place of each sample."""

    fn: Callable[..., Sample]
    seeded: bool

    def apply(self, block: Block) -> Block:
        results = list(call("map", self.fn, block, self.seeded))
        return rebuilt("map", self.fn, block, results, np.arange(block.num_rows))
