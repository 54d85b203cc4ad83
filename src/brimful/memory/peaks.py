"""Peaks that were measured: a table of shapes and bytes, and what measures one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.plan.memory import Length

Meter: TypeAlias = Callable[[int, Length], float]
"""The peak bytes of a step by (batch, length), or (batch, (source, target)); infinite where it runs out of memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Peaks:
    """Shapes and their peaks, which `MemoryModel.fit(peaks.shapes, peaks.peak_bytes)` takes.

    Args:
        shapes: (n, 2): batch and length; (n, 3): batch, source and target length; int64.
        peak_bytes: (n,) int64.
        out_of_memory: (m, 2) or (m, 3) int64: shapes that did not fit, or are no smaller than one that did not.
    """

    shapes: NDArray[np.int64]
    peak_bytes: NDArray[np.int64]
    out_of_memory: NDArray[np.int64]

    def rows(self) -> list[dict[str, int]]:
        """A dict a peak, as `brimful memory fit` reads them: batch, length (and target_length), peak_bytes."""
        names = ("batch", "length", "target_length")
        shapes = (dict(zip(names, shape)) for shape in self.shapes.tolist())
        return [shape | {"peak_bytes": peak} for shape, peak in zip(shapes, self.peak_bytes.tolist())]

    def __repr__(self) -> str:
        return f"Peaks({len(self.shapes):,} shapes, {len(self.out_of_memory):,} out of memory)"


def measured(meter: Meter, shapes: ArrayLike) -> Peaks:
    """The peaks of shapes, the largest first, after one step of the smallest that makes what stays: optimizer states,
    libraries' workspaces. What is no smaller than a shape that ran out of memory is not tried.

    Raises:
        ValueError: no shapes, or the smallest does not fit.
    """
    table = checked_shapes(shapes)
    slots = table[:, 0] * table[:, 1:].sum(axis=1)
    smallest = table[np.argmin(slots)]
    if not isfinite(meter(*_shape(smallest))):
        raise ValueError(f"the smallest shape, {_words(smallest)}, runs out of memory; probe smaller ones")
    found: dict[int, float] = {}
    for number in np.argsort(-slots, kind="stable").tolist():
        hopeless = any(peak == inf and (table[number] >= table[other]).all() for other, peak in found.items())
        try:
            found[number] = inf if hopeless else meter(*_shape(table[number]))
        except Exception as error:
            error.add_note(f"measuring {_words(table[number])}")
            raise
    fits = np.array([isfinite(found[number]) for number in range(len(table))])
    peaks = [round(found[number]) for number in np.flatnonzero(fits).tolist()]
    return Peaks(table[fits], np.array(peaks, dtype=np.int64), table[~fits])


def checked_shapes(shapes: ArrayLike) -> NDArray[np.int64]:
    """Shapes as int64, (n, 2) or (n, 3).

    Raises:
        ValueError: another form, none at all, or a number below 1. TypeError: no integers.
    """
    table = np.asarray(shapes)
    if table.ndim != 2 or table.shape[1] not in (2, 3) or not len(table):
        raise ValueError(
            f"shapes must be (n, 2) or (n, 3), at least one: batch and length, or both (got {table.shape})"
        )
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
