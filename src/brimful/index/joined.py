"""Several data sets over one index, which has the rows of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.facts import Facts, refuse_originals, refuse_units, same_units, verb_of
from brimful.core.header import described
from brimful.core.stage import not_in_state, with_inputs
from brimful.index.index import Index, lengths_by_column
from brimful.index.indexed import Indexed, RowNumbers, Source, over_epochs
from brimful.plan.errors import MOST, DataError, StateError
from brimful.plan.mix import ENDLESS, Stop
from brimful.plan.once import once
from brimful.plan.schedule import Course, Schedule, Segment, check, segments_of, spans_of
from brimful.rows.mixing import MIXED, is_unchanged, keys_of, keys_saved, mixture_settings, weights_saved
from brimful.tables.blocks import Block, concat, visible
from brimful.tables.combine import beside, conformed, nulls_of, require_distinct, unequal
from brimful.tables.ragged import LABELS, REMEDIES, array_of, distinct, no_column
from brimful.tables.schema import united


@dataclass(frozen=True)
class Joined(Indexed):
    """Abstract: samples of several data sets. One index has the rows of all of them."""

    upstreams: tuple[Indexed, ...]

    def facts(self, *inputs: Facts) -> Facts:
        return replace(super().facts(*inputs), nulls=nulls_of(*inputs), units=same_units(self, inputs))

    @property
    def index(self) -> Index:
        return self._joined[0]

    @property
    def shifts(self) -> list[int]:
        """The number that is added to the row numbers of each data set."""
        return self._joined[1]

    @once
    def _joined(self) -> tuple[Index, list[int]]:
        """One index for all data sets, and the shifts. An index that several data sets share is in it once."""
        indexes = [upstream.index for upstream in self.upstreams]
        numbers: dict[int, int] = {}
        for number, index in enumerate(indexes):
            numbers.setdefault(id(index), number)
        unique = [indexes[number] for number in numbers.values()]
        if len(unique) == 1:
            return unique[0], [0] * len(indexes)
        whole = JoinedIndex(tuple(unique), verb_of(self), tuple(numbers.values()))
        starts = {id(index): int(start) for index, start in zip(unique, whole.starts)}
        return whole, [starts[id(index)] for index in indexes]


@dataclass(frozen=True, eq=False)
class JoinedIndex(Index):
    """The rows of the first, then those of the second, and so on.

    Args:
        what: the verb that joins them, for messages.
        numbers: the number of each part's data set among those that are joined, for messages.
    Price: what each of them costs; rows of several of them at once are copied once more.
    """

    parts: tuple[Index, ...]
    what: str
    numbers: tuple[int, ...]

    @once
    def starts(self) -> NDArray[np.int64]:
        """The number of the first row of each part, and of the row after the last."""
        return np.cumsum([0, *(len(part) for part in self.parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return np.concatenate([part.lengths(columns, required) for part in self.parts])

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        shape = (len(numbers), len(columns)) if len(columns) > 1 else (len(numbers),)
        out = np.zeros(shape, dtype=np.int64)
        for part, at, own in self._by_part(numbers):
            counts = self.parts[part].lengths_at(own, columns, required)
            out[at] = counts if counts.ndim == out.ndim else 0  # a part without the columns has zeros, (n,)
        return out

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        shares = list(self._by_part(numbers))
        if len(shares) == 1:
            part, _, own = shares[0]
            if self.parts[part].schema.equals(self.schema):
                return self.parts[part].locate(own)
        blocks: list[Block] = []
        out = np.empty(len(numbers), dtype=np.int64)
        start = 0
        for part, at, own in shares:
            block, rows = self.parts[part].locate(own)
            if block.num_rows > 2 * len(rows):  # rather than join all of a block in memory to others
                block, rows = block.take(array_of(rows)), np.arange(len(rows))
            out[at] = rows + start
            start += block.num_rows
            blocks.append(conformed(block, self.schema, self.what, self.numbers[part]))
        return concat(blocks), out

    @once
    def schema(self) -> pa.Schema:
        """The columns of all parts; of a sample of a part that has not one of them, it is null."""
        return united(((number, part.schema) for number, part in zip(self.numbers, self.parts)), self.what)

    @once
    def list_columns(self) -> Sequence[str]:
        return [
            name
            for name in self.schema.names
            if all(name in part.list_columns or name not in part.schema.names for part in self.parts)
        ]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        if any(part.num_labels_at(numbers[:0], column) is None for part in self.parts):
            return None
        out = np.zeros((3, len(numbers)), dtype=np.int64)
        for part, at, own in self._by_part(numbers):
            counts = self.parts[part].num_labels_at(own, column)
            assert counts is not None
            out[:, at] = counts
        return out

    def units_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty(len(numbers), dtype=np.int64)
        for part, at, own in self._by_part(numbers):
            out[at] = self.parts[part].units_at(own) + self.starts[part]
        return out

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        having = [number for number, part in enumerate(self.parts) if column in part.schema.names]
        if any(self.parts[part].values_at(numbers[:0], column) is None for part in having):
            return None
        out = np.full(len(numbers), np.nan)
        for part, at, own in self._by_part(numbers):
            if part in having:
                out[at] = self.parts[part].values_at(own, column)
        return out

    def _by_part(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Each part that has some of the rows, the places of these among `numbers`, and their numbers in the part."""
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        for part in distinct(owners).tolist():
            at = np.flatnonzero(owners == part)
            yield part, at, numbers[at] - self.starts[part]


@dataclass(frozen=True)
class Concat(Joined):
    """All samples of the first, then all of the second, and so on.

    Raises:
        ValueError: (when run) one before the last goes on without an end.
    """

    verb = "concat_datasets"

    @property
    def count(self) -> int | None:
        last = self.upstreams[-1].count
        return None if last is None else self._starts[-1] + last

    def order(self, epoch: int) -> RowNumbers:
        return self._in_turn([upstream.order(epoch) for upstream in self.upstreams], self._starts)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        parts = [one.selected(some_of) for one in self.upstreams]
        return None if None in parts else with_inputs(self, *(part for part in parts if part is not None))

    def unshuffled(self) -> tuple[RowNumbers, int]:
        orders, counts = zip(*(upstream.unshuffled() for upstream in self.upstreams))
        starts = np.cumsum([0, *counts]).tolist()
        return self._in_turn(list(orders), starts[:-1]), starts[-1]

    @once
    def _starts(self) -> list[int]:
        """The place at which each begins."""
        starts = [0]
        for number, upstream in enumerate(self.upstreams[:-1]):
            if upstream.count is None:
                raise ValueError(
                    f"data set {number} repeats without end, so that none after it is reached; repeat only the last"
                )
            starts.append(starts[-1] + upstream.count)
        return starts

    def _in_turn(self, orders: list[RowNumbers], starts: list[int]) -> RowNumbers:
        shifts = self.shifts

        def rows(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for number, start in enumerate(starts):
                end = min(last, starts[number + 1]) if number + 1 < len(starts) else last
                if max(first, start) < end:
                    pieces.append(orders[number](max(first, start) - start, end - start) + shifts[number])
            return np.concatenate(pieces)

        return rows


_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Interleave(Joined):
    """Samples of each in stratified order: the same ones, at the same places, as `rows.interleave` gives of unshuffled data.

    What begins again takes its next epoch. A position is a place in the mixture. Where weights change at a resume, the header
    keeps those of before: [epoch, place, weights], which hold up to there.

    Price: .5 ms a part that is asked for, whatever lies before it; 50 ns a sample.
    """

    verb = "interleave_datasets"

    weights: tuple[float, ...] | Schedule
    stop: Stop
    names: tuple[str, ...] = ()
    draws: int | None = not_in_state(None)
    """As of `rows.mixing.Interleave`."""
    before: tuple[WeightsUntil, ...] = not_in_state(())
    """The weights that held before those of this mixture, in order."""
    mark: Mark | None = not_in_state(None)
    """Where it is found out how far those of a state hold."""

    def __post_init__(self) -> None:
        check(len(self.upstreams), self.weights, self.stop)

    def settings(self) -> dict[str, Any]:
        before = [[one.epoch, one.place, described(one.weights)] for one in self.before]
        return mixture_settings(self, "by place") | ({"before": before} if before else {})

    def facts(self, *inputs: Facts) -> Facts:
        def ends() -> bool:
            if isinstance(self.weights, Schedule):
                return self.count is not None  # a data set whose weight becomes 0 may have an end that never comes
            return (any if self.stop == "first" else all)(one.ends() for one in inputs)

        found = super().facts(*inputs)
        draws = found.draws if self.draws is None else self.draws
        return replace(found, ends=ends, draws=draws, mixed_by=MIXED)

    def as_saved(self, entry: Mapping[str, Any]) -> Interleave:
        """As `core.replay.Mixture` says; so are the others."""
        keys = keys_of(self.names, len(self.upstreams))
        before = tuple(
            WeightsUntil(epoch, place, weights_saved({**entry, "weights": weights}, keys))
            for epoch, place, weights in entry.get("before", ())
        )
        draws = entry["draws"] if "draws" in entry and self.names else self.draws
        return self if (before, draws) == (self.before, self.draws) else replace(self, before=before, draws=draws)

    def before_edit(self, entry: Mapping[str, Any]) -> Interleave:
        if is_unchanged(self, entry):
            return self
        keys = keys_of(self.names, len(self.upstreams))
        if gone := [key for key in keys_saved(entry) if key not in keys]:
            raise StateError(
                f"interleave_datasets cannot leave out {gone[0]!r}: a place in an indexed mixture is counted with all that it "
                "was mixed of. Give it with a weight of 0 and allow={'weights'}. Or begin with stream(), which can leave sources "
                "out"
            )
        return replace(self, weights=weights_saved(entry, keys), mark=Mark())

    def after_edit(self, entry: Mapping[str, Any], before: Interleave) -> Interleave:
        if before.mark is None or before.mark.last is None:
            return self
        epoch, place = before.mark.last
        kept = [one for one in self.before if one.epoch >= before.mark.first]
        return replace(self, before=(*kept, WeightsUntil(epoch, place, before.weights)))

    def held(self, began: int, epoch: int, place: int) -> None:
        super().held(began, epoch, place)  # refuses mixtures below
        if self.mark is not None:
            count = self.count_in(epoch)
            here = (epoch, place) if count is None or place < count else (epoch + 1, 0)
            self.mark.first = min(began, self.mark.first)
            self.mark.last = max(here, self.mark.last or here)

    @once
    def count(self) -> int | None:
        return _count(self._course(segments_of(self.weights), 0))

    def count_in(self, epoch: int) -> int | None:
        return _count(self._course_in(epoch))

    def edits(self, epoch: int) -> tuple[int, ...]:
        return tuple(one.place for one in self.before if one.epoch == epoch and one.place)

    @property
    def last_edit(self) -> int:
        return max((one.epoch for one in self.before), default=-1)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return replace(self, before=()).unshuffled() if self.before else super().unshuffled()

    def order(self, epoch: int) -> RowNumbers:
        sources = [over_epochs(upstream, epoch) for upstream in self.upstreams]
        course, shifts = self._course_in(epoch), self.shifts
        last_end = 0, np.zeros(len(sources), dtype=np.int64)

        def rows(first: int, last: int) -> NDArray[np.int64]:
            nonlocal last_end
            end, served = last_end
            before = served if end == first else course.served(first)
            after = course.served(last)
            last_end = last, after
            spans = zip(sources, before.tolist(), after.tolist(), shifts, strict=True)
            flat = np.concatenate(
                [source(*span) + shift for source, *span, shift in spans if span[0] < span[1]] or [_NONE]
            )
            return flat[course.merged(first, last, before, after)]

        return rows

    def _course_in(self, epoch: int) -> Course:
        """An epoch, whose weights may have changed at some places."""
        found: tuple[Segment, ...] = ()
        kept = 0
        for one in self.before:
            if one.epoch == epoch and one.place:
                end = self._course((*found, *_segments(one.weights, kept)), kept).count_at(one.place)
                found, kept = (*found, *_segments(one.weights, kept, end)), end
            elif one.epoch > epoch:
                return self._course((*found, *_segments(one.weights, kept)), kept)
        return self._course((*found, *_segments(self.weights, kept)), kept)

    def _course(self, segments: tuple[Segment, ...], kept: int) -> Course:
        known = self._courses
        if (segments, kept) not in known:
            known[segments, kept] = Course([upstream.count for upstream in self.upstreams], segments, self.stop, kept)
        return known[segments, kept]

    @once
    def _courses(self) -> dict[tuple[tuple[Segment, ...], int], Course]:
        """Those that were asked for."""
        return {}


def _segments(weights: tuple[float, ...] | Schedule, begin: int, end: int = ENDLESS) -> tuple[Segment, ...]:
    return tuple(Segment(span.begin, span.weights) for span in spans_of(weights, begin, end))


def _count(course: Course) -> int | None:
    return None if len(course) >= ENDLESS else len(course)


class WeightsUntil(NamedTuple):
    """Weights that hold up to a place of an epoch."""

    epoch: int
    place: int
    weights: tuple[float, ...] | Schedule


@dataclass(eq=False)
class Mark:
    """How far a mixture must come again as it was: in which epoch that begins, and the epoch and place where it ends."""

    first: int = ENDLESS
    last: tuple[int, int] | None = None


@dataclass(frozen=True)
class Zip(Indexed):
    """Sample i has the columns of sample i of each.

    Those that are in the order of their index share a digit of the row number, each other one has a digit of its own.

    Raises:
        DataError: (when run) their numbers of samples differ, or two have a column of one name.
    """

    verb = "zip_datasets"

    upstreams: tuple[Indexed, ...]

    def facts(self, *inputs: Facts) -> Facts:
        for one in self.upstreams:
            refuse_units(one, "zip_datasets", "pairs rows one by one", "call units on the result of zip_datasets")
        return replace(
            super().facts(*inputs), originals=partial(refuse_originals, self, *inputs)
        )  # it works on columns

    @once
    def index(self) -> ZippedIndex:
        digits = [0 if one.in_index_order else number for number, one in enumerate(self.upstreams, 1)]
        known = sorted(set(digits))
        return ZippedIndex(
            tuple(upstream.index for upstream in self.upstreams), tuple(known.index(digit) for digit in digits)
        )

    @once
    def count(self) -> int | None:
        counts = [upstream.count for upstream in self.upstreams]
        for number, count in enumerate(counts[1:], 1):
            if count != counts[0]:
                raise unequal(0, _words(counts[0]), number, _words(count))
        return counts[0]

    @property
    def pass_rows(self) -> int:
        return max(one.pass_rows for one in self.upstreams)

    def order(self, epoch: int) -> RowNumbers:
        orders = [upstream.order(epoch) for upstream in self.upstreams]
        steps = self.index.steps
        firsts = [self.index.digits.index(digit) for digit in range(len(steps))]  # of those that share it any will do

        def rows(first: int, last: int) -> NDArray[np.int64]:
            out = np.zeros(last - first, dtype=np.int64)
            for number, step in zip(firsts, steps, strict=True):
                out += orders[number](first, last) * step
            return out

        return rows


@dataclass(frozen=True, eq=False)
class ZippedIndex(Index):
    """Rows of which each has the columns of a row of each part. A number has a digit for each part, or one for several whose
    rows have the same numbers; so there are as many numbers as there are combinations.

    Args:
        digits: which digit says the row of each part, from 0 on.
    Price: what each of the parts costs; rows are copied once.
    """

    parts: tuple[Index, ...]
    digits: tuple[int, ...]

    @once
    def bases(self) -> list[int]:
        """How many rows each digit tells apart."""
        return [
            max(len(part) for part, own in zip(self.parts, self.digits) if own == digit)
            for digit in range(max(self.digits) + 1)
        ]

    @once
    def steps(self) -> list[int]:
        """How much one more of each digit adds to the number.

        Raises:
            DataError: there are more combinations than numbers.
        """
        if prod(self.bases) > MOST:
            counts = ", ".join(f"{base:,}" for base in self.bases)
            raise DataError(
                f"zip_datasets: the orders of {counts} rows are shuffled or sliced apart, and have more than {MOST:,} "
                "combinations; shuffle and slice what zip_datasets gives instead"
            )
        return [prod(self.bases[:digit]) for digit in range(len(self.bases))]

    def __len__(self) -> int:
        return prod(self.bases)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        def lengths(column: str) -> NDArray[Any]:
            if column not in self._owners:
                raise no_column(column, self.schema.names, "zip_datasets", REMEDIES.get(column, ""))
            owner = self._owners[column]
            return self.parts[owner].lengths_at(self._rows(numbers, owner), (column,), required)

        return lengths_by_column(self, columns, required, len(numbers), lengths)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        blocks = [part.take(self._rows(numbers, number)) for number, part in enumerate(self.parts)]
        require_distinct([visible(block).schema for block in blocks])
        return beside(blocks), np.arange(len(numbers))

    @once
    def schema(self) -> pa.Schema:
        require_distinct([part.schema for part in self.parts])
        return pa.schema([field for part in self.parts for field in part.schema])

    @once
    def list_columns(self) -> Sequence[str]:
        return [name for part in self.parts for name in part.list_columns]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        owner = self._owners.get(column, 0)  # where none has labels, the first part says so
        return self.parts[owner].num_labels_at(self._rows(numbers, owner), column)

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        owner = self._owners[column]
        return self.parts[owner].values_at(self._rows(numbers, owner), column)

    @once
    def _owners(self) -> dict[str, int]:
        """The part that has each column."""
        return {name: number for number, part in enumerate(self.parts) for name in part.schema.names}

    def _rows(self, numbers: NDArray[np.int64], part: int) -> NDArray[np.int64]:
        """The rows of a part that some numbers stand for."""
        digit = self.digits[part]
        return numbers // self.steps[digit] % self.bases[digit]


def _words(count: int | None) -> str:
    return "no end" if count is None else f"{count:,} rows"
