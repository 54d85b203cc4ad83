"""Indexed data: rows of an index in an order of which any part can be computed alone."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from brimful.core.facts import Facts, facts_of, following, refuse_originals, shown, verb_of
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, with_inputs
from brimful.index.index import DataIndex, Index
from brimful.index.views import ChosenIndex, SelectedIndex
from brimful.plan.errors import DataError, StateError
from brimful.plan.once import once
from brimful.rows.columns import Choice
from brimful.tables.blocks import UNIT, Block
from brimful.tables.ragged import EMPTY, array_of, inner_shape, with_column
from brimful.tables.units import EPOCH_BITS, begins_unit

RowNumbers: TypeAlias = Callable[[int, int], NDArray[np.int64]]
"""The row numbers at the places `first` to `last - 1` of an epoch, int64 (last - first,), whatever lies before them.

The function may keep something from one call to the next, such as a shuffled window. Stages keep nothing, so runs may share
them.
"""
FIRST_ROWS: Final = 64
"""Rows of the first block. With 4,096, a stride over a few rows that repeat would begin thousands of epochs for it."""
FIRST_FETCHED: Final = 1
FETCHED: Final = 64
"""Rows of the first block, and of later ones, where each is fetched by itself."""
SPAN: Final = 1 << 20
"""How many places of endless data are looked at to judge all of them."""


class Indexed(Stage[Block]):
    """Abstract: samples of an index, in an order of which any part is computed alone; so a place is a number.

    State: {"epoch", "done": samples handed on}, and where sources repeat "repeated", the epoch that they have come to. A resume,
    like `skip`, costs what the first block costs.
    """

    @property
    @abstractmethod
    def index(self) -> Index:
        """Where the samples are, and their lengths."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Samples of an epoch, the same in each; None where it goes on without an end."""

    @abstractmethod
    def order(self, epoch: int) -> RowNumbers:
        """The rows of an epoch, in order."""

    # Where the weights of a mixture changed at a resume, an epoch may have another order and another number of samples.

    def count_in(self, epoch: int) -> int | None:
        """As `count`, of one epoch."""
        return self.count

    def edits(self, epoch: int) -> tuple[int, ...]:
        """The places of an epoch at which weights changed: no window reaches over them."""
        return ()

    @property
    def last_edit(self) -> int:
        """The last epoch that has other weights than those after it; -1: none has."""
        return -1

    def held(self, began: int, epoch: int, place: int) -> None:
        """Tells mixtures below, if their weights are to change, that samples must come again as they were: from epoch `began` up
        to a place of an epoch.

        Raises:
            StateError: a place here is none of the mixture.
        """
        if any(map(marked, self._inputs)):
            raise cannot_change(self)

    @property
    def pass_rows(self) -> int:
        """How many samples its sources have: so many places are a pass over them, where they repeat."""
        return sum(one.pass_rows for one in self._inputs)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        """The rows of epoch 0 and how many they are, without a shuffle where that leaves the same rows: to judge them by.

        Of data without an end: those of one epoch of what repeats, else of the first 2^20 places.
        """
        return self.order(0), SPAN if self.count is None else self.count

    @property
    def in_index_order(self) -> bool:
        """Whether row i of the index stands at place i, in every epoch."""
        return False

    def facts(self, *inputs: Facts) -> Facts:
        return following(
            self,
            *inputs,
            streamed_by="",
            from_index=True,
            schema=lambda: None if any(one.schema() is None for one in inputs) else self.index.schema,
            num_rows=lambda: self.count if self.counted else None,
            originals=lambda: self._originals([one.originals() for one in inputs]),
        )

    def _originals(self, found: list[Any]) -> Any:
        real = next((one for one in found if one is not None), None)
        if real is None:
            return None
        others = [one for one in found if one is not real]
        return real.joined(others, verb_of(self)) if others else real

    @property
    def counted(self) -> bool:
        """Whether its count is known without reading a row or calling a function of the user's."""
        return all(one.counted for one in self._inputs)

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        """See `DataIndex.measured`."""
        return [crc for one in self._inputs for crc in one.measured(columns, required)]

    @property
    def _inputs(self) -> tuple[Indexed, ...]:
        return cast(tuple[Indexed, ...], self.inputs)

    def chosen(self, choice: Choice) -> Indexed:
        """The samples with the columns of a choice. A stage that only reorders puts the choice below itself, so that
        `selected` still finds a source."""
        return Choose(self, choice)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        """Some of the rows, by a pass over each source; None where what is left may differ from epoch to epoch."""
        return None

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "done": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, done = at["epoch"], at["done"]
        count = self.count_in(epoch)
        if count == 0:
            yield EMPTY, END
            return
        reread = Reread(self, epoch, done, run)
        rows = self.order(epoch)
        first, most = (FIRST_FETCHED, FETCHED) if facts_of(self).one_by_one else (FIRST_ROWS, BLOCK_ROWS)
        numbers = np.zeros(0, dtype=np.int64)
        units = _Units(self.index, rows, epoch, done) if facts_of(self).units is not None else None
        while done != count:
            # by the place alone, so that a resume has the same blocks
            last = done + min(most, max(first, done))
            last = last if count is None else min(last, count)
            numbers = np.concatenate((numbers, rows(done + len(numbers), last)))
            size = self._block_rows(numbers)
            block = self.index.take(numbers[:size])
            if units is not None:
                block = with_column(block, UNIT, array_of(units.of_next(numbers[:size])))
            numbers = numbers[size:]
            done += size
            reread.place = done
            yield block, END if done == count else self.reached(done, {"epoch": epoch, "done": done})

    def reached(self, done: int, state: dict[str, Any]) -> State:
        """A state after so many places of an epoch: with the epoch that their sources have come to, where these repeat."""
        repeats = self.count is None or self.count > self.pass_rows
        return state | ({"repeated": state["epoch"] + done // self.pass_rows} if repeats else {})

    def _block_rows(self, numbers: NDArray[np.int64]) -> int:
        """How many of these rows a block has: as many as have 4 M values, some 16 MB, where lengths are known without reading.

        Streams have blocks of 1 MB. Here a row of 500 tokens in a mixture of stores would cost 16 us then; in blocks of 4,096
        rows it costs 5.
        """
        values = np.zeros(len(numbers), dtype=np.int64)
        for name in self.index.list_columns:
            each = prod(inner_shape(self.index.schema.field(name).type))
            values += each * self.index.lengths_at(numbers, (name,), required=False)
        return max(1, int(np.searchsorted(np.cumsum(values), 4 * BLOCK_BYTES, side="right")))


class _Units:
    """The numbers of the units of rows that come one after another, from a place of an epoch on."""

    def __init__(self, index: Index, rows: RowNumbers, epoch: int, place: int) -> None:
        self._index, self._epoch, self._place = index, epoch, place
        self._began = unit_begin(index, rows, place - 1) if place else 0
        self._before = rows(place - 1, place) if place else np.zeros(0, np.int64)

    def of_next(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the next rows, which have these numbers in the index: the place at which their unit begins, and the epoch."""
        near = np.concatenate([self._before, numbers])
        begins = begins_unit(self._index.units_at(near), near)[len(self._before) :]
        places = np.where(begins, self._place + np.arange(len(numbers)), self._began)
        starts = np.maximum.accumulate(places)
        self._place += len(numbers)
        self._began, self._before = int(starts[-1]), numbers[-1:]
        return (self._epoch << EPOCH_BITS) + starts


def next_unit(index: Index, rows: RowNumbers, place: int, count: int | None) -> int:
    """The first place from `place` on at which a unit begins, or the end of the epoch."""
    if not place or (count is not None and place >= count):
        return place if count is None else min(place, count)
    first, some = place - 1, FIRST_ROWS
    while count is None or first + 1 < count:
        last = first + some if count is None else min(first + some, count)
        numbers = rows(first, last)
        begins = np.flatnonzero(begins_unit(index.units_at(numbers), numbers)[1:])
        if len(begins):
            return first + 1 + int(begins[0])
        first, some = last - 1, 2 * some
    return count


def unit_begin(index: Index, rows: RowNumbers, place: int) -> int:
    """The place at which the unit of the sample at a place begins."""
    last, some = place + 1, FIRST_ROWS
    while True:
        first = max(0, last - some)
        numbers = rows(first, last)
        begins = begins_unit(index.units_at(numbers), numbers)
        begins[0] = not first
        if begins.any():
            return first + int(np.flatnonzero(begins)[-1])
        last, some = first + 1, 2 * some


class Reread:
    """A run of indexed data, where it is found out how far it must come again. `place`: how far it has come."""

    def __init__(self, stage: Indexed, epoch: int, place: int, run: Run) -> None:
        self._stage, self._epoch = stage, epoch
        self.place = self._until = place
        if run.replay is not None:
            run.replay.append(self)

    def reached(self) -> None:
        """As `core.replay.Replayed` says."""
        self._until = self.place

    def hold(self, parts: Collection[int]) -> tuple[str, int] | None:
        """As `core.replay.Replayed` says."""
        if not marked(self._stage):
            return None
        self._stage.held(self._epoch, self._epoch, self._until)
        return "sample", self._until


def marked(stage: Indexed) -> bool:
    """Whether the weights of a mixture are to change there."""
    return getattr(stage, "mark", None) is not None or any(map(marked, cast(tuple[Indexed, ...], stage.inputs)))


def cannot_change(stage: Indexed) -> StateError:
    """The error where a mixture lies below a stage that has its samples at other places."""
    return StateError(
        f"the weights of interleave_datasets cannot change below {verb_of(stage)}, which is indexed: a place in it does not say "
        "how far the mixture has come. End the epoch with the weights that the state was saved with. In a new run, call stream() "
        "on the mixture from the start: then its weights may change anywhere"
    )


class Source(Indexed):
    """Abstract: all samples of an index, as they are or shuffled as a whole."""

    @abstractmethod
    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        """The order of an epoch of an index: of ours, or of those rows of it that a filter keeps."""

    @property
    @abstractmethod
    def data(self) -> DataIndex:
        """What the user gave, where answers about the samples can be kept."""

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def pass_rows(self) -> int:
        return self.count

    def order(self, epoch: int) -> RowNumbers:
        return self.ordered(self.index, epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return np.arange, self.count

    def chosen(self, choice: Choice) -> Indexed:
        return ChooseSource(self, choice)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed:
        return some_of(self)


@dataclass(frozen=True)
class DerivedSource(Source):
    """Abstract: a source in the order, or shuffle, of another."""

    upstream: Source

    @property
    def in_index_order(self) -> bool:
        return self.upstream.in_index_order

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return self.upstream.ordered(index, epoch)

    @property
    def data(self) -> DataIndex:
        return self.upstream.data


@dataclass(frozen=True)
class Selected(DerivedSource):
    """Abstract: some samples of a source. A state is held against which those are."""

    @once
    def index(self) -> SelectedIndex:
        return SelectedIndex(self.upstream.index, self.kept)

    @property
    def counted(self) -> bool:
        return self.upstream.counted and "numbers" in vars(self.index)

    def settings(self) -> dict[str, Any]:
        return {**self.chosen_by(), "kept": self.count, "crc32": self.index.crc32}

    @abstractmethod
    def kept(self) -> NDArray[np.bool_]:
        """Which samples of the index below are kept, bool (n,)."""

    @abstractmethod
    def chosen_by(self) -> dict[str, Any]:
        """The parameters, as plain JSON."""


@dataclass(frozen=True)
class Reordered(Indexed):
    """Abstract: the samples of one other data set at other places."""

    upstream: Indexed

    @property
    def index(self) -> Index:
        return self.upstream.index

    def chosen(self, choice: Choice) -> Indexed:
        return with_inputs(self, self.upstream.chosen(choice))


@dataclass(frozen=True)
class Choose(Indexed):
    """The samples of indexed data with the columns of a choice."""

    upstream: Indexed
    choice: Choice

    def facts(self, *inputs: Facts) -> Facts:
        originals = partial(refuse_originals, self, *inputs)  # it works on columns
        return self.choice.of_facts(replace(super().facts(*inputs), originals=originals, seam="passes"), inputs[0])

    @property
    def verb(self) -> str:
        return self.choice.verb

    @once
    def index(self) -> ChosenIndex:
        return ChosenIndex(self.upstream.index, self.choice)

    @property
    def count(self) -> int | None:
        return self.upstream.count

    def count_in(self, epoch: int) -> int | None:
        return self.upstream.count_in(epoch)

    def edits(self, epoch: int) -> tuple[int, ...]:
        return self.upstream.edits(epoch)

    @property
    def last_edit(self) -> int:
        return self.upstream.last_edit

    def held(self, began: int, epoch: int, place: int) -> None:
        self.upstream.held(began, epoch, place)

    def order(self, epoch: int) -> RowNumbers:
        return self.upstream.order(epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()

    def settings(self) -> dict[str, Any]:
        return self.choice.settings()

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        return self.upstream.measured([self.index.kept.get(name, "") for name in columns], required)


@dataclass(frozen=True)
class ChooseSource(Choose, DerivedSource):
    """The samples of a source with the columns of a choice: a source again."""

    upstream: Source

    @property
    def count(self) -> int:
        return self.upstream.count


def over_epochs(stage: Indexed, epoch: int) -> RowNumbers:
    """The rows of an epoch, and from its end on those of the next ones: place p is place p mod count of epoch + p // count.

    Price: beside the rows, what beginning an epoch costs for each that is touched; two of them are kept.
    """
    if not stage.count:  # empty, or endless itself
        return stage.order(epoch)
    epochs = Epochs(stage, epoch)

    @lru_cache(maxsize=2)
    def begun(number: int) -> RowNumbers:
        return stage.order(number)

    def rows(first: int, last: int) -> NDArray[np.int64]:
        pieces = [np.zeros(0, dtype=np.int64)]
        while first < last:
            number, start, count = epochs.at(first)
            end = min(last, start + count)
            pieces.append(begun(number)(first - start, end - start))
            first = end
        return np.concatenate(pieces)

    return rows


class Epochs:
    """Where the epochs of what has an end lie, one after another from one of them on. Some may have another number of samples,
    where weights changed in them."""

    def __init__(self, stage: Indexed, first: int) -> None:
        assert stage.count
        self._first, self._count = first, stage.count
        self._starts = [0]
        for epoch in range(first, stage.last_edit + 1):
            self._starts.append(self._starts[-1] + (stage.count_in(epoch) or 0))

    def at(self, place: int) -> tuple[int, int, int]:
        """The epoch of a place, where that begins, and its number of samples."""
        regular = len(self._starts) - 1
        if place < self._starts[-1]:
            number = bisect_right(self._starts, place) - 1
            return self._first + number, self._starts[number], self._starts[number + 1] - self._starts[number]
        number = (place - self._starts[-1]) // self._count
        return self._first + regular + number, self._starts[-1] + number * self._count, self._count

    def start(self, epoch: int) -> int:
        """The place at which an epoch begins."""
        number, regular = epoch - self._first, len(self._starts) - 1
        return self._starts[min(number, regular)] + max(0, number - regular) * self._count


@dataclass(frozen=True)
class Repeat(Reordered):
    """Place p is place p mod count of epoch + p // count."""

    def facts(self, *inputs: Facts) -> Facts:
        return replace(super().facts(*inputs), ends=lambda: False)

    @property
    def count(self) -> None:
        return None

    def order(self, epoch: int) -> RowNumbers:
        if self.upstream.count == 0:
            raise DataError(
                f"{shown(self)}: there is no sample to repeat. The data are empty, or a filter leaves out every sample"
            )
        return over_epochs(self.upstream, epoch)

    def edits(self, epoch: int) -> tuple[int, ...]:
        if not self.upstream.count:
            return self.upstream.edits(epoch)
        epochs = Epochs(self.upstream, epoch)
        return tuple(
            epochs.start(number) + place
            for number in range(epoch, self.upstream.last_edit + 1)
            for place in self.upstream.edits(number)
        )

    def held(self, began: int, epoch: int, place: int) -> None:
        if self.upstream.count:
            epoch, start, _ = Epochs(self.upstream, epoch).at(place)
            place -= start
        self.upstream.held(began, epoch, place)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()
