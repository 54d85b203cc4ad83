"""A user's function on each sample: another sample, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.rows import Block, call
from brimful.typed import SampleFunction


@dataclass(frozen=True)
class FilterMap(SampleFunction):
    """`fn(sample)` in place of each sample, where it is not None."""

    name = "filter_map"

    def results(self, block: Block) -> tuple[Sequence[Any], NDArray[np.int64]]:
        given = list(call("filter_map", self.fn, block, self.seeded))
        kept = [row for row, result in enumerate(given) if result is not None]
        return [given[row] for row in kept], np.array(kept, dtype=np.int64)
