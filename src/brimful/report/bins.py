"""How lengths are spread, in bins for drawings."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def edges_of(lengths: IntArray, longest: int, most: int = 32) -> IntArray:
    """Edges of bins from 0 on: equal widths that are a power of two; two to an octave where lengths spread far."""
    if longest > 40 * max(1, quantile(lengths, 0.5)) and longest > most:
        octaves = np.arange(1, ceil(np.log2(longest)) + 0.5, 0.5)
        return np.array([0, 1, *np.round(2**octaves).astype(np.int64)])
    width = 2 ** max(0, ceil(np.log2(longest / most))) if longest else 1
    return np.arange(0, max(longest, 1) + width, width)[: -(-max(longest, 1) // width) + 1]


def binned(lengths: IntArray, weights: IntArray, edges: IntArray) -> tuple[int, ...]:
    bins = np.maximum(np.searchsorted(edges, lengths) - 1, 0)
    return tuple(np.bincount(bins, weights, len(edges) - 1).astype(np.int64).tolist())


def quantile(lengths: IntArray, share: float) -> int:
    return int(np.quantile(lengths, share, method="inverted_cdf"))
