"""A user's function on each sample: another sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.blocks.blocks import Block, tried
from brimful.blocks.typed import SampleFunction, SampleResults


@dataclass(frozen=True)
class Map(SampleFunction):
    """`fn(sample)` in place of each sample."""

    def call(self, block: Block) -> SampleResults:
        results = dict(tried(self.verb, self.fn, block, self.seeded, self.on_error))
        return SampleResults([*results.values()], np.array([*results], dtype=np.int64))
