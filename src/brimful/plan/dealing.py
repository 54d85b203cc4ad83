"""The engine of `balance`, `micro_batches` and `steps`: items dealt to parts within limits, so that the dearest part costs least.

An item is a sample, or a unit of samples. Parts cost the sum of their items; micro batches of padded samples are in `stepping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cut import ascending, cut_at, distinct, longest_first
from .pack import best_fit, fit_sizes
from .plan import IntArray

FloatArray = NDArray[np.float64]

SETTLED = 1.0002
"""Times the lower bound: nobody waits for less."""
EXACT_ITEMS = 12
"""All ways are searched for so few items."""
_OTHERS = 16
"""How many parts are tried for an exchange, cheapest first."""
_DIFFERENCED = 4_096
"""Largest differencing is tried for so many items: above it, longest first is as good."""
_FITTED = 4_096
"""So many items with several sizes are fitted together: more would take a time that grows with their square."""
_EXCHANGES = 1 << 24
"""Parts times exchanges: to look for one goes by all parts, and so long takes about a second."""
_PAIRS = 1 << 11
"""Each pair of so many is tried for an exchange; of more those that cost the right difference."""
_TRIED_IN_TURN = 1 << 15
"""Items times numbers of parts, up to which each number is tried."""


def deal_greedily(costs: FloatArray, num_parts: int) -> IntArray:
    """The part of each item, (n,): of each `num_parts` that follow one another, dearest first, the dearest goes to the part that
    has cost least so far.

    >>> deal_greedily(np.array([9.0, 5.0, 8.0, 1.0, 2.0]), 2).tolist()
    [0, 1, 1, 0, 0]
    """
    part_of = np.empty(len(costs), np.int64)
    done = np.zeros(min(num_parts, len(costs)))
    for start in range(0, len(costs), num_parts):
        turn = slice(start, start + num_parts)
        part_of[turn] = parts = np.argsort(done, kind="stable")[: len(costs[turn])]
        done[parts] += costs[turn]
    return part_of


def part_sums(part_of: IntArray, values: NDArray[Any], num_parts: int) -> FloatArray:
    """What the items of each part come to, (num_parts,). One after another, so that all machines find the same."""
    return np.bincount(part_of, values, num_parts).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be dealt: cost and sizes of each item, into how many parts, and the rules for a part.

    Args:
        costs: (n,).
        sizes: (n, d); d is 0 where there is no limit.
        limits: the most of a part, (d,).
        equal_count: each part has the same number of items.
    """

    costs: FloatArray
    sizes: IntArray
    limits: IntArray
    num_parts: int
    equal_count: bool = False

    @property
    def bound(self) -> float:
        """No way to deal has a dearest part that costs less."""
        return max(float(self.costs.sum()) / self.num_parts, float(self.costs.max(initial=0.0)))

    def loads(self, part_of: IntArray) -> FloatArray:
        return part_sums(part_of, self.costs, self.num_parts)

    def filled(self, part_of: IntArray) -> FloatArray:
        """What each part has of each size, (num_parts, d)."""
        sums = [part_sums(part_of, own, self.num_parts) for own in self.sizes.T]
        return np.stack(sums, axis=1) if sums else np.zeros((self.num_parts, 0))

    def keeps(self, part_of: IntArray) -> bool:
        """Whether no part exceeds a limit."""
        return all(part_sums(part_of, own, 0).max(initial=0) <= limit for own, limit in zip(self.sizes.T, self.limits))

    def of(self, items: IntArray, num_parts: int) -> Work:
        """The same for some of the items."""
        return replace(self, costs=self.costs[items], sizes=self.sizes[items], num_parts=num_parts)

    def shares(self) -> FloatArray:
        """The greatest share of a limit that each item takes; with one limit its size."""
        if len(self.limits) == 1:
            return self.sizes[:, 0].astype(np.float64)
        found: FloatArray = (self.sizes / self.limits).max(axis=1, initial=0.0)
        return found


def members(part_of: IntArray, values: IntArray, num_parts: int) -> list[IntArray]:
    """The items of each part, those with the greatest values first."""
    order = longest_first(values)
    sizes = np.bincount(part_of, minlength=num_parts)
    return cut_at(order[ascending(part_of[order])], np.cumsum(sizes) - sizes)


def no_fewer(sizes: IntArray, limits: IntArray) -> int:
    """So many parts, at least, are needed: each holds at most k items that are larger than a (k + 1)-th of a limit, and an item
    of j (k + 1)-ths and more takes j of these places (a dual feasible function; Fekete and Schepers 2001)."""
    most = 1
    for own, limit in zip(sizes.T, limits.tolist()):
        own, count = distinct(own)
        most = max(most, -(-int(own @ count) // limit))
        for k in range(1, 16):
            places = own * (k + 1)
            exact = (places % limit == 0) & (own > 0)
            taken = int((places // limit)[~exact] @ count[~exact]) * limit + int(own[exact] @ count[exact]) * k
            most = max(most, -(-taken // (k * limit)))
    return most


def _cheapest_first(costs: FloatArray, part_of: IntArray) -> IntArray:
    """The items, part after part."""
    order = np.argsort(costs, kind="stable")
    return order[ascending(part_of[order])]


def first_number(
    low: int, high: Callable[[], int], find: Callable[[int], IntArray | None], cost: int
) -> tuple[int, IntArray]:
    """The least number of parts from `low` on for which a way was found.

    A few numbers are tried one after another, since a way may be found for one and not for the next; more by bisection.

    Args:
        high: a number for which one is found, asked only where none is for `low`.
        cost: the items: how long a try takes.
    """
    found = find(low)
    if found is not None:
        return low, found
    best: tuple[int, IntArray] | None = None
    low, top = low + 1, max(high(), low + 1)
    while best is None or low < top:
        tried = low if (top - low) * cost <= _TRIED_IN_TURN else (low + top) // 2
        found = find(tried)
        if found is None:
            low = tried + 1
        else:
            best, top = (tried, found), tried
    return best


def summed(work: Work, settled: float = SETTLED) -> IntArray | None:
    """The part of each item; None where no way was found that keeps the limits.

    Args:
        settled: as good as the best, times the lower bound.
    """
    best: IntArray | None = None
    least = np.inf
    for start in _starts(work):
        part_of = exchanged(work, none_empty(work, start), settled=settled)
        dearest = work.loads(part_of).max(initial=0)
        if dearest < least:
            best, least = part_of, dearest
        if least <= work.bound * settled:
            break
    else:
        if len(work.costs) <= EXACT_ITEMS:
            best = _searched(work, least, best)
    return best


def _starts(work: Work) -> Iterator[IntArray]:
    """Ways to deal that keep the limits, to begin with."""
    ways, over = (_longest_first, _karmarkar_karp)[: 1 + (len(work.costs) <= _DIFFERENCED)], []
    for way in ways:
        part_of = way(work)
        if work.keeps(part_of):
            yield part_of
        else:
            over.append(part_of)
    if len(over) < len(ways):
        return
    by_share = replace(work, costs=work.shares(), sizes=work.sizes[:, :0], limits=work.limits[:0])
    if not np.array_equal(by_share.costs, work.costs):
        over = [way(by_share) for way in ways]
    for part_of in over:
        if (work.filled(part_of) > work.limits).any(axis=1).sum() > _exchanges(work.num_parts):
            continue  # each exchange relieves one part
        part_of = exchanged(by_share, none_empty(by_share, part_of))
        if work.keeps(part_of):
            yield part_of
            return
    if work.equal_count:
        return
    del by_share, over
    for limits in _tighter(work):
        part_of = fitted(replace(work, limits=limits))
        if part_of.max(initial=0) < work.num_parts:
            yield part_of
            return


def _tighter(work: Work) -> Iterator[IntArray]:
    """Limits that best fit is tried with: where a tighter one will do, the parts are more even."""
    if len(work.limits) == 1:
        limit = int(work.limits[0])
        low = max(-(-int(work.sizes.sum()) // work.num_parts), int(work.sizes.max(initial=0)))
        yield from (np.array([low + (limit - low) * share // 16]) for share in (1, 4))
    yield work.limits


def _longest_first(work: Work) -> IntArray:
    """Each item to the part that costs least until then, dearest first: many at once, where that is the same.

    The next k items go to the k cheapest parts, one each, as long as the k-th of these costs no more than the first one will.
    """
    order = np.argsort(-work.costs, kind="stable")
    costs = work.costs[order]
    part_of = np.empty(len(order), np.int64)
    loads = np.zeros(work.num_parts)
    cheapest = np.arange(work.num_parts)
    start = 0
    while start < len(order):
        few = min(work.num_parts, len(order) - start)
        if not work.equal_count:
            rising = loads[cheapest[:few]]
            few = max(1, int(np.searchsorted(rising, rising[0] + costs[start + few - 1], side="right")))
            if few < work.num_parts >> 6:  # to sort the parts for each few takes longer than one after another
                few = min(work.num_parts, len(order) - start)
                part_of[order[start : start + few]] = _one_by_one(loads, costs[start : start + few])
                cheapest = np.argsort(loads, kind="stable")
                start += few
                continue
        taken = cheapest[:few]
        part_of[order[start : start + few]] = taken
        loads[taken] += costs[start : start + few]
        cheapest = np.argsort(loads, kind="stable")
        start += few
    return part_of


def _one_by_one(loads: FloatArray, costs: FloatArray) -> list[int]:
    """The part of each cost, that which costs least until then; `loads` are changed."""
    heap = [*zip(loads.tolist(), range(len(loads)))]
    heapify(heap)
    taken = []
    for cost in costs.tolist():
        load, part = heap[0]
        heapreplace(heap, (load + cost, part))
        taken.append(part)
    for load, part in heap:
        loads[part] = load
    return taken


def _karmarkar_karp(work: Work) -> IntArray:
    """Largest differencing: of all ways to deal some items the two most unequal ones are joined, dear parts to cheap ones.

    A way has the loads of its parts, dearest first, and their items as chains: the first and the last of each, and for each
    item the next. Parts without an item, as most are at first, are left out.
    """
    order = np.argsort(-work.costs, kind="stable")
    size = work.num_parts if work.equal_count else 1
    following = np.full(len(order), -1)
    heap: list[tuple[float, int, FloatArray, IntArray, IntArray]] = []
    for number, start in enumerate(range(0, len(order), size)):
        items = order[start : start + size]
        loads = work.costs[items]
        least = loads[-1] if len(items) == work.num_parts else 0.0
        heap.append((least - loads[0], number, loads, items, items))
    heapify(heap)
    while len(heap) > 1:
        _, number, loads, firsts, lasts = heappop(heap)
        _, _, *other = heappop(heap)
        more, more_firsts, more_lasts = (each[::-1] for each in other)
        both = min(len(loads) + len(more), work.num_parts)
        shared = len(loads) + len(more) - both  # parts that have items of the two ways
        joined = np.concatenate([loads, more[shared:]])
        joined[len(loads) - shared : len(loads)] += more[:shared]
        following[lasts[len(lasts) - shared :]] = more_firsts[:shared]
        falling = np.argsort(-joined, kind="stable")
        firsts = np.concatenate([firsts, more_firsts[shared:]])[falling]
        lasts = np.concatenate([lasts[: len(lasts) - shared], more_lasts])[falling]
        joined = joined[falling]
        least = joined[-1] if both == work.num_parts else 0.0
        heappush(heap, (least - joined[0], number, joined - least, firsts, lasts))
    part_of = np.empty(len(order), np.int64)
    if heap:
        items, parts = heap[0][3], np.arange(len(heap[0][3]))
        while len(items):
            part_of[items] = parts
            items = following[items]
            items, parts = items[items >= 0], parts[items >= 0]
    return part_of


def fitted(work: Work) -> IntArray:
    """The part of each item, as few parts as best-fit decreasing makes."""
    part_of = np.zeros(len(work.costs), np.int64)  # an empty item takes no room
    if len(work.limits) == 1:
        lengths = work.sizes[:, 0]
        order = longest_first(lengths)[: np.count_nonzero(lengths)]
        part_of[order] = best_fit(lengths[order], int(work.limits[0]))
    elif len(work.limits):
        some = np.flatnonzero(work.sizes.any(axis=1))
        order = some[np.argsort(-(work.sizes[some] / work.limits).max(axis=1), kind="stable")]
        count, shares = 0, -(-len(some) // _FITTED) or 1
        for share in range(shares):  # each like the whole: few parts are looked through for an item
            own = order[share::shares]
            found = fit_sizes(work.sizes[own], work.limits.tolist())
            part_of[own] = count + found
            count += int(found.max(initial=-1)) + 1
    return part_of


def none_empty(work: Work, part_of: IntArray) -> IntArray:
    """The same with an item in each part, where there are enough."""
    part_of = part_of.copy()
    counts = np.bincount(part_of, minlength=work.num_parts)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return part_of
    order = _cheapest_first(work.costs, part_of)
    firsts = (np.cumsum(counts) - counts).tolist()
    fullest = [(-count, part) for part, count in enumerate(counts.tolist()) if count > 1]
    heapify(fullest)
    for part in empty:
        if not fullest:
            break
        count, source = fullest[0]
        part_of[order[firsts[source]]] = part
        firsts[source] += 1
        if count < -2:
            heapreplace(fullest, (count + 1, source))
        else:
            heappop(fullest)
    return part_of


def exchanged(work: Work, part_of: IntArray, group_of: IntArray | None = None, settled: float = SETTLED) -> IntArray:
    """The same after exchanges between the dearest group of parts and another: an item for a cheaper one, or for none.

    Args:
        group_of: the group of each part, whose cost counts, (num_parts,). By default each is its own. No part loses its last
            item.
    """
    groups = np.arange(work.num_parts) if group_of is None else group_of
    num_groups = int(groups.max(initial=0)) + 1
    by_group = replace(work, num_parts=num_groups)
    of_group = groups[part_of]
    loads, enough = by_group.loads(of_group), by_group.bound * settled
    if loads.max(initial=0) <= enough:
        return part_of
    part_of = part_of.copy()
    rooms = work.limits - work.filled(part_of)
    counts = np.bincount(part_of, minlength=work.num_parts)
    order = _cheapest_first(work.costs, of_group)
    ends = np.cumsum(np.bincount(of_group, minlength=num_groups))
    changed: dict[int, IntArray] = {}  # members of the groups that differ by now

    def own_of(group: int) -> IntArray:
        found = changed.get(group)
        return order[ends[group - 1] if group else 0 : ends[group]] if found is None else found

    others = min(num_groups - 1, _OTHERS)
    before = np.inf
    for number in range(_exchanges(num_groups)):
        dearest = int(loads.argmax())
        done = loads[dearest] <= enough
        if not number % (num_groups + 8):  # each group had its turn, and hardly anything came of it
            done, before = done or loads[dearest] * SETTLED > before, loads[dearest]
        if done:
            break
        own = own_of(dearest)
        for other in _least(loads, others):
            free = other
            if group_of is not None:
                parts = np.flatnonzero(groups == other)
                free = int(parts[np.argmax((rooms[parts] / work.limits).min(axis=1, initial=np.inf))])
            gap = float(loads[dearest] - loads[other])
            if swap := _swap(work, own, own_of(other), gap, part_of, rooms, counts, free):
                break
        else:
            break
        homes = part_of[list(swap)].tolist()
        targets = homes[::-1] if len(swap) == 2 else [free]
        for item, home, target, source, sink in zip(swap, homes, targets, (dearest, other), (other, dearest)):
            part_of[item] = target
            loads[[source, sink]] += -work.costs[item], work.costs[item]
            rooms[home] += work.sizes[item]
            rooms[target] -= work.sizes[item]
            counts[[home, target]] += -1, 1
            theirs = own_of(sink)
            place = np.searchsorted(work.costs[theirs], work.costs[item])
            left = own_of(source)
            changed[source] = left[left != item]
            changed[sink] = np.concatenate([theirs[:place], [item], theirs[place:]])
    return part_of


def _exchanges(num_parts: int) -> int:
    """How many are made at most."""
    return min(8 * num_parts, _EXCHANGES // num_parts) + 64


def _least(values: FloatArray, count: int) -> list[int]:
    """The places of the `count` least values, ascending, ties by place: what a stable sort would begin with."""
    if not count:
        return []
    few = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    found: list[int] = few[np.argsort(values[few], kind="stable")][:count].tolist()
    return found


def _swap(
    work: Work,
    own: IntArray,
    others: IntArray,
    gap: float,
    part_of: IntArray,
    rooms: FloatArray,
    counts: IntArray,
    free: int,
) -> tuple[int, ...]:
    """The item of the dearest group to give to another, cheaper by `gap`, and the one to get for it, if any; nothing where no
    exchange helps. Each takes the other's place; `free` is the part of one that is given for none.

    The best exchange evens the two out: what is given costs half the gap more than what comes back.
    """
    costs, sizes = work.costs, work.sizes
    if len(own) * len(others) <= _PAIRS:
        given, got = np.repeat(own, len(others)), np.tile(others, len(own))
    else:
        at = np.searchsorted(costs[others], costs[own] - gap / 2)
        if len(work.limits):  # where a longer item costs more, the first one that leaves room enough
            room = rooms[part_of[others], 0].max()
            at = np.maximum(at, np.searchsorted(sizes[others, 0], sizes[own, 0] - room))
        given, at = np.concatenate([own, own]), np.concatenate([at, at - 1])
        known = (at >= 0) & (at < len(others))
        given, got = given[known], others[at[known]]
    change = costs[given] - costs[got]
    helps = (change > gap * 1e-9) & (change < gap * (1 - 1e-9))
    best: float = np.inf
    swap: tuple[int, ...] = ()
    given, got, change = given[helps], got[helps], change[helps]
    if len(given) and len(work.limits):
        more = sizes[given] - sizes[got]
        fits = ((more <= rooms[part_of[got]]) & (-more <= rooms[part_of[given]])).all(axis=1)
        given, got, change = given[fits], got[fits], change[fits]
    if len(given):
        off = np.abs(change - gap / 2)
        first = int(np.argmin(off))
        best, swap = float(off[first]), (int(given[first]), int(got[first]))
    if not work.equal_count:
        alone = own[(counts[part_of[own]] > 1) & (costs[own] > gap * 1e-9) & (costs[own] < gap * (1 - 1e-9))]
        alone = alone[(sizes[alone] <= rooms[free]).all(axis=1)]
        if len(alone):
            off = np.abs(costs[alone] - gap / 2)
            first = int(np.argmin(off))
            if off[first] < best:
                swap = (int(alone[first]),)
    return swap


def _searched(work: Work, least: float, best: IntArray | None) -> IntArray | None:
    """The best of all ways to deal a few items, where one is better than `best`."""
    most = len(work.costs) // work.num_parts if work.equal_count else len(work.costs)
    return searched(work, np.arange(work.num_parts), least, best, most=most)


_EXACT_STEPS = 100_000
"""Of the search among all ways: half a second at most."""


def searched(
    work: Work,
    group_of: IntArray,
    least: float,
    best: IntArray | None,
    *,
    most: int,
    owners: IntArray | None = None,
    padded: NDArray[np.bool_] | None = None,
    rows: IntArray | None = None,
) -> IntArray | None:
    """The best of all ways to deal a few items: depth first, dearest item first, no two parts alike tried twice.

    Args:
        group_of: the group of each part, whose cost counts, (num_parts,). None is empty.
        least: what the dearest group of `best` costs.
        most: the most items of a part.
        owners: the owner of each item, (n,): those with one owner are in one group, and parts may be empty.
        padded: which sizes are padded, (d,). Parts then cost rows x the dearest item.
        rows: the samples of each item, (n,), where some are padded.
    """
    pads = padded is not None and bool(padded.any())
    order = np.argsort(-work.costs, kind="stable").tolist()
    count, limits = len(order), work.limits.tolist()
    costs, sizes = work.costs[order].tolist(), work.sizes[order].tolist()
    heights = [1] * count if rows is None else rows[order].tolist()
    wide = [False] * len(limits) if padded is None else padded.tolist()
    owner = [*range(count)] if owners is None else owners[order].tolist()
    new_owner = [name not in owner[:at] for at, name in enumerate(owner)]
    owners_left = np.append(np.cumsum(new_owner[::-1])[::-1], 0).tolist()
    group = group_of.tolist()
    parts: list[tuple[Any, ...]] = [(0, 0, 0.0, (0,) * len(limits))] * work.num_parts  # items, rows, cost, sizes
    loads = [0.0] * (max(group, default=0) + 1)
    belongs: dict[int, tuple[int, int]] = {}  # owner: group, items
    held: list[tuple[int, ...]] = [()] * len(loads)  # owners, by group
    chosen = [0] * count
    steps = _EXACT_STEPS
    own_costs = [cost * height for cost, height in zip(costs, heights)] if pads else costs
    enough = max(sum(own_costs) / len(loads), max(own_costs, default=0.0)) * (1 + 1e-12)

    def taken(at: int, part: int) -> tuple[Any, ...] | None:
        """The part with the item; None where it exceeds a limit."""
        items, height, cost, filled = parts[part]
        height += heights[at]
        if items >= most:
            return None
        new = []
        for own, so_far, limit, pad in zip(sizes[at], filled, limits, wide):
            total = max(so_far, own) if pad else so_far + own
            if total * (height if pad else 1) > limit:
                return None
            new.append(total)
        dearest = (cost if items else costs[at]) if pads else cost + costs[at]
        return items + 1, height, dearest, tuple(new)

    def deal(at: int) -> None:
        nonlocal least, best, steps
        steps -= 1
        if at == count:
            least = max(loads)
            best = np.empty(count, np.int64)
            best[order] = chosen
            return
        empty_parts = 0 if owners is not None else sum(not items for items, *_ in parts)
        empty_groups = sum(not own for own in held)
        home = belongs.get(owner[at])
        tried = set()
        for part in sorted(range(len(parts)), key=lambda one: (loads[group[one]], parts[one])):
            at_home = group[part]
            if home is not None and home[0] != at_home:
                continue
            if (parts[part][0] and count - at <= empty_parts) or (
                home is None and held[at_home] and owners_left[at] <= empty_groups
            ):
                continue  # each item to come is needed by an empty one
            alike = [parts[one] for one in range(len(parts)) if group[one] == at_home and one != part]
            key = (parts[part], tuple(sorted(alike)), held[at_home] if owners is not None else ())
            if key in tried:
                continue
            tried.add(key)
            new = taken(at, part)
            if new is None:
                continue
            old, load = parts[part], loads[at_home]
            gain = new[1] * new[2] - (old[1] * old[2] if old[0] else 0.0) if pads else costs[at]
            if load + gain >= least:
                continue
            before = held[at_home]
            parts[part], chosen[at], loads[at_home] = new, part, load + gain
            if home is None:
                belongs[owner[at]] = (at_home, at)
                held[at_home] = (*before, owner[at])
            deal(at + 1)
            parts[part], loads[at_home], held[at_home] = old, load, before
            if home is None:
                del belongs[owner[at]]
            if steps < 0 or least <= enough:
                return

    deal(0)
    return best
