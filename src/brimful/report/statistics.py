"""Statistics of lengths: bins for drawings, and the difference between optimizer steps. That difference is the price of batches
of one length; several batches a step make it smaller."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import Batch

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BATCHES_A_STEP: Final = (1, 2, 4, 8)
FEW: Final = 0.25
"""Share of the variance between steps that costs nothing measurable: four batches a step in a random order have as much, and
reach the loss of random ones (docs/convergence.md)."""


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


class Between:
    """Takes the batches of an epoch, in order, and says how much of the variance of lengths lies between steps.

    Lengths are those of the samples that tokens are in, and the variance is over tokens, of which a loss is the mean: the
    variance of the mean lengths of steps, weighted by their tokens, divided by that of all tokens.
    """

    def __init__(self) -> None:
        self._moments: list[tuple[float, float]] = []  # tokens of each batch, and the sum of their lengths
        self._squares = 0.0

    def add(self, batch: Batch) -> None:
        lengths = batch.lengths.astype(np.float64)
        self._moments.append((lengths.sum(), np.square(lengths).sum()))
        self._squares += (lengths**3).sum()

    def shares(self) -> tuple[float, ...]:
        """The shares for steps of 1, 2, 4 and 8 batches that follow one another.

        >>> import brimful as bf
        >>> between = Between()
        >>> for batch in bf.from_sequence([{"input_ids": [0] * length} for length in (1, 1, 3, 3)]).batch(2).plans():
        ...     between.add(batch)
        >>> between.shares()
        (1.0, 0.0, 0.0, 0.0)
        """
        tokens, sums = np.array(self._moments).T
        mean = sums.sum() / max(tokens.sum(), 1)
        variance = self._squares - sums.sum() * mean
        if variance <= 1e-9 * self._squares:
            return (0.0,) * len(BATCHES_A_STEP)
        return tuple(float(self._share(tokens, sums, mean, number) / variance) for number in BATCHES_A_STEP)

    def _share(self, tokens: FloatArray, sums: FloatArray, mean: float, number: int) -> float:
        starts = np.arange(0, len(tokens), number)
        size, total = np.add.reduceat(tokens, starts), np.add.reduceat(sums, starts)
        some = size > 0
        return float((np.square(total[some] / size[some] - mean) * size[some]).sum())
