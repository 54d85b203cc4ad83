"""An order of which every stretch, long or short, covers the whole evenly."""

from __future__ import annotations

from typing import Final

import numpy as np

from brimful.core import random
from brimful.plan.plan import IntArray

_BLOCKS: Final = 64


def low_discrepancy_order(
    count: int, key: int, *, first: int = 0, step: int = 1, own_key: int | None = None
) -> IntArray:
    """The numbers 0 to count - 1, int64 (count,), so that any k of them that follow one another are spread over all.

    Number t of the order has the rank of the point (u + (first + t x step) x golden ratio) mod 1, with u drawn by `key`. Inside
    aligned blocks of a 64th of all numbers they change places at random, so that orders of several keys differ in more than u.

    Of any k numbers that follow one another the share below any limit differs from that of all numbers by at most
    (1 + log2(k) / 2) / k, where step is 1: a half for 4, a third for 8, a ninth for 32. So the mean of anything that rises or
    falls with the number is off by no more than that share of its range.

    Args:
        key: of u.
        first, step: where several orders are taken in turn, a number of each, and are to cover the whole together: the place of
            this one, and how many they are; all have the same `key`.
        own_key: of what changes places in this one; by default `key`.
    Price: 100 ns a number.
    Source: the sequence of Weyl with the golden ratio, whose discrepancy is the least of all such sequences (Niederreiter:
        Random number generation and quasi-Monte Carlo methods, 1992, chapter 3).

    >>> order = low_discrepancy_order(8, key=7)
    >>> sorted(order.tolist()), (order < 4).tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [False, True, False, False, True, False, True, True])
    """
    places = np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(step)
    points = places * np.uint64(random.GOLDEN) + np.uint64(random.key(key, 0))  # modulo 2^64
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(points, kind="stable")] = np.arange(count)
    blocks = np.arange(count) // max(count // _BLOCKS, 1)
    moved = np.lexsort((random.hashes(key if own_key is None else own_key, count), blocks))
    return moved[ranks]
