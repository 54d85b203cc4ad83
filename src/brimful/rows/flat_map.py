"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from brimful.blocks.blocks import Block, tried
from brimful.blocks.typed import SampleFunction, SampleResults


@dataclass(frozen=True)
class FlatMap(SampleFunction):
    """The samples of `fn(sample)`, one sample's after another's."""

    makes_long_blocks = True

    def call(self, block: Block) -> SampleResults:
        results = dict(tried(self.verb, self.fn, block, self.seeded, self.on_error, list))
        counts = np.array([len(result) for result in results.values()], dtype=np.int64)
        parents = np.repeat(np.array([*results], dtype=np.int64), counts)
        return SampleResults([*chain.from_iterable(results.values())], parents)
