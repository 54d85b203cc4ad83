"""A batch while it is still integers: which samples of a window, padded to which shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from brimful.batching.window import IntArray, PlanningWindow

Uneven = Literal["pad", "drop", "wrap", "raise"]
"""The rule for a step that has too few batches for all ranks: a filler, no step, the epoch's first ones again, an error."""


class NumLabels(NamedTuple):
    """Labels that are trained on (not -100).

    Args:
        given: as the samples have them.
        edges: those of them that packing leaves out: the first one of each piece, of `shift_labels` the last one.
    """

    given: int
    edges: int


class PackedPieces(NamedTuple):
    """The places of samples that lie end to end in the rows of a batch, int64 (n,) each.

    Args:
        starts: where in its sample each piece begins.
        lengths: tokens of each piece.
        rows: the row of each piece, ascending.
    """

    starts: IntArray
    lengths: IntArray
    rows: IntArray


@dataclass(frozen=True, eq=False)
class Batch:
    """Which samples of a window make up a batch, and the shape that it is padded to: still integers.

    Args:
        window: the window that the numbers refer to.
        numbers: sample numbers, int64 (b,); of packed rows the sample of each piece, row after row.
        padded_length: tokens, an int; a tuple of ints for several lengths a sample.
        padded_size: rows of the tensors; more than b where the batch is filled up to a static shape.
        pieces: of packed rows; None where each sample has a row of its own.
        weight: of a data-parallel rank's batch; 0.0 for a filler.
        num_labels: of this batch, of a data-parallel rank's of its whole step, on all ranks; None where not known.
        num_labels_here: where those are not known, of this rank's batches of an optimizer step.
        may_fill: whether other batches of its step may be fillers, which only a dict can say of itself.
        ends_step: whether it is the last one of an optimizer step; None where nothing says which ones are.
        last: whether no batch of the window follows.
        static: whether its shape is one of few that a compiler knows, which a filler keeps.
        key: of what is drawn at random for it.
    """

    window: PlanningWindow
    numbers: IntArray
    padded_length: int | tuple[int, ...]
    padded_size: int
    pieces: PackedPieces | None = None
    weight: float | None = None
    num_labels: NumLabels | None = None
    num_labels_here: NumLabels | None = None
    may_fill: bool = False
    ends_step: bool | None = None
    last: bool = False
    static: bool = False
    key: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sample, or piece, int64 (b,) or (b, d)."""
        return self.window.lengths[self.numbers] if self.pieces is None else self.pieces.lengths

    @property
    def num_samples(self) -> int:
        """Samples that begin here."""
        return len(self) if self.pieces is None else int(np.count_nonzero(self.pieces.starts == 0))

    @property
    def num_tokens(self) -> int:
        """Tokens of its samples, or pieces, as cut."""
        return int(np.minimum(self.lengths, self.padded_length).sum())

    @property
    def widths(self) -> tuple[int, ...]:
        """The padded length, by length column."""
        return self.padded_length if isinstance(self.padded_length, tuple) else (self.padded_length,)


def filler(batch: Batch) -> Batch:
    """One real row of a batch, without weight; of a static shape, and copies up to it."""
    own = np.arange(1) if batch.pieces is None else np.flatnonzero(batch.pieces.rows == 0)
    pieces = None if batch.pieces is None else PackedPieces(*(field[own] for field in batch.pieces))
    size = batch.padded_size if batch.static else 1
    return replace(batch, numbers=batch.numbers[own], pieces=pieces, padded_size=size, weight=0.0)


def apart(batches: Sequence[Batch]) -> list[Batch]:
    """Batches of one window as those of a part of it that has no other samples, so that no other rows are located."""
    if not batches or batches[0].window.located:
        return list(batches)
    window = batches[0].window
    wanted = np.zeros(len(window), dtype=bool)
    for batch in batches:
        wanted[batch.numbers] = True
    own = window.part(np.flatnonzero(wanted))
    places = np.cumsum(wanted) - 1
    return [replace(batch, window=own, numbers=places[batch.numbers]) for batch in batches]
