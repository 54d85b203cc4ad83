"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from brimful.rows import Block, Blockwise, Sample, call, rebuilt


@dataclass(frozen=True)
class FlatMap(Blockwise):
    """The samples of `fn(sample)`, one sample's after another's."""

    fn: Callable[..., Iterable[Sample]]
    seeded: bool

    def apply(self, block: Block) -> Block:
        results = list(call("flat_map", self.fn, block, self.seeded, list))
        parents = np.repeat(np.arange(block.num_rows), [len(result) for result in results])
        return rebuilt("flat_map", self.fn, block, [sample for result in results for sample in result], parents)
