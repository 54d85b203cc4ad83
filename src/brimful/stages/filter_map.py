"""A user's function on each sample: another sample, or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, call
from brimful.typed import Results, SampleFunction


@dataclass(frozen=True)
class FilterMap(SampleFunction):
    """`fn(sample)` in place of each sample, where it is not None."""

    name = "filter_map"

    def call(self, block: Block) -> Results:
        given = list(call("filter_map", self.fn, block, self.seeded))
        kept = [row for row, result in enumerate(given) if result is not None]
        return Results([given[row] for row in kept], np.array(kept, dtype=np.int64))
