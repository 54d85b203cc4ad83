"""A user's function on each sample: another sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, call
from brimful.typed import Results, SampleFunction


@dataclass(frozen=True)
class Map(SampleFunction):
    """`fn(sample)` in place of each sample."""

    name = "map"

    def call(self, block: Block) -> Results:
        return Results(list(call("map", self.fn, block, self.seeded)), np.arange(block.num_rows))
