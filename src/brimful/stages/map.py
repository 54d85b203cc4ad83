"""A user's function on each sample: another sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.rows import Block, call
from brimful.typed import SampleFunction


@dataclass(frozen=True)
class Map(SampleFunction):
    """`fn(sample)` in place of each sample."""

    name = "map"

    def results(self, block: Block) -> tuple[Sequence[Any], NDArray[np.int64]]:
        return list(call("map", self.fn, block, self.seeded)), np.arange(block.num_rows)
