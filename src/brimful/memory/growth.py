"""The growth of peak memory with the shape of a batch: a maximum of pieces, each affine in the batch, no term below zero.

    peak = max over pieces of   a + batch x (b + c length + d length^2)                              one length
                                a + batch x (b + c s + d t + e s^2 + f s t + g t^2)                  source s, target t

With no coefficient below zero a piece grows in everything, and a maximum of pieces is convex in the batch. The pieces are the
moments at which a step can be at its peak: the optimizer's update, the end of the backward pass, the loss.
"""

from __future__ import annotations

from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_PIECES: Final = 3
_EXACT: Final = 1e-4  # a relative error below which peaks are as good as explained: allocators round
_ROUNDS: Final = 30


def per_sample(lengths: Floats) -> Floats:
    """The terms of a sample's share: (n, 3) of lengths (n, 1), (n, 6) of pairs (n, 2)."""
    ones = np.ones(len(lengths))
    if lengths.shape[1] == 1:
        length = lengths[:, 0]
        return np.column_stack([ones, length, length**2])
    source, target = lengths.T
    return np.column_stack([ones, source, target, source**2, source * target, target**2])


def terms(batches: Floats, lengths: Floats) -> Floats:
    """All terms of a piece, (n, 4) or (n, 7): the constant, then the batch times `per_sample`."""
    return np.column_stack([np.ones(len(batches)), batches[:, None] * per_sample(lengths)])


def triangle(rows: Floats, peaks: Floats, before: Floats | None = None) -> Floats:
    """Rows of terms and their peaks, reduced to what least squares need: a triangle (terms + 1, terms + 1), for any number
    of rows. Errors are relative: each row is divided by its peak.

    Args:
        before: the triangle of the rows that came earlier, which are kept.
    Source: the square-root information filter (Bierman, 1977), exact where normal equations lose half the digits.
    """
    width = rows.shape[1] + 1
    new = np.column_stack([rows / peaks[:, None], np.ones(len(rows))])
    stacked = np.vstack([np.zeros((width, width)) if before is None else before, new])
    found: Floats = np.linalg.qr(stacked, mode="r")  # type: ignore[assignment]
    return found


def coefficients(triangle: Floats, constant: bool) -> Floats:
    """The terms' coefficients, none below zero, that fit what a triangle knows best; `constant` False: the first is 0."""
    first = 0 if constant else 1
    return np.concatenate([np.zeros(first), nonnegative(triangle[:, first:-1], triangle[:, -1])])


def nonnegative(matrix: Floats, values: Floats) -> Floats:
    """The x >= 0 that minimises |matrix x - values|.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.

    >>> nonnegative(np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([2.0, -1, 1])).tolist()
    [1.5, 0.0]
    """
    scale = np.sqrt((matrix**2).sum(axis=0))
    matrix = matrix / np.where(scale, scale, 1.0)
    count = matrix.shape[1]
    free, x = np.zeros(count, bool), np.zeros(count)
    for _ in range(4 * count):
        slope = matrix.T @ (values - matrix @ x)
        if free.all() or slope[~free].max() <= 1e-12 * max(1.0, float(np.abs(values).sum())):
            break
        free[np.argmax(np.where(free, -np.inf, slope))] = True
        best = _solved(matrix, values, free)
        while best[free].min() <= 0:
            low = free & (best <= 0)
            x = x + (best - x) * (x[low] / (x[low] - best[low])).min()
            free &= x > 1e-15
            x[~free] = 0.0
            if not free.any():
                break
            best = _solved(matrix, values, free)
        else:
            x = best
    return x / np.where(scale, scale, 1.0)


def _solved(matrix: Floats, values: Floats, free: NDArray[np.bool_]) -> Floats:
    x = np.zeros(len(free))
    x[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0]
    return x


def pieces_of(rows: Floats, peaks: Floats, constant: bool) -> list[NDArray[np.int64]]:
    """The rows of each piece, for the number of pieces, 1 to 3, that explains the peaks best.

    Each number of pieces begins with equal parts by tokens and by batch, and fits and assigns in turn. More pieces must
    explain more than they cost (BIC), and need a row for each term and one to check it.

    Source: Magnani and Boyd, Convex piecewise-linear fitting (2009).
    """
    best: list[NDArray[np.int64]] = [np.arange(len(peaks))]
    least = _criterion(rows, peaks, best, constant)
    for count in range(2, MOST_PIECES + 1):
        if len(peaks) < count * (rows.shape[1] + 1):
            break
        for key in (rows[:, 2:].sum(axis=1), rows[:, 1]):
            pieces = _settled(rows, peaks, np.array_split(np.argsort(key, kind="stable"), count), constant)
            found = _criterion(rows, peaks, pieces, constant)
            if found < least - 1e-9:
                best, least = pieces, found
    return best


def _settled(rows: Floats, peaks: Floats, pieces: list[NDArray[np.int64]], constant: bool) -> list[NDArray[np.int64]]:
    """Pieces fitted and rows given to the one that is highest there, until nothing changes."""
    for _ in range(_ROUNDS):
        highest = np.argmax(rows @ _all_coefficients(rows, peaks, pieces, constant).T, axis=1)
        assigned = [part for n in range(len(pieces)) if len(part := np.flatnonzero(highest == n))]
        if len(assigned) == len(pieces) and all(map(np.array_equal, assigned, pieces)):
            break
        pieces = assigned
    return pieces


def _all_coefficients(rows: Floats, peaks: Floats, pieces: list[NDArray[np.int64]], constant: bool) -> Floats:
    return np.array([coefficients(triangle(rows[part], peaks[part]), constant) for part in pieces])


def _criterion(rows: Floats, peaks: Floats, pieces: list[NDArray[np.int64]], constant: bool) -> float:
    """The Bayesian information criterion of the relative errors: smaller is better."""
    predicted = (rows @ _all_coefficients(rows, peaks, pieces, constant).T).max(axis=1)
    error = float(np.mean((predicted / peaks - 1) ** 2))
    spent = len(pieces) * int(rows.shape[1])
    return len(peaks) * log(max(error, _EXACT**2)) + spent * log(len(peaks))
