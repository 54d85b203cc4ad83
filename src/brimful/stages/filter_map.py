"""A user's function on each sample: another sample, or None to leave it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brimful.errors import OnError
from brimful.rows import Block, Blockwise, Sample, rebuilt, tried


@dataclass(frozen=True)
class FilterMap(Blockwise):
    """`fn(sample)` in place of each sample, where it is not None."""

    fn: Callable[..., Sample | None]
    seeded: bool
    on_error: OnError = "raise"

    def apply(self, block: Block) -> Block:
        results = tried("filter_map", self.fn, block, self.seeded, self.on_error)
        kept = {row: result for row, result in results if result is not None}
        return rebuilt("filter_map", self.fn, block, [*kept.values()], np.array([*kept], dtype=np.int64))
