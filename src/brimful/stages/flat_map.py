"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.rows import Block, call
from brimful.typed import SampleFunction


@dataclass(frozen=True)
class FlatMap(SampleFunction):
    """The samples of `fn(sample)`, one sample's after another's."""

    name = "flat_map"

    def results(self, block: Block) -> tuple[Sequence[Any], NDArray[np.int64]]:
        given = list(call("flat_map", self.fn, block, self.seeded, list))
        parents = np.repeat(np.arange(block.num_rows), [len(samples) for samples in given])
        return [sample for samples in given for sample in samples], parents
