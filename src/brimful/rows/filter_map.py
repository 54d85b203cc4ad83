"""A user's function on each sample: another sample, or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.blocks.blocks import Block, tried
from brimful.blocks.typed import SampleFunction, SampleResults


@dataclass(frozen=True)
class FilterMap(SampleFunction):
    """`fn(sample)` in place of each sample, where it is not None."""

    def call(self, block: Block) -> SampleResults:
        results = tried(self.verb, self.fn, block, self.seeded, self.on_error)
        kept = {row: result for row, result in results if result is not None}
        return SampleResults([*kept.values()], np.array([*kept], dtype=np.int64))
