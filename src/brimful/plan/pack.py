"""Packing: many samples in one row, so that next to nothing is padded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heapreplace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .budget import as_limits
from .costs import SampleCost, sample_cost, sample_costs
from .cut import ascending, distinct, longest_first
from .errors import check_count
from .overlong import refuse_beyond, refuse_overlong, refuse_sums
from .plan import IntArray, Plan, as_lengths, longest_of_each, one_length
from .units import units_of


@dataclass(frozen=True)
class Packed:
    """Rows of exactly `row_length` tokens, filled by best-fit decreasing. `batches` has one entry a row.

    Samples are placed longest first (ties by number). A sample goes to the row with the least room that holds it. If there
    are several, it goes to the one that came to that room last. If no row holds it, it opens a new row. Rows stand in the
    order in which they were opened. The samples of a row stand longest first. An empty sample takes 1 slot. `padded_sizes`
    are 1.

    With a `cost`, the rows need similar work. Each of the longest samples goes to the row that costs least so far. The
    rest is placed by best fit. There are at most a thousandth more rows.

    With `row_limits`, a row holds no more of other sizes either, nor more "samples". Each sample goes to the row in which it
    leaves the least room, the one with the greatest share of a limit first. `plan` then takes an array (n, 1 + k): the tokens of
    each sample, then its other sizes in the order of their limits.

    Args:
        row_length: tokens in a row.
        cost: the cost of one sample, as for `balance`.
        row_limits: the most of a row, by the names of k sizes; of "samples" their number.
    Raises:
        ValueError: row_length, or a limit, is below 1. Or there are a cost and limits.
        TypeError: the cost cannot be called.
        OverlongError: (from `plan`) a sample is longer than a row (`split_long` makes it fit).
    Price: .4 s per million samples, 12 s with a cost. It wastes .3 % of the slots in windows of 1,000 samples of text,
        and .04 % in windows of 10,000.
    Source: best-fit decreasing (Johnson 1973): never more than 11/9 of the fewest rows, and a few.
    Example:
        >>> plan = Packed(10).plan([3, 7, 4, 6, 5])
        >>> [row.tolist() for row in plan.batches], round(plan.padding, 3)
        ([[1, 0], [3, 2], [4]], 0.167)
        >>> policies = Packed(10), Packed(10, cost=lambda length: length**2)
        >>> [[row.tolist() for row in policy.plan([6, 4, 4, 2, 2, 2]).batches] for policy in policies]
        [[[0, 1], [2, 3, 4, 5]], [[0, 4, 5], [1, 2, 3]]]
        >>> plan = Packed(10, row_limits={"num_patches": 8, "samples": 2}).plan([[5, 6], [3, 6], [2, 1], [2, 1], [1, 1]])
        >>> [row.tolist() for row in plan.batches]
        [[0, 2], [1, 3], [4]]
    """

    row_length: int
    cost: SampleCost | None = None
    row_limits: Mapping[str, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self, "row_length", 1, "token")
        if self.cost is not None:
            sample_cost("cost", self.cost)
        if self.row_limits is not None:
            object.__setattr__(self, "row_limits", as_limits("row_limits", self.row_limits))
            if self.cost is not None:
                raise ValueError("Packed places samples by their cost, or within row_limits: give one of them")

    @property
    def limited(self) -> tuple[str, ...]:
        """The names of the sizes that `plan` takes beside the tokens.

        Example:
            >>> Packed(10, row_limits={"num_patches": 8, "samples": 2}).limited
            ('num_patches',)
        """
        return tuple(name for name in self.row_limits or () if name != "samples")

    @property
    def max_length(self) -> int:
        """The length of a row.

        Example:
            >>> Packed(10).max_length
            10
        """
        return self.row_length

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Rows of `row_length` tokens.

        Example:
            >>> plan = Packed(10).plan([3, 7, 4])
            >>> [row.tolist() for row in plan.batches], plan.padded_lengths.tolist()
            ([[1, 0], [2]], [10, 10])
        """
        if self.row_limits is not None:
            return self._within(as_lengths(lengths), self.row_limits, units)
        lengths = one_length(lengths, "Packed")
        fits = lengths <= self.row_length
        limit, remedy = f"row_length={self.row_length:,}", "take longer rows"
        refuse_overlong(lengths, fits, max_length=self.row_length, limit=limit, remedy=remedy)
        slots, own = np.maximum(lengths, 1), None if units is None else units_of(units, len(lengths))
        costs = None if self.cost is None else sample_costs(slots, self.cost)
        if own is not None:
            slots, costs = own.sums(slots), None if costs is None else own.sums(costs)
            refuse_sums(own, slots[:, None], {"row_length": self.row_length})
        order = longest_first(lengths if own is None else slots)
        slots = slots[order]
        rows = best_fit(slots, self.row_length) if costs is None else even_fit(slots, self.row_length, costs[order])
        sizes = np.bincount(rows, weights=None if own is None else own.counts[order]).astype(np.int64)
        order = order[ascending(rows)]
        return Plan(
            numbers=order if own is None else own.samples(order),
            bounds=np.append(0, np.cumsum(sizes)),
            padded_lengths=np.full(len(sizes), self.row_length),
            padded_sizes=np.ones(len(sizes), np.int64),
            tokens=int(lengths.sum()),
        )

    def _within(self, sizes: IntArray, row_limits: Mapping[str, int], units: ArrayLike | None) -> Plan:
        """The rows that keep to all limits."""
        values = sizes[:, None] if sizes.ndim == 1 else sizes
        names = "tokens", *self.limited
        if values.shape[1] != len(names):
            raise ValueError(
                f"row_limits need {len(names)} sizes a sample, {', '.join(names)} (got shape {sizes.shape})"
            )
        limits = {"tokens": self.row_length} | {name: row_limits[name] for name in self.limited}
        refuse_beyond(values, values, limits, self.max_length)
        slots = np.maximum(values, [1] + [0] * len(self.limited))
        plan = rows_within(values, slots, limits, row_limits.get("samples"), units)
        padded = np.column_stack([np.full(len(plan), self.row_length), plan.padded_lengths[:, 1:]])
        return replace(
            plan,
            padded_lengths=padded if sizes.ndim == 2 else padded[:, 0],
            padded_sizes=np.ones(len(plan), np.int64),
            tokens=int(values[:, 0].sum()),
            num_padded=1,
        )


def rows_within(
    values: IntArray, sizes: IntArray, limits: Mapping[str, int], max_samples: int | None, units: ArrayLike | None
) -> Plan:
    """The samples of each row by `fit_sizes`, at most `max_samples`, with the greatest of their `values`. Those of one of the
    `units` are in one row.

    Raises:
        OverlongError: a unit exceeds a limit.
    """
    if max_samples is not None:
        sizes, limits = np.column_stack([sizes, np.ones(len(sizes), np.int64)]), {**limits, "samples": max_samples}
    most = [*limits.values()]
    if units is None:
        owners = fit_sizes(sizes, most)
    else:
        own = units_of(units, len(sizes))
        sums = own.sums(sizes)
        refuse_sums(own, sums, limits)
        owners = own.of_samples(fit_sizes(sums, most))
    order = np.argsort(owners, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(owners)))
    greatest = longest_of_each(values, order, bounds) if len(values) else values
    return Plan(order, bounds, greatest, np.diff(bounds), 0, num_padded=0)


def best_fit(lengths: IntArray, row_length: int, opened: Sequence[int] = ()) -> IntArray:
    """The row of each length, longest first; `opened`: the room left in rows that there are already.

    The row that took a sample has the least room for another of the same length, if it has any: so a row takes as many
    of them at once as it holds, and so do all rows with the same room.
    """
    rows_with: dict[int, list[int]] = {}
    for row, room in enumerate(opened):
        rows_with.setdefault(room, []).append(row)
    rooms = sorted(rows_with)  # distinct rooms left
    chosen: list[int] = []
    runs: list[int] = []  # what each row takes, and how many rows
    num_rows = len(opened)
    values, counts = distinct(lengths)
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while count:
            at = bisect_left(rooms, length)
            room = rooms[at] if at < len(rooms) else row_length
            take = min(count, room // length)
            size = count // take
            if at == len(rooms):
                rows = list(range(num_rows, num_rows + size))
                num_rows += size
            elif len(alike := rows_with[room]) > size:
                rows = alike[: -size - 1 : -1]
                del alike[-size:]
            else:
                rows, size = alike[::-1], len(alike)
                del rooms[at], rows_with[room]
            count -= take * size
            chosen += rows
            runs += take, size
            if room := room - take * length:
                if room in rows_with:
                    rows_with[room] += rows
                else:
                    rows_with[room] = rows
                    insort(rooms, room)
    takes, sizes = np.array(runs, np.int64).reshape(-1, 2).T
    return np.repeat(np.array(chosen, np.int64), np.repeat(takes, sizes))


def fit_sizes(sizes: IntArray, limits: Sequence[int]) -> IntArray:
    """The row of each sample of several sizes (n, d), within limits: by best fit, the greatest share of a limit first.

    A sample goes to the row in which it leaves the least room: the sum of what is left, as shares of the limits.

    Price: 20 us a sample in 1,000 rows.
    Source: best-fit decreasing for vectors (Panigrahy et al. 2011, "Heuristics for Vector Bin Packing").
    """
    shares = sizes / np.array(limits)
    order = np.argsort(-shares.max(axis=1, initial=0), kind="stable")
    rooms = np.empty((len(sizes), len(limits)), np.int64)
    left = np.empty(len(sizes))
    rows = np.empty(len(sizes), np.int64)
    count = first = 0  # rows before `first` are full
    for sample in order.tolist():
        size = sizes[sample]
        fits = np.flatnonzero((rooms[first:count] >= size).all(axis=1))
        if len(fits):
            row = first + int(fits[np.argmin(left[first:count][fits])])
        else:
            row, count = count, count + 1
            rooms[row], left[row] = limits, len(limits)
        rows[sample] = row
        rooms[row] -= size
        left[row] -= shares[sample].sum()
        while first < count and not rooms[first].all():
            first += 1
    return rows


def even_fit(lengths: IntArray, row_length: int, costs: NDArray[np.float64]) -> IntArray:
    """The row of each length, longest first, so that rows cost alike: the longest samples are dealt by cost, the rest is fitted
    in. Bisection finds how many can be dealt, to a 64th, for rows to be at most a thousandth more than by best fit."""
    found = best_fit(lengths, row_length)
    most = int(found.max(initial=-1) + 1) * 1_001 // 1_000
    low, high, dealt = 0, len(lengths), len(lengths)
    while high - low > len(lengths) // 64:
        rows, rooms = _dealt(lengths[:dealt], row_length, costs, most)
        rows = np.concatenate([rows, best_fit(lengths[len(rows) :], row_length, rooms)])
        if rows.max() < most:
            found, low = rows, dealt
        else:
            high = dealt - 1
        dealt = (low + high + 1) // 2
    return np.unique(found, return_inverse=True)[1]


def _dealt(lengths: IntArray, row_length: int, costs: NDArray[np.float64], num_rows: int) -> tuple[IntArray, list[int]]:
    """The row of each length, to that which costs least of those that had room for all that they were to take, until none has;
    and the room that is left in each row."""
    least = [(0.0, row) for row in range(num_rows)]
    rooms = [row_length] * num_rows
    rows: list[int] = []
    for length, cost in zip(lengths.tolist(), costs.tolist(), strict=False):
        while least and rooms[least[0][1]] < length:
            heappop(least)
        if not least:
            break
        done, row = least[0]
        rows.append(row)
        rooms[row] -= length
        heapreplace(least, (done + cost, row))
    return np.array(rows, np.int64), rooms
