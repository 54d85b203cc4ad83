"""Which shapes to probe: few, and as different as they come."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.core.errors import integer


def spread_shapes(shapes: ArrayLike, *, count: int = 8) -> NDArray[np.int64]:
    """Numbers of the shapes that tell most about all: the largest, then each time the one farthest from those chosen.

    Args:
        shapes: (n, 2) batch and length, or (n, 3) batch, source and target length; distances are of their logarithms, each
            over its own range.
        count: how many; all that differ where those are fewer.
    Raises:
        ValueError: no shapes, or a count below 1.
    Source: farthest-first traversal (Gonzalez, 1985). Price: count x n.
    Example:
        >>> spread_shapes([(1, 10), (2, 500), (8, 500), (8, 12), (1, 480)], count=4).tolist()
        [2, 0, 4, 3]
    """
    count = integer("count", count, 1, "shape")
    table = np.asarray(shapes, dtype=np.float64)
    if table.ndim != 2 or not len(table):
        raise ValueError(f"shapes must be (n, 2) or (n, 3), at least one (got {table.shape})")
    places = np.log(table)
    places = (places - places.min(axis=0)) / np.maximum(np.ptp(places, axis=0), 1e-9)
    chosen = [int((table[:, 0] * table[:, 1:].sum(axis=1)).argmax())]
    distances = np.full(len(table), np.inf)
    while True:
        distances = np.minimum(distances, ((places - places[chosen[-1]]) ** 2).sum(axis=1))
        farthest = int(distances.argmax())
        if len(chosen) == count or not distances[farthest]:
            return np.array(chosen)
        chosen.append(farthest)
