"""Statistics of lengths and batches: bins for drawings, the difference between optimizer steps, and the time that ranks wait. The
difference is the price of batches of one length; several batches a step make it smaller."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BATCHES_A_STEP: Final = (1, 2, 4, 8)
FEW: Final = 0.25
"""Share of the variance between steps that costs nothing measurable: four batches a step in a random order have as much, and
reach the loss of random ones (docs/convergence.md)."""
RANKS: Final = (8, 64)
"""Data-parallel ranks that take a batch each in a step, or several."""


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


def between(tokens: FloatArray, squares: FloatArray, cubes: FloatArray) -> tuple[float, ...]:
    """How much of the variance of lengths lies between steps of 1, 2, 4 and 8 batches that follow one another.

    Lengths are those of the samples that tokens are in, and the variance is over tokens, of which a loss is the mean: the
    variance of the mean lengths of steps, weighted by their tokens, divided by that of all tokens.

    Args:
        tokens, squares, cubes: of each batch, the sums of its samples' lengths, and of their squares and cubes, (n,).
    Example:
        >>> between(np.array([2.0, 6.0]), np.array([2.0, 18.0]), np.array([2.0, 54.0]))
        (1.0, 0.0, 0.0, 0.0)
    """
    mean = squares.sum() / max(tokens.sum(), 1)
    variance = cubes.sum() - squares.sum() * mean
    if variance <= 1e-9 * cubes.sum():
        return (0.0,) * len(BATCHES_A_STEP)
    return tuple(float(_between(tokens, squares, mean, number) / variance) for number in BATCHES_A_STEP)


def _between(tokens: FloatArray, squares: FloatArray, mean: float, number: int) -> float:
    starts = np.arange(0, len(tokens), number)
    size, total = np.add.reduceat(tokens, starts), np.add.reduceat(squares, starts)
    some = size > 0
    return float((np.square(total[some] / size[some] - mean) * size[some]).sum())


def waiting(costs: FloatArray, ranks: int, micro_batches: int = 1) -> float | None:
    """The share of their time that ranks wait for the slowest of each step; None without a whole step.

    Args:
        costs: the time of each batch, in any unit, in the order of the epoch, which the ranks take in turns, (n,).
        ranks: how many take a batch each.
        micro_batches: batches of a rank before it waits.
    Example:
        >>> waiting(np.array([1.0, 3.0, 2.0, 2.0, 9.0]), 2), waiting(np.array([1.0]), 2)
        (0.2, None)
    """
    whole = len(costs) // (ranks * micro_batches) * ranks * micro_batches
    steps = costs[:whole].reshape(-1, micro_batches, ranks).sum(axis=1)
    return float(1 - steps.mean(axis=1).sum() / steps.max(axis=1).sum()) if whole else None
