"""Values of several rows end to end, of which whoever has the framework makes one tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.arrays.types import ColumnType


@dataclass(frozen=True, eq=False)
class RaggedOnDevice:
    """Rows of values on their way to a device, which become one padded tensor (B, width) there.

    So fewer bytes travel, in the type of the store.

    Shapes: values (n,), or None for a mask of the rows; starts, counts (B,) int64: row i has `values[starts[i] :
    starts[i] + counts[i]]`. Arrays; tensors once they are on their way.

    Args:
        width: of the padded tensor.
        fill: what padding holds.
        left: the padding comes first.
        type: of the padded tensor.
    """

    values: Any
    starts: Any
    counts: Any
    width: int
    fill: float
    left: bool
    type: ColumnType

    def without(self, rows: slice) -> RaggedOnDevice:
        """With nothing but padding in some rows."""
        counts = self.counts.copy()
        counts[rows] = 0
        return replace(self, counts=counts)


@dataclass(frozen=True, eq=False)
class Jagged:
    """Rows that are not padded: row i is `values[offsets[i]:offsets[i + 1]]`, a nested tensor of torch.

    Args:
        least, most: the values of the shortest and of the longest row.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    least: int
    most: int
