"""A user's function on each sample: another sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brimful.errors import OnError
from brimful.rows import Block, Blockwise, Sample, rebuilt, tried


@dataclass(frozen=True)
class Map(Blockwise):
    """`fn(sample)` in place of each sample."""

    fn: Callable[..., Sample]
    seeded: bool
    on_error: OnError = "raise"

    def apply(self, block: Block) -> Block:
        results = dict(tried("map", self.fn, block, self.seeded, self.on_error))
        return rebuilt("map", self.fn, block, [*results.values()], np.array([*results], dtype=np.int64))
