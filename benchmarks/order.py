"""The order of an epoch: how fast the keyed permutation finds any of its indices, and the two-level order whole windows.

    python benchmarks/order.py

Beside them: one vectorised hash an index, which no order by a hash goes without, and numpy's own shuffle of all indices,
which knows no index alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.index.order import Order
from brimful.plan import random

RUNS = 7
PLACES = 1 << 20
ROWS = 400_000
COUNTS = (10**6, 4**10 + 1, 10**9, 10**12)


def speed(run: Callable[[], Any], indices: int) -> str:
    """Millions of indices a second: the median and the best of several runs."""
    speeds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        speeds.append(indices / (time.perf_counter() - began) / 1e6)
    return f"{statistics.median(speeds):8.1f}{max(speeds):8.1f}"


def autocorrelation(order: NDArray[np.int64]) -> float:
    return float(np.corrcoef(order[:-1], order[1:])[0, 1])


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    places = np.arange(PLACES)
    print(f"M indices/s on one core, median and best of {RUNS}")
    print(f"{'hash an index':44}{speed(lambda: random.hashes(1, PLACES), PLACES)}")
    shuffle = np.random.default_rng(0).permutation
    print(f"{'numpy, shuffling all of 10^6':44}{speed(lambda: shuffle(10**6), 10**6)}")
    for count in COUNTS:
        run = (places + count // 3) % count
        scattered = np.random.default_rng(1).integers(0, count, PLACES)
        print(f"{f'permutation of {count:,}, a run':44}{speed(partial(permuted, count, run), PLACES)}")
        print(f"{f'permutation of {count:,}, scattered':44}{speed(partial(permuted, count, scattered), PLACES)}")
    for count in (10**6, 10**9):
        print(f"{f'order of {count:,}, a run':44}{speed(partial(ordered, count), ROWS)}")
    for count in (10**6, 65_537):
        whole = permuted(count, np.arange(count))
        print(f"lag-1 autocorrelation of all {count:,}: {autocorrelation(whole):+.5f}")


def permuted(count: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
    return random.KeyedPermutation(count, 7)(places)


def ordered(count: int) -> NDArray[np.int64]:
    """A run of the two-level order, of which nothing is kept from before."""
    return Order(count, 7).rows(count // 3, count // 3 + ROWS)


if __name__ == "__main__":
    main()
