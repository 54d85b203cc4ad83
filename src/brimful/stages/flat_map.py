"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from brimful.errors import OnError
from brimful.rows import Block, Blockwise, Sample, rebuilt, tried


@dataclass(frozen=True)
class FlatMap(Blockwise):
    """The samples of `fn(sample)`, one sample's after another's."""

    fn: Callable[..., Iterable[Sample]]
    seeded: bool
    on_error: OnError = "raise"

    def apply(self, block: Block) -> Block:
        results = dict(tried("flat_map", self.fn, block, self.seeded, self.on_error, list))
        counts = np.array([len(result) for result in results.values()], dtype=np.int64)
        parents = np.repeat(np.array([*results], dtype=np.int64), counts)
        return rebuilt("flat_map", self.fn, block, [*chain.from_iterable(results.values())], parents)
