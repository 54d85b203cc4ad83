"""The shared planner: put samples in an order in which neighbours are alike, then cut it into batches.

`padded` has the length that each sample is padded to, in the order of the cut. `rows(padded_length)` is the most
rows that a batch of that padded length may have: at least 1, and never more for a longer one. For several lengths a
sample it is asked with all, or, by `plan_sorted`, with their sum. A cut is the positions where batches start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import prod, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from .errors import counted, plus
from .overlong import refuse_sums, refuse_units
from .plan import IntArray, Plan
from .units import units_of

NONE: Final[Mapping[str, int]] = {}
MaxRows = Callable[[Any], int]
Cut = Callable[[IntArray, MaxRows], IntArray]

_STRIPS = 1.3  # strips / sqrt(batches): fewer leave the sources ragged, more the targets
_MOST_PLACES = 256  # that `cut_fewest` tries for one boundary; text in windows of 10,000 has 10 to 100
_PLACES_PER_BATCH = 8  # beyond which `cut_priced` looks for no more: within .1 % of the least cost
_IMPOSSIBLE = np.iinfo(np.int64).max


def plan_sorted(lengths: IntArray, padded: IntArray, rows: MaxRows, cut: Cut, units: ArrayLike | None = None) -> Plan:
    """Sort, then cut: one length longest first and by `cut`, several, and `units`, greedily."""
    if units is not None:
        return plan_units(lengths, padded, rows if lengths.ndim == 1 else lambda widths: rows(sum(widths)), units)
    if lengths.ndim == 2:
        return plan_wide(lengths, padded, lambda widths: rows(sum(widths)))
    if not len(lengths):
        return Plan.of(lengths, [])
    order = longest_first(lengths)
    padded = padded[order]
    return assemble(lengths, padded, order, cut(padded, rows))


def plan_wide(
    lengths: IntArray, padded: IntArray, rows: MaxRows, totals: IntArray | None = None, limits: Sequence[int] = ()
) -> Plan:
    """Samples of d lengths each, (n, d): one longest first, pairs in a snake, more by their sum; cut greedily.

    Args:
        totals: more sizes of each sample, (n, t), of which the sums in a batch are at most `limits`.
    """
    if not len(lengths):
        return Plan.of(lengths, [])
    order = snake(padded, rows) if padded.shape[1] == 2 else longest_first(padded.sum(axis=1))
    padded = padded[order]
    starts = cut_wide(padded, rows, None if totals is None else totals[order], limits)
    return assemble(lengths, padded, order, starts)


def plan_units(
    lengths: IntArray,
    padded: IntArray,
    rows: MaxRows,
    units: ArrayLike,
    *,
    totals: IntArray | None = None,
    limits: Mapping[str, int] = NONE,
    sort: bool = True,
) -> Plan:
    """As `plan_sorted` and `plan_wide`, of whole units. A unit is as long as its longest sample, and takes a row for each.

    Raises:
        OverlongError: a unit has more samples than a batch of its length, or more in sum than a limit.
    """
    if not len(lengths):
        return Plan.of(lengths, [])
    own = units_of(units, len(lengths))
    longest = own.greatest(padded)
    at_most = rows_at(longest, rows)
    refuse_units(
        own,
        own.counts <= at_most,
        lambda unit: (
            f"is padded to {plus(longest[unit])} tokens, and cannot fit a batch of that "
            f"length, which has at most {counted(int(at_most[unit]), 'sample')}"
        ),
        "raise the budget",
    )
    sums = None if totals is None else own.sums(totals)
    if sums is not None:
        refuse_sums(own, sums, limits)
    wide = longest.reshape(len(longest), -1)
    ask = rows if padded.ndim == 2 else lambda widths: rows(widths[0])
    order = np.arange(len(wide))
    if sort:
        sums_of = own.greatest(lengths) if padded.ndim == 1 else wide.sum(axis=1)
        order = snake(wide, ask) if wide.shape[1] == 2 else longest_first(sums_of)
    starts = cut_wide(wide[order], ask, None if sums is None else sums[order], [*limits.values()], own.counts[order])
    plan = assemble(lengths, longest[order], order, starts)
    bounds = np.append(0, np.cumsum(own.counts[order]))[plan.bounds]
    return replace(plan, numbers=own.samples(order), bounds=bounds, padded_sizes=np.diff(bounds))


def assemble(lengths: IntArray, padded: IntArray, order: IntArray, starts: IntArray) -> Plan:
    """The plan whose batches are `order` cut at `starts`, each padded to its longest of `padded`, which is in that order."""
    bounds = np.append(starts, len(order))
    return Plan(
        numbers=order,
        bounds=bounds,
        padded_lengths=np.maximum.reduceat(padded, starts, axis=0),
        padded_sizes=bounds[1:] - bounds[:-1],
        tokens=int(lengths.sum()),
    )


def cut_at(order: IntArray, starts: IntArray) -> list[IntArray]:
    """The parts of `order` that begin at `starts`."""
    return [
        order[start:end] for start, end in pairwise(chain(map(int, starts), [len(order)]))
    ]  # as a list: 36 bytes a part


def distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values, ascending, and how often each comes."""
    if values.max(initial=0) > 4 * len(values):
        found, counts = np.unique(values, return_counts=True)
        return found, counts
    counts = np.bincount(values)
    found = np.flatnonzero(counts)
    return found, counts[found]


def longest_first(lengths: IntArray) -> IntArray:
    """Sample numbers by length, longest first, ties by number."""
    return ascending(lengths.max(initial=0) - lengths)


def ascending(values: IntArray) -> IntArray:
    """The stable order of values from 0 on: a radix sort, 10 ms per million and 16 bits."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    bits = int(values.max(initial=0)).bit_length()
    for low in range(16, bits, 16):
        order = order[np.argsort((values[order] >> low).astype(np.uint16), kind="stable")]
    return order


def snake(padded: IntArray, rows: MaxRows) -> IntArray:
    """Numbers of pairs (n, 2) in an order in which both lengths change little.

    The pairs are cut by source into 1.3 sqrt(batches) strips that fill equally many batches; inside a strip
    targets fall, in the next one they rise.
    """
    order = np.lexsort((-padded[:, 1], -padded[:, 0]))
    shares = 1 / np.maximum(rows_at(padded[order], rows), 1)  # one that does not fit alone is refused by the cut
    filled = np.cumsum(shares) - shares
    batches = filled[-1] + shares[-1]
    strips = np.floor(filled * (max(1, round(_STRIPS * sqrt(batches))) / batches))
    targets = padded[order, 1]
    return order[np.lexsort((np.where(strips % 2, targets, -targets), strips))]


def cut_greedy(padded: IntArray, rows: MaxRows) -> IntArray:
    """Batches as large as they may be, of samples sorted longest first: the least number of batches."""
    starts = []
    start, count = 0, len(padded)
    while start < count:
        starts.append(start)
        taken = rows(padded.item(start))
        if taken < 1:
            raise _falling(padded[start])
        start += taken
    return np.array(starts, dtype=np.int64)


def _falling(length: IntArray) -> ValueError:
    """The error for a sample that does not fit alone, although it is no longer than the longest one that does."""
    return ValueError(
        f"a batch of one sample of {plus(length)} tokens is beyond the limit, and one of a longer sample is not: a cost, or a "
        "peak of memory, must never fall where lengths grow"
    )


def cut_wide(
    padded: IntArray,
    rows: MaxRows,
    totals: IntArray | None = None,
    limits: Sequence[int] = (),
    counts: IntArray | None = None,
) -> IntArray:
    """Batches as large as they may be, of samples of d lengths (n, d) in the order given, whose `totals` (n, t) have sums within
    `limits`. Where there are `counts` (n,), each takes so many rows."""
    starts = []
    start = 0
    sums = [] if totals is None else [*np.cumsum(totals, axis=0).T]
    ends = np.arange(1, len(padded) + 1) if counts is None else np.cumsum(counts)
    while start < len(padded):
        starts.append(start)
        filled = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, filled + rows(tuple(padded[start].tolist())), side="right"))
        for so_far_of, limit in zip(sums, limits):
            before = so_far_of[start - 1] if start else 0
            end = min(end, max(start + 1, int(np.searchsorted(so_far_of, before + limit, side="right"))))
        block = padded[start:end]
        so_far = np.maximum.accumulate(block, axis=0).tolist()
        taken = (ends[start:end] - filled).tolist()
        fit = bisect_left(range(len(block)), True, key=lambda at: rows(tuple(so_far[at])) < taken[at])
        if not fit:
            raise _falling(padded[start])
        start += fit
    return np.array(starts, dtype=np.int64)


def rows_at(padded: IntArray, rows: MaxRows) -> IntArray:
    """`rows` of each padded length, (n,), or of several, (n, d), asked once for each distinct one."""
    if padded.ndim == 1:
        values, where = np.unique(padded, return_inverse=True)
        return np.array([rows(value) for value in values.tolist()], dtype=np.int64)[where]
    spans = (padded.max(axis=0, initial=0) + 1).tolist()
    if prod(spans) > np.iinfo(np.int64).max:
        values, where = np.unique(padded, axis=0, return_inverse=True)
    else:  # four times as fast
        keys, where = np.unique(np.ravel_multi_index([*padded.T], spans), return_inverse=True)
        values = np.stack(np.unravel_index(keys, spans), axis=1)
    return np.array([rows(tuple(value)) for value in values.tolist()], dtype=np.int64)[where]


# -- the fewest slots: dynamic programmes over the places where a batch may start --------------------------------------
#
# A boundary inside a run of equal lengths can move towards the longer ones at no cost until it meets the start of the
# run, or until the batch that it begins is full. So it is enough to try the starts of runs, the places from which a full
# batch ends at a place already tried, and so on.


def cut_fewest(padded: IntArray, rows: MaxRows) -> IntArray:
    """The fewest slots that the least number of batches allows.

    With that number fixed, a boundary lies between the first place from which the batches left suffice and the
    greedy cut. These ranges do not overlap, so that the programme is one small matrix a batch: 30 us.
    """
    reach = np.arange(len(padded)) + rows_at(padded, rows)
    begins_run = np.diff(padded, prepend=-1) != 0
    places, slots = np.array([len(padded)]), np.zeros(1, np.int64)
    layers = []
    for latest in cut_greedy(padded, rows)[::-1].tolist():
        ends, begins_full = places, np.searchsorted(reach, places)
        earliest = begins_full[0]
        of_use = begins_run[earliest : latest + 1].copy()
        of_use[begins_full - earliest] = True
        of_use[-1] = True
        places = _thinned(earliest + np.flatnonzero(of_use))
        totals = padded[places, None] * (ends - places[:, None]) + slots
        totals[ends > reach[places, None]] = _IMPOSSIBLE
        choices = totals.argmin(axis=1)
        slots = totals[np.arange(len(places)), choices]
        layers.append((places, choices))
    starts, at = [], 0
    for places, choices in reversed(layers):
        starts.append(places[at])
        at = choices[at]
    return np.array(starts, dtype=np.int64)


def cut_priced(padded: IntArray, rows: MaxRows, step_tokens: int) -> IntArray:
    """The fewest slots where each batch counts as `step_tokens` slots more.

    f(j) = min over i of f(i) + step_tokens + padded_i (j - i), j - i <= rows_i: 4 us a place.
    """
    places = _places(padded, rows)
    slopes = padded[np.minimum(places, len(padded) - 1)]
    first = np.searchsorted(places + rows_at(slopes, rows), places).tolist()
    bases = step_tokens - slopes * places  # a batch from place i to position p: f(p) = bases[i] + slopes[i] * p
    choices = [0]
    for j, position in enumerate(places[1:].tolist(), start=1):
        totals = slopes[first[j] : j] * position
        totals += bases[first[j] : j]
        choice = int(totals.argmin())
        bases[j] += totals[choice]
        choices.append(first[j] + choice)
    cut = [choices[-1]]
    while cut[-1]:
        cut.append(choices[cut[-1]])
    return places[cut[::-1]]


def _places(padded: IntArray, rows: MaxRows) -> IntArray:
    """Where `cut_priced` may begin a batch, and the end: in a small window all that are of use, in a large one the first."""
    reach = np.arange(len(padded)) + rows_at(padded, rows)
    greedy = cut_greedy(padded, rows)
    tried = np.zeros(len(padded) + 1, dtype=bool)
    new = np.concatenate([np.flatnonzero(np.diff(padded, prepend=-1)), greedy, [len(padded)]])
    while len(new):
        tried[new] = True
        if np.count_nonzero(tried) > _PLACES_PER_BATCH * len(greedy):
            break
        begins_full = np.searchsorted(reach, new)
        new = begins_full[~tried[begins_full]]
    return np.flatnonzero(tried)


def _thinned(places: IntArray) -> IntArray:
    """At most `_MOST_PLACES` of them, the first and the last included."""
    if len(places) <= _MOST_PLACES:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST_PLACES).astype(np.int64)]
