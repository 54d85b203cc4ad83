"""The shared planner: put samples in an order in which neighbours are alike, then cut it into batches.

`padded` has the length that each sample is padded to, in the order of the cut. `rows(padded_length)` is the most
rows that a batch of that padded length may have: at least 1, and never more for a longer one. For pairs it is
asked with both, or, by `plan_sorted`, with their sum. A cut is the positions where batches start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import numpy as np

from brimful.plan.plan import IntArray, Plan

MaxRows = Callable[[int], int]
PairRows = Callable[[int, int], int]
Cut = Callable[[IntArray, MaxRows], IntArray]

_STRIPS = 1.3  # strips / sqrt(batches): fewer leave the sources ragged, more the targets


def plan_sorted(lengths: IntArray, padded: IntArray, rows: MaxRows, cut: Cut) -> Plan:
    """Sort, then cut: one length longest first and by `cut`, pairs in a snake and greedily."""
    if lengths.ndim == 2:
        return plan_pairs(lengths, padded, lambda source, target: rows(source + target))
    if not len(lengths):
        return Plan.of(lengths, [])
    order = longest_first(lengths)
    return assemble(lengths, padded, order, cut(padded[order], rows))


def plan_pairs(lengths: IntArray, padded: IntArray, rows: PairRows) -> Plan:
    """Pairs (n, 2) in a snake, cut greedily."""
    if not len(lengths):
        return Plan.of(lengths, [])
    order = snake(padded, rows)
    return assemble(lengths, padded, order, cut_pairs(padded[order], rows))


def assemble(lengths: IntArray, padded: IntArray, order: IntArray, starts: IntArray) -> Plan:
    """The plan whose batches are `order` cut at `starts`, each padded to the longest of its padded lengths."""
    return Plan(
        batches=cut_at(order, starts),
        padded_lengths=np.maximum.reduceat(padded[order], starts, axis=0),
        padded_sizes=np.diff(starts, append=len(order)),
        tokens=int(lengths.sum()),
    )


def cut_at(order: IntArray, starts: IntArray) -> list[IntArray]:
    """The parts of `order` that begin at `starts`."""
    return [order[start:end] for start, end in pairwise([*starts.tolist(), len(order)])]


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


def snake(padded: IntArray, rows: PairRows) -> IntArray:
    """Numbers of pairs (n, 2) in an order in which both lengths change little.

    The pairs are cut by source into 1.3 sqrt(batches) strips that fill equally many batches; inside a strip
    targets fall, in the next one they rise.
    """
    order = np.lexsort((-padded[:, 1], -padded[:, 0]))
    shares = 1 / pair_rows_at(padded[order], rows)
    filled = np.cumsum(shares) - shares
    batches = filled[-1] + shares[-1]
    strips = np.floor(filled * (max(1, round(_STRIPS * sqrt(batches))) / batches))
    targets = padded[order, 1]
    return order[np.lexsort((np.where(strips % 2, targets, -targets), strips))]


def cut_greedy(padded: IntArray, rows: MaxRows) -> IntArray:
    """Batches as large as they may be, of samples sorted longest first: the least number of batches."""
    starts = []
    start = 0
    while start < len(padded):
        starts.append(start)
        start += rows(int(padded[start]))
    return np.array(starts, dtype=np.int64)


def cut_pairs(padded: IntArray, rows: PairRows) -> IntArray:
    """Batches as large as they may be, of pairs (n, 2) in the order given."""
    starts = []
    start = 0
    while start < len(padded):
        starts.append(start)
        block = padded[start : start + rows(*padded[start].tolist())]
        so_far = np.maximum.accumulate(block, axis=0).tolist()
        start += bisect_left(range(len(block)), True, key=lambda size: rows(*so_far[size]) <= size)
    return np.array(starts, dtype=np.int64)


def rows_at(padded: IntArray, rows: MaxRows) -> IntArray:
    """`rows` of each padded length, asked once for each distinct one."""
    values, where = np.unique(padded, return_inverse=True)
    return np.array([rows(value) for value in values.tolist()], dtype=np.int64)[where]


def pair_rows_at(padded: IntArray, rows: PairRows) -> IntArray:
    """`rows` of each pair of padded lengths (n, 2), asked once for each distinct one."""
    span = int(padded[:, 1].max()) + 1
    return rows_at(padded[:, 0] * span + padded[:, 1], lambda pair: rows(*divmod(pair, span)))
