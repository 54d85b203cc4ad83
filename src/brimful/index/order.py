"""Other orders of the same rows: slices, strides, shuffles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from brimful.core.facts import Facts, facts_of, refuse_units, rng_slot
from brimful.core.stage import with_inputs
from brimful.index.index import Index, RowSet
from brimful.index.indexed import SPAN, Indexed, Reordered, RowNumbers, Source, next_unit, unit_begin
from brimful.plan import random
from brimful.plan.errors import check_count, integer
from brimful.plan.once import once
from brimful.plan.units import permuted
from brimful.plan.window import rest_rows
from brimful.rows.counting import checked
from brimful.rows.units import parts_unit
from brimful.tables.units import begins_unit

RUN_ROWS: Final = 64
WINDOW_RUNS: Final = 2048
PLAIN_ROWS: Final = 16_384
"""Rows of a window where nothing is shuffled."""


@dataclass(frozen=True)
class Order:
    """Rows 0 to count - 1 in the order of one epoch: shuffled by `key`, or (None) as they are.

    Up to 196,608 rows are one window, that is, any order is as likely as any other.

    Price: about 100 ns a row of the shuffle windows (131,072 rows) that are touched; two of them are kept.

    >>> order = Order(1_000_000, key=3)
    >>> np.array_equal(order.rows(10, 20)[5:], order.rows(15, 20))
    True
    >>> Order(5, key=None).rows(1, 3).tolist()
    [1, 2]
    """

    count: int
    key: int | None
    _kept: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows at the places `first` to `last - 1`, int64 (last - first,)."""
        assert 0 <= first <= last <= self.count
        if self.key is None:
            return np.arange(first, last)
        if self._num_windows == 1:
            return self._window(0)[first:last]
        starts = self._starts
        touched = range(self._window_of(starts, first), self._window_of(starts, last - 1) + 1)
        pieces = [self._window(number)[max(0, first - starts[number]) : last - starts[number]] for number in touched]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def windows(self, first: int, last: int) -> range:
        """The windows that hold the places `first` to `last - 1`, and the one after them."""
        if self.key is None:
            return range(first // PLAIN_ROWS, min(-(-last // PLAIN_ROWS) + 1, -(-self.count // PLAIN_ROWS)))
        starts = self._starts
        return range(self._window_of(starts, first), min(self._window_of(starts, last - 1) + 2, self._num_windows))

    def window(self, number: int) -> tuple[int, Callable[[], NDArray[np.int64]]]:
        """How many rows a window has, and a function that gives them, in any order."""
        if self.key is None:
            first, last = number * PLAIN_ROWS, min(self.count, (number + 1) * PLAIN_ROWS)
            return last - first, partial(np.arange, first, last)
        starts = [*self._starts.tolist(), self.count]
        return starts[number + 1] - starts[number], partial(self._window, number)

    def _window(self, number: int) -> NDArray[np.int64]:
        """The rows of one shuffle window."""
        if number not in self._kept:
            while len(self._kept) > 1:
                self._kept.pop(next(iter(self._kept)))
            last = number == self._num_windows - 1
            places = np.arange(number * WINDOW_RUNS, self._num_runs if last else (number + 1) * WINDOW_RUNS)
            firsts = self._runs(places) * RUN_ROWS - self._shift
            rows = (firsts[:, None] + np.arange(RUN_ROWS)).ravel()
            if firsts.min() < 0 or firsts.max() + RUN_ROWS > self.count:
                rows = rows[(rows >= 0) & (rows < self.count)]
            self._kept[number] = rows.take(random.permutation(len(rows), random.key(self._key, 1, number)))
        return self._kept[number]

    @property
    def _key(self) -> int:
        assert self.key is not None
        return self.key

    @property
    def _shift(self) -> int:
        """How many rows the grid of runs begins before row 0."""
        return random.key(self._key, 2) % RUN_ROWS

    @property
    def _num_runs(self) -> int:
        return -(-(self.count + self._shift) // RUN_ROWS)

    @property
    def _num_windows(self) -> int:
        """A last window shorter than half joins the one before it."""
        return max(1, (self._num_runs + WINDOW_RUNS // 2) // WINDOW_RUNS)

    @once
    def _runs(self) -> random.KeyedPermutation:
        return random.KeyedPermutation(self._num_runs, random.key(self._key, 0))

    @once
    def _starts(self) -> NDArray[np.int64]:
        """The place of each window's first row: every run has 64 rows but the first and the last of the grid."""
        starts = np.arange(self._num_windows) * WINDOW_RUNS * RUN_ROWS
        ends = np.array([0, self._num_runs - 1])
        missing = np.array([self._shift, self._num_runs * RUN_ROWS - self._shift - self.count])
        for at, rows in zip(self._runs.inverse(ends).tolist(), missing.tolist(), strict=True):
            starts[at // WINDOW_RUNS + 1 :] -= rows
        return starts

    @staticmethod
    def _window_of(starts: NDArray[np.int64], place: int) -> int:
        return max(0, int(np.searchsorted(starts, place, side="right")) - 1)


def announced(order: Order, index: Index) -> RowNumbers:
    """The rows of an order. The index is told of those that are shuffled among one another, and of what follows them."""
    if not index.prefetches:
        return order.rows

    def rows(first: int, last: int) -> NDArray[np.int64]:
        windows = order.windows(first, last)
        index.prefetch_hint([RowSet((order.count, order.key, number), *order.window(number)) for number in windows])
        return order.rows(first, last)

    return rows


@dataclass(frozen=True)
class Slice(Reordered):
    """The samples at the places `range(first, last, step)`; `last` None: to the end.

    Args:
        method: what the user wrote.
        parameters: what the user gave it.
        words: what is shown for it; None: the method.
    Price: nothing for what `skip` leaves out; up to 100 ns for each sample that `stride` passes over.
    """

    method: Literal["take", "skip", "stride"]
    parameters: dict[str, int] = field(compare=False)
    first: int
    last: int | None
    step: int
    words: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.step > 1:
            refuse_units(self.upstream, "stride", "takes samples one by one")

    @classmethod
    def between(cls, upstream: Indexed, first: int, last: int, step: int) -> Slice:
        """The samples of `dataset[first:last:step]`, shown as that."""
        words = f"[{first}:{last}]" if step == 1 else f"[{first}:{last}:{step}]"
        taken = replace(cls.take(upstream, last), words="")
        return replace(cls.stride(replace(cls.skip(taken, first), words=""), step, 0), words=words)

    @classmethod
    def take(cls, upstream: Indexed, n: int) -> Slice:
        """The first `n` samples."""
        n = integer("n", n, 0, "samples")
        return cls(upstream, "take", {"n": n}, 0, n, 1)

    @classmethod
    def skip(cls, upstream: Indexed, n: int) -> Slice:
        """The samples after the first `n`."""
        n = integer("n", n, 0, "samples")
        return cls(upstream, "skip", {"n": n}, n, None, 1)

    @classmethod
    def stride(cls, upstream: Indexed, interval: int, offset: int) -> Slice:
        """Sample i where i mod `interval` == `offset`."""
        interval, offset = checked(interval, offset)
        return cls(upstream, "stride", {"interval": interval, "offset": offset}, offset, None, interval)

    @property
    def verb(self) -> str:
        return self.method

    @property
    def label(self) -> str:
        return self.method if self.words is None else self.words

    def settings(self) -> dict[str, int]:
        return self.parameters

    def facts(self, *inputs: Facts) -> Facts:
        return replace(super().facts(*inputs), ends=lambda: self.last is not None or inputs[0].ends())

    @property
    def count(self) -> int | None:
        return self._count(self.upstream.count)

    def _count(self, below: int | None) -> int | None:
        ends = [end for end in (below, self.last) if end is not None]
        return len(range(self.first, min(ends), self.step)) if ends else None

    def count_in(self, epoch: int) -> int | None:
        return self._count(self.upstream.count_in(epoch))

    def edits(self, epoch: int) -> tuple[int, ...]:
        return tuple(max(0, -(-(place - self.first) // self.step)) for place in self.upstream.edits(epoch))

    @property
    def last_edit(self) -> int:
        return self.upstream.last_edit

    def held(self, began: int, epoch: int, place: int) -> None:
        self.upstream.held(began, epoch, self.first + place * self.step)

    def order(self, epoch: int) -> RowNumbers:
        rows, origin, step = self.upstream.order(epoch), self.first, self.step
        if facts_of(self).units is not None:
            self._refuse_parts(rows, self.upstream.count_in(epoch))
        some = max(1, SPAN // step)  # at a time, so that memory does not grow with the step

        def part(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for begin in range(first, last, some):
                start, end = (origin + place * step for place in (begin, min(begin + some, last) - 1))
                pieces.append(rows(start, end + 1)[::step])
            return np.concatenate(pieces)

        return part

    def _refuse_parts(self, rows: RowNumbers, count: int | None) -> None:
        """Refuses to begin or end inside a unit.

        Raises:
            DataError: with the numbers that would not.
        """
        for verb, place in (("skip", self.first), ("take", self.last)):
            if place is not None and place > 0 and (count is None or place < count):
                begin = unit_begin(self.index, rows, place)
                if begin < place:
                    end = next_unit(self.index, rows, place, count)
                    remedy = (
                        f"The unit has the samples {begin:,} to {end - 1:,}: {verb}({begin}) or {verb}({end}) would do"
                    )
                    if facts_of(self).draws:
                        remedy += f" in this epoch. A shuffle gives each epoch another order: {verb} before it"
                    raise parts_unit(self, f"{verb}({place})", f"sample {place:,}", remedy)


@dataclass(frozen=True)
class Shuffle(Reordered):
    """The samples of each window of `buffer_size` in a random order, another one each epoch; a last window shorter than
    half joins the one before it. Units move as a whole: a window begins with the first that begins in it.

    Price: 20 ns a sample of the windows touched; two of them are kept.
    """

    buffer_size: int
    seed: int

    def __post_init__(self) -> None:
        check_count(self, "buffer_size", 1, "sample")
        check_count(self, "seed", None)

    def facts(self, *inputs: Facts) -> Facts:
        mixed_by = "shuffle moves each row by itself. Call units before it, which moves whole units then"
        return replace(super().facts(*inputs), draws=inputs[0].draws + 1, mixed_by=mixed_by)

    @property
    def count(self) -> int | None:
        return self.upstream.count

    def order(self, epoch: int) -> RowNumbers:
        below, count, size = self.upstream.order(epoch), self.count, self.buffer_size
        at = rng_slot(self)
        most = None if count is None else max(0, count // size - (count % size < rest_rows(size)))  # the last window

        index, keeps = self.index, facts_of(self).units is not None

        @lru_cache(maxsize=4)
        def begin(number: int) -> int:
            return next_unit(index, below, number * size, count) if keeps else number * size

        def number_of(place: int) -> int:
            number = place // size if most is None else min(place // size, most)
            while begin(number) > place:
                number -= 1
            return number

        @lru_cache(maxsize=2)
        def window(number: int) -> NDArray[np.int64]:
            end = begin(number + 1) if number != most or count is None else count
            rows = below(begin(number), end)
            units = np.cumsum(begins_unit(index.units_at(rows), rows), dtype=np.int64) if keeps else None
            return rows[permuted(units, len(rows), random.key(self.seed, at, epoch, number))]

        def rows(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            if first < last:
                for number in range(number_of(first), number_of(last - 1) + 1):
                    pieces.append(window(number)[max(0, first - begin(number)) : last - begin(number)])
            return np.concatenate(pieces)

        return rows

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        below = self.upstream.selected(some_of)
        return None if below is None else with_inputs(self, below)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()
