"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, call
from brimful.typed import Results, SampleFunction


@dataclass(frozen=True)
class FlatMap(SampleFunction):
    """The samples of `fn(sample)`, one sample's after another's."""

    name = "flat_map"

    def call(self, block: Block) -> Results:
        given = list(call("flat_map", self.fn, block, self.seeded, list))
        parents = np.repeat(np.arange(block.num_rows), [len(samples) for samples in given])
        return Results([sample for samples in given for sample in samples], parents)
