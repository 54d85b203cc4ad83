"""A window: samples to plan over. Their lengths are known now; their rows are where `locate` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.stage import State
from brimful.index.index import Index, RowSpans, float_values, label_counts
from brimful.index.views import TruncatedIndex
from brimful.plan.errors import DataError
from brimful.plan.once import once
from brimful.tables.blocks import Block
from brimful.tables.origins import HIDDEN, ORIGIN, where
from brimful.tables.ragged import Ragged, TruncateSide, array_of, ragged, truncated

IntArray: TypeAlias = NDArray[np.int64]


class InTurn(NamedTuple):
    """Of a window whose batches have the samples in arrival order. It has the rows that were at hand: nothing may depend on it.

    Args:
        first: the number of its first batch in the epoch.
        measured: whether the samples have the length columns; else they count as empty.
        state: the state of the windows after so many of its batches.
        left_out: counts what was left out on the way to so many of its batches (0: all), once.
    """

    first: int
    measured: bool
    state: Callable[[int], State]
    left_out: Callable[[int], None]


@dataclass(frozen=True, eq=False)
class PlanningWindow:
    """Samples 0 to n - 1 of a window, in arrival order.

    Args:
        epoch, number: which window of which epoch: the counter of its random choices.
        lengths: tokens of each sample, int64 (n,) or (n, d).
        samples: which row of the data set each of them is, of a stream which of the window, int64 (n,).
        locate: gives a block that holds rows of these numbers and, int64, which row of it each of them is; called when the
            first sample is wanted, once for all of them.
        checksums: those that a replay must reproduce, by column; none where the header says them already.
        index: of the rows, where they need not be here: it knows their columns, perhaps also their labels, without a block.
        whole: tokens of each sample before it was cut, like `lengths`; None where none was cut.
        turn: where batches have the samples in arrival order: then `number` is 0, and `samples` are numbers in the epoch.
        texts_at: gives the text of rows of the data set, which windows do not hold; None where the rows have none.
        sizes: the names of the d lengths, where there are several, or one that is not the length of a list of tokens.
        units: a number for each sample, int64 (n,): neighbours with equal ones stay together; None: each by itself.
        gaps: how many tokens of each sample lie before those that are left out of its middle, int64 (n,), 0 where none are; None:
            of no sample.
    """

    epoch: int
    number: int
    lengths: IntArray
    samples: IntArray
    locate: Callable[[IntArray], tuple[Block, IntArray]]
    checksums: dict[str, int] = field(default_factory=dict)
    index: Index | None = None
    texts_at: Callable[[IntArray], list[str] | None] = lambda numbers: None
    whole: IntArray | None = None
    turn: InTurn | None = None
    sizes: tuple[str, ...] = ()
    units: IntArray | None = None
    gaps: IntArray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def num_labels(self, column: str) -> IntArray | None:
        """For each sample: its labels, those that are trained on, and whether the first one is, int64 (3, n); None: not known."""
        if column not in self._num_labels:
            known = self.index
            self._num_labels[column] = (
                label_counts([self.block], column)[:, self.rows].astype(np.int64)
                if known is None
                else known.num_labels_at(self.samples, column)
            )
        return self._num_labels[column]

    def weights(self, column: str) -> NDArray[np.float64] | None:
        """What each sample counts for in a mean over samples, float64 (n,), by a column of numbers; None: only its row says it,
        and the rows are not here.

        Raises:
            ValueError: there is no such column, or it is not of numbers.
            DataError: a weight is null, NaN, infinite or below 0; with file and line.
        """
        if column not in self._weights:
            self._weights[column] = self._read_weights(column)
        return self._weights[column]

    def _read_weights(self, column: str) -> NDArray[np.float64] | None:
        fields = {one.name: one for one in self.schema if not one.name.startswith(HIDDEN)}
        if column not in fields:
            raise ValueError(
                f"sample_weight_column names {column!r}, but the columns are {', '.join(fields) or 'none'}"
            )
        if not (pa.types.is_integer(kind := fields[column].type) or pa.types.is_floating(kind)):
            raise ValueError(f"sample_weight_column names {column!r}, which is no column of numbers ({kind})")
        if self.index is None or self.located:
            found: NDArray[np.float64] | None = float_values(self.block.column(column).take(array_of(self.rows)))
        else:
            found = self.index.values_at(self.samples, column)
        if found is not None and len(wrong := np.flatnonzero(~(np.isfinite(found) & (found >= 0)))):
            own = self.select(wrong[:1])  # no other sample is fetched for it
            row = int(own.rows[0])
            value = own.block.column(column)[row].as_py()
            raise DataError(
                f"sample_weight_column={column!r} holds {'null' if value is None else value} ({where(own.block, row)}): a weight "
                "is a number of at least 0. Fill it (map), or leave such samples out (filter)"
            )
        return found

    @property
    def schema(self) -> pa.Schema:
        """The columns and types of the rows."""
        return self.block.schema if self.index is None else self.index.schema

    def select(self, numbers: IntArray) -> PlanningWindow:
        """The window as far as some of its samples go, so that no other rows are located."""
        lengths, samples = self.lengths[numbers], self.samples[numbers]
        each = (self.whole, self.units, self.gaps)
        whole, units, gaps = (None if one is None else one[numbers] for one in each)
        return replace(self, lengths=lengths, samples=samples, whole=whole, units=units, gaps=gaps)

    def truncated(self, columns: tuple[tuple[str, ...], ...], most: int, side: TruncateSide) -> PlanningWindow:
        """The window with at most `most` tokens of each sample: what users give `truncate_side` for."""
        lengths = np.minimum(self.lengths, most)
        if (lengths == self.lengths).all():
            return self
        gaps = None
        if side == "middle":
            cut, kept = ((one if one.ndim == 1 else one[:, 0]) for one in (lengths < self.lengths, lengths))
            gaps = np.where(cut & (kept > 1), kept - kept // 2, 0)
        new = replace(self, lengths=lengths, whole=self.lengths, gaps=gaps)
        if self.index is not None:
            index = TruncatedIndex(self.index, columns, most, side)
            return replace(new, locate=index.locate, index=index)

        def locate(numbers: IntArray) -> tuple[Block, IntArray]:
            block, rows = self.locate(numbers)
            return truncated(block.take(array_of(rows)), columns, most, side), np.arange(len(rows))

        return replace(new, locate=locate)

    @property
    def whole_lengths(self) -> IntArray:
        """Tokens of each sample, whether or not it is cut."""
        return self.lengths if self.whole is None else self.whole

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
        return self.block.take(array_of(self.rows[numbers]))

    @once
    def spans(self) -> dict[str, RowSpans] | None:
        """All columns of the samples, where these can be had sooner without `block`, which is not there yet."""
        return None if self.index is None or self.located else self.index.spans(self.samples)

    @once
    def origins(self) -> PlanningWindow:
        """A window of the same samples that holds nothing of their rows but where they came from, to be kept for long."""
        samples, locate = self.samples, self.locate
        if self.located:
            own = self.block.select([name for name in self.block.schema.names if name == ORIGIN])
            rows = self.rows
            locate = lambda which: (own, rows[which])  # noqa: E731
            samples = np.arange(len(rows))
        made = PlanningWindow(self.epoch, self.number, self.lengths, samples, locate, texts_at=self.texts_at)
        return replace(made, sizes=self.sizes)

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

    @once
    def _weights(self) -> dict[str, NDArray[np.float64] | None]:
        return {}

    @once
    def _num_labels(self) -> dict[str, IntArray | None]:
        return {}
