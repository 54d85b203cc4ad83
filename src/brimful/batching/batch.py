"""A batch while it is still integers: which samples of a window, padded to which shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from brimful.batching.window import IntArray, PlanningWindow
from brimful.core.stage import END, State
from brimful.plan import random
from brimful.plan.costs import SampleCost, sample_costs
from brimful.plan.dealing import part_sums
from brimful.plan.once import once
from brimful.plan.plan import widths
from brimful.tables.ragged import offsets_of, runs

T = TypeVar("T")
Uneven = Literal["pad", "drop", "wrap", "raise"]
"""The rule for a step that has too few batches for all ranks: a filler, no step, the epoch's first ones again, an error."""


class NumLabels(NamedTuple):
    """Labels that are trained on (not -100).

    Args:
        given: as the samples have them.
        edges: those of them that packing leaves out: the first one of each piece, of `shift_labels` the last one.
        samples: how many samples, or pieces, have one that is left.
        weights: what these count for together in a mean over samples, where any counts for something else than 1.
    """

    given: int
    edges: int
    samples: int = 0
    weights: float = 0.0


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
class PlannedWindow:
    """The batches of one window, as flat arrays: what becomes of batches before their rows are fetched makes one of these of
    another. A `Batch` is made when it is wanted, and what is counted of each is counted once for all of them.

    Args:
        window: the window that the numbers refer to.
        numbers: sample numbers, int64 (n,), batch after batch; of packed rows the sample of each piece, row after row.
        bounds: where in `numbers` each batch begins, and the last one ends, int64 (len + 1,).
        padded_lengths: of each batch in tokens, int64 (len,), or (len, d) for several lengths a sample.
        padded_sizes: rows of its tensors, int64 (len,); more than its samples where it is filled up to a static shape.
        num_padded: how many of the d lengths are padded, the first ones, and not summed; None: all.
        pieces: of packed rows; None where each sample has a row of its own.
        static: whether its shape is one of few that a compiler knows, which a filler keeps.
        key: of the window's random choices; `keys`: the numbers, int64 (len,), by which those of each batch differ.
        left_out: of which samples, or pieces, the slots are padding, bool (n,); None: of none.
    """

    window: PlanningWindow
    numbers: IntArray
    bounds: IntArray
    padded_lengths: IntArray
    padded_sizes: IntArray
    num_padded: int | None = None
    pieces: PackedPieces | None = None
    static: bool = False
    key: int = 0
    keys: IntArray | None = None
    left_out: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.padded_sizes)

    def select(self, places: IntArray) -> PlannedWindow:
        """Some of them, in the order given."""
        sizes = np.diff(self.bounds)[places]
        bounds = offsets_of(sizes)
        chosen = runs(self.bounds[places], bounds)
        return replace(
            self,
            numbers=self.numbers[chosen],
            bounds=bounds,
            padded_lengths=self.padded_lengths[places],
            padded_sizes=self.padded_sizes[places],
            pieces=None if self.pieces is None else PackedPieces(*(field[chosen] for field in self.pieces)),
            keys=places if self.keys is None else self.keys[places],
            left_out=None if self.left_out is None else self.left_out[chosen],
        )

    def fetching_only_own_rows(self) -> PlannedWindow:
        """The batches in a part of their window that has no other samples, so that no other rows are located."""
        if not len(self) or self.window.located:
            return self
        wanted = np.zeros(len(self.window), dtype=bool)
        wanted[self.numbers] = True
        own = self.window.select(np.flatnonzero(wanted))
        return replace(self, window=own, numbers=(np.cumsum(wanted) - 1)[self.numbers])

    @once
    def origins(self) -> PlannedWindow:
        """The same of a window that holds nothing of its rows but where they came from, to be kept for long."""
        return replace(self, window=self.window.origins)

    @once
    def ends(self) -> list[int]:
        """`bounds` as plain numbers."""
        return _numbers(self.bounds)

    @once
    def shapes(self) -> list[tuple[int, ...]]:
        """The rows of each batch, and its padded length, or lengths."""
        lengths = self.padded_lengths.reshape(len(self), -1)
        return list(map(tuple, np.column_stack((self.padded_sizes, lengths)).tolist()))

    @once
    def sizes(self) -> IntArray:
        """The tokens that each sample, or piece, keeps in its batch, int64 (n,) or (n, d)."""
        if self.pieces is not None:
            return self.pieces.lengths
        widths = np.repeat(self.padded_lengths, np.diff(self.bounds), axis=0)
        sizes = np.minimum(self.window.lengths[self.numbers], widths)
        if self.left_out is not None:
            sizes[self.left_out] = 0
        return sizes

    @once
    def shortest(self) -> list[int]:
        """The tokens of the shortest sample of each batch, in the first length column."""
        sizes = self.sizes if self.sizes.ndim == 1 else self.sizes[:, 0]
        return _numbers(np.minimum.reduceat(sizes, self.bounds[:-1])) if len(self) else []

    @once
    def num_tokens(self) -> list[int]:
        """The tokens of each batch, as cut."""
        return _numbers(self.sums(widths(self.sizes, 1 if self.num_padded == 0 else self.num_padded)))

    @once
    def totals(self) -> list[tuple[int, ...]]:
        """The sums of all sizes that each batch was planned by, as its samples are cut; of packed rows where samples begin."""
        values = self.sizes.reshape(len(self.numbers), -1)
        if self.pieces is not None:
            values = np.column_stack([values, self.window.lengths.reshape(len(self.window), -1)[self.numbers, 1:]])
            begins = self.pieces.starts == 0
            values[~begins if self.left_out is None else ~begins | self.left_out, 1:] = 0
        return list(zip(*(self.sums(column).tolist() for column in values.T), strict=True))

    @once
    def num_samples(self) -> list[int]:
        """The samples that begin in each batch."""
        begins = np.ones(len(self.numbers), np.bool_) if self.pieces is None else self.pieces.starts == 0
        if self.left_out is not None:
            begins &= ~self.left_out
        return _numbers(self.sums(begins))

    def costs(self, cost: SampleCost) -> NDArray[np.float64]:
        """What each batch costs, float64 (len,): its slots, padded as they are; of packed rows the sum over its pieces."""
        if self.pieces is None:
            return self.padded_sizes * sample_costs(widths(self.padded_lengths, self.num_padded), cost, "balance_cost")
        batch_of = np.repeat(np.arange(len(self)), np.diff(self.bounds))
        return part_sums(batch_of, sample_costs(self.pieces.lengths, cost, "balance_cost"), len(self))

    def sums(self, counts: NDArray[Any]) -> IntArray:
        """What each batch has of something that was counted for each sample, or piece."""
        ends = offsets_of(counts).take(self.bounds)
        return ends[1:] - ends[:-1]


@dataclass(frozen=True, eq=False)
class OrderedBatches:
    """Batches of a planned window in the order in which they are handed on. A rank lays out its own alone.

    Args:
        planned: where they lie.
        order: the place of each there, int64 (len,); None: all, as they lie.
        handed_on: says that so many of the batches are handed on, and gives the state after them.
    """

    planned: PlannedWindow
    order: IntArray | None = None
    handed_on: Callable[[int], State] = lambda batches: END

    def __len__(self) -> int:
        return len(self.planned) if self.order is None else len(self.order)

    def chosen(self, places: IntArray) -> OrderedBatches:
        """Some of them, in the order given."""
        return replace(self, order=places if self.order is None else self.order[places])

    def select(self, places: IntArray) -> PlannedWindow:
        """Some of them, laid out in the order given."""
        return self.planned.select(places if self.order is None else self.order[places])

    def laid_out(self) -> PlannedWindow:
        """All of them."""
        return self.planned if self.order is None else self.planned.select(self.order)

    def costs(self, cost: SampleCost) -> NDArray[np.float64]:
        """What each of them costs, float64 (len,); see `PlannedWindow.costs`."""
        costs = self.planned.costs(cost)
        return costs if self.order is None else costs[self.order]

    def of_each(self, values: Sequence[T]) -> Sequence[T]:
        """What each of them has, of values that lie as the batches do."""
        return values if self.order is None else [values[place] for place in self.order.tolist()]


@dataclass(frozen=True, eq=False)
class Batch:
    """Which samples of a window make up a batch, and the shape that it is padded to: still integers.

    Args:
        plan: the batches that it was planned with; `place`: which of them it is.
        weight: of a data-parallel rank's batch; 0.0 for a filler.
        num_ranks: how many ranks share the batches of a step; None where they are not shared out.
        num_labels: of this batch, of a data-parallel rank's of its whole step, on all ranks; None where not known.
        num_labels_here: where those are not known, of this rank's batches of an optimizer step; after a resume inside a step, of
            those that are still to come.
        ends_step: whether it is the last one of an optimizer step; None where nothing says which ones are.
        ends_window: whether it is the last one of the window that it was planned in; None: as the plan says.
    """

    plan: PlannedWindow
    place: int = 0
    weight: float | None = None
    num_ranks: int | None = None
    num_labels: NumLabels | None = None
    num_labels_here: NumLabels | None = None
    ends_step: bool | None = None
    ends_window: bool | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def window(self) -> PlanningWindow:
        """The window that the numbers refer to."""
        return self.plan.window

    @property
    def last(self) -> bool:
        """Whether no batch of the window follows, of a data-parallel rank's none of that rank."""
        if self.ends_window is not None:
            return self.ends_window
        return self.place + 1 == len(self.plan) or self.window.turn is not None

    @property
    def span(self) -> slice:
        """Where the plan has its samples, or pieces."""
        return slice(self.plan.ends[self.place], self.plan.ends[self.place + 1])

    @property
    def numbers(self) -> IntArray:
        """Sample numbers, int64 (b,); of packed rows the sample of each piece, row after row."""
        return self.plan.numbers[self.span]

    @property
    def pieces(self) -> PackedPieces | None:
        """Of packed rows; None where each sample has a row of its own."""
        pieces, span = self.plan.pieces, self.span
        return None if pieces is None else PackedPieces(*(field[span] for field in pieces))

    @property
    def padded_length(self) -> int | tuple[int, ...]:
        """Tokens, an int; a tuple of ints for several lengths a sample."""
        widths = self.widths
        return widths[0] if self.plan.padded_lengths.ndim == 1 else widths

    @property
    def padded_size(self) -> int:
        """Rows of the tensors; more than b where the batch is filled up to a static shape."""
        return self.plan.shapes[self.place][0]

    @property
    def key(self) -> int:
        """The key of what is drawn at random for it."""
        return random.key(self.plan.key, self._number)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sample, or piece, int64 (b,) or (b, d)."""
        return self.window.lengths[self.numbers] if self.pieces is None else self.pieces.lengths

    @property
    def num_samples(self) -> int:
        """Samples that begin here."""
        return self.plan.num_samples[self.place]

    @property
    def num_tokens(self) -> int:
        """Tokens of its samples, or pieces, as cut."""
        return self.plan.num_tokens[self.place]

    @property
    def totals(self) -> dict[str, int]:
        """The sum of each size that it was planned by, as its samples are cut; none where these are the tokens alone."""
        names = self.window.sizes
        return dict(zip(names, self.plan.totals[self.place])) if names else {}

    @property
    def widths(self) -> tuple[int, ...]:
        """The padded length, by length column."""
        return self.plan.shapes[self.place][1:]

    def select(self, own: IntArray, padded_size: int, padded_length: int | tuple[int, ...] | None = None) -> Batch:
        """A batch of some of its samples, or pieces, by their places in it, perhaps of another shape."""
        length = self.padded_length if padded_length is None else padded_length
        pieces = None if self.pieces is None else PackedPieces(*(field[own] for field in self.pieces))
        plan = replace(
            self.plan,
            numbers=self.numbers[own],
            bounds=np.array([0, len(own)]),
            padded_lengths=np.array([length]),
            padded_sizes=np.array([padded_size]),
            pieces=pieces,
            keys=np.array([self._number]),
            left_out=None if self.plan.left_out is None else self.plan.left_out[self.span][own],
        )
        return replace(self, plan=plan, place=0)

    def without(self, places: IntArray) -> Batch:
        """The batch in its shape, with padding in place of some of its samples, or pieces; without any left it has no weight."""
        batch = self.select(np.arange(len(self)), self.padded_size)
        left_out = np.zeros(len(self), np.bool_)
        left_out[places] = True
        pieces = batch.plan.pieces
        if pieces is not None:
            pieces = pieces._replace(lengths=np.where(left_out, 0, pieces.lengths))
        plan = replace(batch.plan, left_out=left_out, pieces=pieces)
        return replace(batch, plan=plan, weight=0.0 if self.weight is not None and left_out.all() else self.weight)

    @property
    def _number(self) -> int:
        return self.place if self.plan.keys is None else int(self.plan.keys[self.place])


def _numbers(array: NDArray[Any]) -> list[int]:
    found: list[int] = array.tolist()
    return found


def filler(batch: Batch) -> Batch:
    """One real row of a batch, without weight; of a static shape, and copies up to it."""
    own = np.arange(1) if batch.pieces is None else np.flatnonzero(batch.pieces.rows == 0)
    return replace(batch.select(own, padded_size=batch.padded_size if batch.plan.static else 1), weight=0.0)


def fetch_only_own_rows(batch: Batch) -> Batch:
    """A batch in a window of its own samples."""
    plan = batch.plan.select(np.array([batch.place])).fetching_only_own_rows()
    return replace(batch, plan=plan, place=0, ends_window=batch.last)
