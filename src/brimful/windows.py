"""A window: samples to plan over. Their lengths are known now; their rows are where `locate` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.once import once
from brimful.plan import Policy, window_rows
from brimful.ragged import Ragged, ragged
from brimful.rows import Block

IntArray: TypeAlias = NDArray[np.int64]

Uneven = Literal["pad", "drop", "wrap", "error"]
"""What ranks do in a step for which there are too few batches: a filler, no step, the epoch's first ones again, an error."""


@dataclass(frozen=True, eq=False)
class Window:
    """Samples 0 to n - 1 of a window, in arrival order.

    Args:
        epoch, number: which window of which epoch: the counter of its random choices.
        lengths: tokens of each sample, int64 (n,) or (n, d).
        samples: which row of the data set each of them is, of a stream which of the window, int64 (n,).
        locate: gives a block that holds rows of these numbers and, int64, which row of it each of them is; called when the
            first sample is wanted, once for all of them.
        crc32: what a replay must reproduce; 0 where the header says it already.
        num_labels_at: counts the labels of rows without reading them, where the index knows them: see `sources.index.Index`.
    """

    epoch: int
    number: int
    lengths: IntArray
    samples: IntArray
    locate: Callable[[IntArray], tuple[Block, IntArray]]
    crc32: int = 0
    num_labels_at: Callable[[IntArray], IntArray] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @once
    def num_labels(self) -> IntArray | None:
        """Of each sample its labels, those that are trained on, and whether the first one is, int64 (3, n), where known."""
        return None if self.num_labels_at is None else self.num_labels_at(self.samples)

    def part(self, numbers: IntArray) -> Window:
        """The window as far as some of its samples go, so that no other rows are located."""
        return replace(self, lengths=self.lengths[numbers], samples=self.samples[numbers])

    @property
    def block(self) -> Block:
        """The rows of the samples, among others where they lie in something larger in memory."""
        return self._located[0]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Which row of `block` each sample is."""
        return self._located[1]

    def ragged(self, column: str) -> Ragged:
        """A list column of `block`, looked up once."""
        if column not in self._columns:
            self._columns[column] = ragged(self.block, column)
        return self._columns[column]

    def take(self, numbers: NDArray[np.int64]) -> Block:
        """The rows of some samples, in the order given. Price: about 5 ns a token."""
        return self.block.take(pa.array(self.rows[numbers]))

    @property
    def located(self) -> bool:
        """Whether the rows are here already."""
        return "_located" in vars(self)

    @once
    def _located(self) -> tuple[Block, IntArray]:
        return self.locate(self.samples)

    @once
    def _columns(self) -> dict[str, Ragged]:
        return {}


def window_ends(count: int, size: int) -> int:
    """How many of `count` rows the next window takes where no more follow: a rest shorter than half joins it.

    >>> [window_ends(count, 10) for count in (3, 10, 14, 15, 20)]
    [3, 10, 14, 10, 10]
    """
    return count if count < size + rest_rows(size) else size


def rest_rows(size: int) -> int:
    """How many rows must follow a window of `size` rows for them to be a window of their own."""
    return (size + 1) // 2


def auto_rows(policy: Policy, lengths: NDArray[np.int64]) -> int:
    """How many rows a window needs for 1 % padding under `policy`, judged by some lengths."""
    if policy.max_length is not None and lengths.ndim == 1:
        lengths = np.minimum(lengths, policy.max_length)
    return window_rows(policy, lengths)


class NumLabels(NamedTuple):
    """Labels that are trained on (not -100).

    Args:
        given: as the samples have them.
        firsts: those of them that packing leaves out: the first one of each piece.
    """

    given: int
    firsts: int


class Pieces(NamedTuple):
    """How the samples of a batch lie end to end in its rows, int64 (n,) each.

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
        last: whether no batch of the window follows.
    """

    window: Window
    numbers: IntArray
    padded_length: int | tuple[int, ...]
    padded_size: int
    pieces: Pieces | None = None
    weight: float | None = None
    num_labels: NumLabels | None = None
    last: bool = False

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
    def widths(self) -> tuple[int, ...]:
        """The padded length, by length column."""
        return self.padded_length if isinstance(self.padded_length, tuple) else (self.padded_length,)


def filler(batch: Batch) -> Batch:
    """One real row of a batch, without weight."""
    own = np.arange(1) if batch.pieces is None else np.flatnonzero(batch.pieces.rows == 0)
    pieces = None if batch.pieces is None else Pieces(*(field[own] for field in batch.pieces))
    return replace(batch, numbers=batch.numbers[own], pieces=pieces, padded_size=1, weight=0.0)


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
