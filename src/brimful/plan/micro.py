"""The micro batches of one optimizer step: how many, which items in each, and each one's rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .budget import ENDLESS
from .cut import cut_wide
from .dealing import (
    EXACT_ITEMS,
    SETTLED,
    FloatArray,
    Work,
    deal_greedily,
    exchanged,
    first_number,
    fitted,
    no_fewer,
    none_empty,
    part_sums,
    searched,
    summed,
)
from .plan import IntArray

_BY_RANK = 1 << 16
"""For so many items it is also tried to deal them to the ranks first, which takes as long again."""
_BISECTIONS = 12
_ALIKE = 1.002
"""Times the lower bound: micro batches need no more, where a rank has several, since ranks are evened out after that."""


@dataclass(frozen=True, eq=False)
class StepWork:
    """What an optimizer step is made of: items, each a sample or a unit of samples, and the rules for micro batches.

    Args:
        costs: of each item, (n,). Where a size is padded: of its dearest sample.
        sizes: (n, d). Of a unit the sum; where a size is padded the greatest.
        limits: the most of a micro batch, (d,).
        padded: which sizes count as samples x the greatest, (d,). A micro batch then costs samples x its dearest one.
        rows: the samples of each item, (n,).
        num_ranks, multiple_of, same_count: as for `steps`.
        owners: the unit of each item, (n,) rising, which one rank has; None where each is by itself.
        least: the fewest micro batches.
    """

    costs: FloatArray
    sizes: IntArray
    limits: IntArray
    padded: NDArray[np.bool_]
    rows: IntArray
    num_ranks: int
    multiple_of: int = 1
    same_count: bool = True
    owners: IntArray | None = None
    least: int = 1

    @cached_property
    def pads(self) -> bool:
        return bool(self.padded.any())

    @cached_property
    def stride(self) -> int:
        """The number of micro batches is a multiple of it."""
        return self.multiple_of * (self.num_ranks if self.same_count else 1)

    def work(self, num_parts: int) -> Work:
        return Work(self.costs, self.sizes, self.limits, num_parts)

    def of(self, items: IntArray) -> StepWork:
        """The same for some of the items, on one rank."""
        own = replace(self, costs=self.costs[items], sizes=self.sizes[items], rows=self.rows[items], owners=None)
        return replace(own, num_ranks=1)

    def part_costs(self, part_of: IntArray, num_parts: int) -> FloatArray:
        if not self.pads:
            return part_sums(part_of, self.costs, num_parts)
        dearest = np.zeros(num_parts)
        np.maximum.at(dearest, part_of, self.costs)
        return dearest * part_sums(part_of, self.rows, num_parts)

    def rank_costs(self, part_of: IntArray, rank_of: IntArray) -> FloatArray:
        return part_sums(rank_of, self.part_costs(part_of, len(rank_of)), self.num_ranks)

    @cached_property
    def bound(self) -> float:
        """No way has a dearest rank that costs less."""
        costs = self.costs * self.rows if self.pads else self.costs
        owned = costs if self.owners is None else np.bincount(self.owners, costs)
        return max(float(costs.sum()) / self.num_ranks, float(owned.max(initial=0.0)))

    def ranks(self, num_parts: int) -> IntArray:
        """The rank of each micro batch, (num_parts,) rising."""
        return np.repeat(np.arange(self.num_ranks), self.counts(num_parts))

    def counts(self, num_parts: int) -> IntArray:
        """How many micro batches each rank has, falling, (num_ranks,)."""
        rounds, more = divmod(num_parts // self.multiple_of, self.num_ranks)
        return self.multiple_of * (rounds + (np.arange(self.num_ranks) < more))


def micro_batches_of(step: StepWork) -> tuple[IntArray, IntArray]:
    """The micro batch of each item, (n,), and the rank of each micro batch, (m,) rising. Those of a rank stand dearest first.

    There are as few as can be found. A micro batch is empty only where there are fewer items, or where its rank has.
    """
    low = max(-(-_no_fewer(step) // step.stride), -(-step.least // step.stride))
    ways: dict[int, IntArray] = {}  # the rank of each, where it was found along with them

    def find(number: int) -> IntArray | None:
        part_of = None if step.owners is not None else _parts(step, number * step.stride)
        if part_of is None:
            found = None if step.owners is None else _by_rank(step, number * step.stride)
            if found is None and (step.owners is not None or step.pads):
                found = _of_all(step, step.ranks(number * step.stride), None)
            if found is not None:
                part_of, ways[number] = found
        return part_of

    def enough() -> int:
        if step.owners is None:
            return -(-int(_fewest(step).max(initial=0) + 1) // step.stride)
        more = 1
        while find(low + more) is None:
            more *= 2
        return low + more

    number, part_of = first_number(low, enough, find, len(step.costs))
    rank_of = ways.get(number)
    if rank_of is None:
        part_of, rank_of = _dealt(step, part_of, number * step.stride)
    part_of, rank_of = _of_all(step, rank_of, part_of) or (part_of, rank_of)
    part_of = _none_empty(step, part_of, rank_of)
    sizes = np.bincount(part_of, minlength=len(rank_of))
    order = np.lexsort((sizes == 0, -step.part_costs(part_of, len(rank_of)), rank_of))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[part_of], rank_of[order]


def _no_fewer(step: StepWork) -> int:
    """So many micro batches, at least, are needed. What is padded has no fewer slots than tokens."""
    return no_fewer(np.where(step.padded, step.sizes * step.rows[:, None], step.sizes), step.limits)


def _fewest(step: StepWork) -> IntArray:
    """The micro batch of each item, few of them."""
    return _cut(step, np.inf)[0] if step.pads else fitted(step.work(1))


def _parts(step: StepWork, number: int) -> IntArray | None:
    """The micro batch of each item, of so many; None where no way was found that keeps the limits."""
    if step.pads:
        return _evenly_cut(step, number)
    return summed(step.work(number), SETTLED if number <= step.num_ranks else _ALIKE)


def _cut(step: StepWork, most: float) -> tuple[IntArray, IntArray, IntArray]:
    """Micro batches of like sizes, each as large as may be at a cost of at most `most`: that of each item, their order, and where
    each begins in it."""
    shares = (step.sizes[:, step.padded] / step.limits[step.padded]).max(axis=1)
    order = np.lexsort((-step.costs, -shares))
    limits = step.limits[step.padded].tolist()

    def rows(widths: tuple[float, ...]) -> int:
        *lengths, cost = widths
        found = [limit // length for limit, length in zip(limits, lengths) if length]
        return int(min([*found, most * (1 + 1e-9) // cost if cost and most < np.inf else ENDLESS, ENDLESS]))

    wide = np.column_stack([step.sizes[:, step.padded], step.costs])[order]
    totals = step.sizes[order][:, ~step.padded]
    starts = cut_wide(wide, rows, totals, step.limits[~step.padded].tolist(), step.rows[order])
    part_of = np.empty(len(order), np.int64)
    part_of[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    return part_of, order, starts


def _evenly_cut(step: StepWork, number: int) -> IntArray | None:
    """The same in exactly so many micro batches, if there are enough items. The dearest costs about as little as may be."""
    best = _cut(step, np.inf)
    if len(best[2]) > number:
        return None
    low = float((step.costs * step.rows).max(initial=0.0))
    high = float(step.part_costs(best[0], number).max(initial=0.0))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        found = _cut(step, max(middle, low))
        if len(found[2]) > number:
            low = middle
        else:
            best, high = found, middle
    part_of, order, starts = best
    ends = np.append(starts[1:], len(order))
    costs = step.part_costs(part_of, len(starts)).tolist()
    heap = [(-cost, begin, end) for cost, begin, end in zip(costs, starts.tolist(), ends.tolist()) if end - begin > 1]
    heapify(heap)
    count = len(starts)
    while heap and count < number:  # the dearest is halved
        _, begin, end = heappop(heap)
        middle = (begin + end) // 2
        part_of[order[middle:end]] = count
        count += 1
        for first, last in ((begin, middle), (middle, end)):
            if last - first > 1:
                own = order[first:last]
                heappush(heap, (-float(step.costs[own].max() * step.rows[own].sum()), first, last))
    return part_of


def _dealt(step: StepWork, part_of: IntArray, number: int) -> tuple[IntArray, IntArray]:
    """The micro batch of each item, of so many, and the rank of each: ranks of equal cost."""
    costs = step.part_costs(part_of, number)
    dearest = np.argsort(-costs, kind="stable")
    even = number - number % (step.num_ranks * step.multiple_of)
    rank_of = np.empty(number, np.int64)
    rank_of[dearest[:even]] = deal_greedily(costs[dearest[:even]], step.num_ranks)
    if rest := number - even:
        done = part_sums(rank_of[dearest[:even]], costs[dearest[:even]], step.num_ranks)
        ranks = np.argsort(done, kind="stable")[: rest // step.multiple_of]
        rank_of[dearest[even:]] = ranks[deal_greedily(costs[dearest[even:]], len(ranks))]
    if step.num_ranks == 1:
        return part_of, rank_of
    whole = Work(costs, np.zeros((number, 0), np.int64), step.limits[:0], step.num_ranks, equal_count=True)
    rank_of = exchanged(whole, rank_of)
    if not step.pads:
        part_of = exchanged(step.work(number), part_of, rank_of)
    dearest_rank = step.rank_costs(part_of, rank_of).max()
    if dearest_rank > step.bound * SETTLED and len(step.costs) <= _BY_RANK and number > step.num_ranks:
        other = _by_rank(step, number)
        if other and step.rank_costs(*other).max() < dearest_rank:
            sizes = np.bincount(other[0], minlength=number)
            if sizes.all() or len(step.costs) < number:
                return other
    return part_of, rank_of


def _by_rank(step: StepWork, number: int) -> tuple[IntArray, IntArray] | None:
    """The same, of which units are dealt to the ranks first, and each rank cuts its own; None where a rank does not keep to its
    number of micro batches."""
    owners = np.arange(len(step.costs)) if step.owners is None else step.owners
    count = int(owners.max(initial=-1) + 1)
    counts = step.counts(number)
    columns = [] if step.pads else [*step.sizes.T]
    sizes = np.stack([np.bincount(owners, own, count) for own in columns], axis=1) if columns else np.zeros((count, 0))
    limits = step.limits[: len(columns)] * counts.max()
    costs = part_sums(owners, step.costs * step.rows if step.pads else step.costs, count)
    by_cost = Work(costs, sizes.astype(np.int64), limits, step.num_ranks)
    if (by_cost.sizes > limits).any():
        return None
    by_share = replace(by_cost, costs=by_cost.shares())
    for work in (by_cost, by_share) if columns and (by_share.costs != costs).any() else (by_cost,):
        rank_of = summed(work)
        if rank_of is None:
            continue
        fullest = np.argsort(
            -part_sums(rank_of, work.shares() if columns else work.costs, step.num_ranks), kind="stable"
        )
        owner_rank = np.argsort(fullest, kind="stable")[rank_of]
        own_rank = owner_rank[owners]
        part_of = np.empty(len(owners), np.int64)
        order = np.argsort(own_rank, kind="stable")
        bounds = np.searchsorted(own_rank[order], np.arange(step.num_ranks + 1)).tolist()
        for rank, (first, own_count) in enumerate(zip((np.cumsum(counts) - counts).tolist(), counts.tolist())):
            items = order[bounds[rank] : bounds[rank + 1]]
            found = _parts(step.of(items), own_count)
            if found is None:
                break
            part_of[items] = first + found
        else:
            return part_of, step.ranks(number)
    return None


def _of_all(step: StepWork, rank_of: IntArray, part_of: IntArray | None) -> tuple[IntArray, IntArray] | None:
    """The best of all ways for a few items; None for many, and where `part_of` is as good."""
    if len(step.costs) > EXACT_ITEMS or (step.num_ranks == 1 and part_of is not None and not step.pads):
        return None
    least = np.inf if part_of is None else float(step.rank_costs(part_of, rank_of).max())
    if part_of is not None and least <= step.bound * SETTLED:
        return None
    found = searched(
        step.work(len(rank_of)),
        rank_of,
        least,
        None,
        most=len(step.costs),
        owners=step.owners,
        padded=step.padded,
        rows=step.rows,
    )
    if found is None or step.pads:
        return None if found is None else (found, rank_of)
    for rank in range(step.num_ranks):  # even in itself
        parts = np.flatnonzero(rank_of == rank)
        items = np.flatnonzero(rank_of[found] == rank)
        if len(parts) > 1 and (own := _parts(step.of(items), len(parts))) is not None:
            found[items] = parts[own]
    return found, rank_of


def _none_empty(step: StepWork, part_of: IntArray, rank_of: IntArray) -> IntArray:
    """The same with an item in each micro batch of a rank, where it has enough."""
    empty = np.bincount(part_of, minlength=len(rank_of)) == 0
    if not empty.any() or (step.owners is None and not step.pads):
        return part_of
    part_of = part_of.copy()
    for rank in np.unique(rank_of[empty]).tolist():
        parts, items = np.flatnonzero(rank_of == rank), np.flatnonzero(rank_of[part_of] == rank)
        own = none_empty(step.work(0).of(items, len(parts)), np.searchsorted(parts, part_of[items]))
        part_of[items] = parts[own]
    return part_of
