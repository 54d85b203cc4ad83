"""Peaks that are measured: at which shapes, the table of them, and the largest batches that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.plan.errors import integer, positive
from brimful.plan.memory import Length

Meter: TypeAlias = Callable[[int, Length], float]
"""The peak bytes of a step by (batch, length), or (batch, (source, target)); infinite where it runs out of memory."""

_AHEAD = 64  # times the largest batch known to fit that a guess may be
_SURE = 0.95  # of the last slope: allocators round, so that a convex peak may rise a little less than before


@dataclass(frozen=True, eq=False, repr=False)
class Peaks:
    """Shapes and their peaks, for `MemoryModel.fit(peaks.shapes, peaks.peak_bytes)`.

    Args:
        shapes: (n, 2): batch and length; (n, 3): batch, source and target length; int64.
        peak_bytes: (n,) int64.
        out_of_memory: (m, 2) or (m, 3) int64: shapes that did not fit, or are at least as large as one that did not.
    Example:
        >>> from brimful.memory import MemoryModel
        >>> peaks = Peaks(np.array([[4, 128], [8, 128]]), np.array([4096, 8192]), np.array([[64, 128]]))
        >>> peaks
        Peaks(2 shapes, 1 out of memory)
        >>> round(MemoryModel.fit(peaks.shapes, peaks.peak_bytes).predict(6, 128))
        6144
    """

    shapes: NDArray[np.int64]
    peak_bytes: NDArray[np.int64]
    out_of_memory: NDArray[np.int64]

    def rows(self) -> list[dict[str, int]]:
        """A dict a peak, as `brimful memory fit` reads them: batch, length (and target_length), peak_bytes.

        Example:
            >>> Peaks(np.array([[4, 128], [8, 128]]), np.array([4096, 8192]), np.zeros((0, 2), np.int64)).rows()
            [{'batch': 4, 'length': 128, 'peak_bytes': 4096}, {'batch': 8, 'length': 128, 'peak_bytes': 8192}]
        """
        names = ("batch", "length", "target_length")
        shapes = (dict(zip(names, shape)) for shape in self.shapes.tolist())
        return [shape | {"peak_bytes": peak} for shape, peak in zip(shapes, self.peak_bytes.tolist())]

    def __repr__(self) -> str:
        return f"Peaks({len(self.shapes):,} shapes, {len(self.out_of_memory):,} out of memory)"


def measured(meter: Meter, shapes: ArrayLike) -> Peaks:
    """The peaks of shapes, the largest first. One step of the smallest shape comes before, as it allocates memory that stays:
    optimizer states, libraries' workspaces. Shapes that are no smaller than one that ran out of memory are not tried.

    Raises:
        ValueError: no shapes, or the smallest does not fit.
    """
    table = checked_shapes(shapes)
    slots = table[:, 0] * table[:, 1:].sum(axis=1)
    smallest = table[np.argmin(slots)]
    if not isfinite(meter(*_shape(smallest))):
        raise ValueError(f"the smallest shape, {_words(smallest)}, runs out of memory; probe smaller ones")
    peaks = np.zeros(len(table))
    for number in np.argsort(-slots, kind="stable").tolist():
        hopeless = (table[number] >= table[peaks == inf]).all(axis=1).any()
        try:
            peaks[number] = inf if hopeless else meter(*_shape(table[number]))
        except Exception as error:
            error.add_note(f"measuring {_words(table[number])}")
            raise
    fits = np.isfinite(peaks)
    return Peaks(table[fits], np.rint(peaks[fits]).astype(np.int64), table[~fits])


def spread_shapes(shapes: ArrayLike, *, count: int = 8) -> NDArray[np.int64]:
    """The numbers of the shapes that tell most about all others. The largest comes first, then each time the one
    farthest from those chosen.

    Args:
        shapes: (n, 2) batch and length, or (n, 3) batch, source and target length. Distances are between their
            logarithms, each divided by its range.
        count: how many. If there are fewer distinct shapes, all of them.
    Raises:
        TypeError, ValueError: no shapes, or others than integers from 1 on, or a count below 1.
    Source: farthest-first traversal (Gonzalez, 1985). Price: count x n.
    Example:
        >>> spread_shapes([(1, 10), (2, 500), (8, 500), (8, 12), (1, 480)], count=4).tolist()
        [2, 0, 4, 3]
    """
    count = integer("count", count, 1, "shape")
    table = checked_shapes(shapes)
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


def largest_batches(
    meter: Meter, lengths: Sequence[Length], limit_bytes: float, *, max_batch_size: int = 1 << 16
) -> list[int]:
    """The largest batch of each length whose peak is within the limit. It measures peaks and does not predict them.

    It assumes that, for each length, the peak is convex in the batch. A line through two batches that fit then gives an
    upper limit for the largest batch. A line to a batch that does not fit gives a lower limit. If the last rise leads
    above the limit, the next one does too.

    Args:
        meter: meter(batch, length) gives bytes, infinite if memory runs out: `estimator(...)` or `meter_on(...)`.
        lengths: padded lengths, in tokens, or pairs (source, target).
        limit_bytes: the peak that is allowed.
        max_batch_size: where to stop.
    Returns: a batch size for each length, 0 if a single sample does not fit.
    Price: 3 or 4 steps a length if the peak is affine, 2 or 3 more for each bend in it.
    Example:
        >>> largest_batches(lambda batch, length: max(5e6, 1e6 + 1e3 * batch * length), [128, 512], 30e6)
        [226, 56]
    """
    limit, most = positive("limit_bytes", limit_bytes), integer("max_batch_size", max_batch_size, 1, "sample")
    return [largest_batch(lambda batch: meter(batch, length), limit, most) for length in lengths]  # noqa: B023  # called at once


def largest_batch(
    peak: Callable[[int], float],
    limit: float,
    most: int,
    *,
    guess: int = 1,
    probes: float = inf,
    known: float = 0.0,
) -> int:
    """The largest batch of at most `most` samples whose peak is within the limit, see `largest_batches`; after so many probes the
    largest one that was found to be. The first one measured is of `guess` samples. `known` is the peak of one sample, or 0."""
    below, low = (int(known > 0), known), (0, 0.0)  # the two largest batches that are known to fit, and their peaks
    high = (most + 1, inf)
    tries = 0
    while low[0] + 1 < high[0] and probes > 0:
        found, probes = (guess, peak(guess)), probes - 1
        if found[1] <= limit:
            below, low = low if low[0] else below, found
        else:
            high = found
        if not low[0]:
            if high[0] == 1:
                return 0
            guess = max(1, high[0] // 2)
            continue
        tries += 1
        rise = (low[1] - below[1]) / (low[0] - below[0]) if 0 < below[0] < low[0] else 0.0
        if rise > 0 and low[1] + _SURE * rise > limit:
            return low[0]
        guess = _next(low, high, rise, limit, halve=tries % 4 == 0)
    return low[0]


def _next(low: tuple[int, float], high: tuple[int, float], rise: float, limit: float, *, halve: bool) -> int:
    """The batch to measure, between one that fits and one that does not."""
    if halve and isfinite(high[1]):
        return (low[0] + high[0]) // 2
    guess = low[0] + int(min((limit - low[1]) / rise, _AHEAD * low[0])) if rise > 0 else 2 * low[0]
    if guess >= high[0]:
        share = (limit - low[1]) / (high[1] - low[1]) if isfinite(high[1]) else 0.5
        guess = low[0] + int(share * (high[0] - low[0]))
    return min(max(guess, low[0] + 1), high[0] - 1)


def checked_shapes(shapes: ArrayLike) -> NDArray[np.int64]:
    """Shapes as int64, (n, 2) or (n, 3).

    Raises:
        ValueError: another form, none at all, or a number below 1. TypeError: no integers.
    """
    table = np.asarray(shapes)
    if table.ndim != 2 or table.shape[1] not in (2, 3) or not len(table):
        words = "shapes must be (n, 2) or (n, 3), at least one: batch and length, or source and target"
        raise ValueError(f"{words} (got {table.shape})")
    if table.dtype.kind not in "iu":
        raise TypeError(f"shapes must be integers (got {table.dtype})")
    if table.min() < 1:
        worst = int(np.flatnonzero((table < 1).any(axis=1))[0])
        raise ValueError(
            f"a shape must have a batch and lengths of at least 1 (shape {worst:,} is {_words(table[worst])})"
        )
    return table.astype(np.int64)


def _shape(row: Iterable[Any]) -> tuple[int, Length]:
    batch, *lengths = map(int, row)
    return batch, lengths[0] if len(lengths) == 1 else (lengths[0], lengths[1])


def _words(row: Iterable[Any]) -> str:
    batch, *lengths = map(int, row)
    return f"batch {batch:,} of length {' and '.join(f'{length:,}' for length in lengths)}"
