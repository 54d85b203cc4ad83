"""A user's function on each sample: another sample, or None to leave it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, Blockwise, Sample, call, rebuilt


@dataclass(frozen=True)
class FilterMap(Blockwise):
    """`fn(sample)` in place of each sample, where it is not None."""

    fn: Callable[..., Sample | None]
    seeded: bool

    def apply(self, block: Block) -> Block:
        results = list(call("filter_map", self.fn, block, self.seeded))
        kept = [row for row, result in enumerate(results) if result is not None]
        return rebuilt("filter_map", self.fn, block, [results[row] for row in kept], np.array(kept, dtype=np.int64))
