"""Orders of an epoch: every row once, any part alone, well mixed, another one each epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.index.order import RUN_ROWS, WINDOW_RUNS, Order
from brimful.plan import random
from brimful.plan.random import KeyedPermutation

WINDOW = RUN_ROWS * WINDOW_RUNS
COUNTS = sorted({0, 1, 2, 4095, 4096, 65_537, 99_991, 10**6, *(4**k + d for k in range(1, 11) for d in (0, 1))})


def lag_1(order: np.ndarray) -> float:
    return float(np.corrcoef(order[:-1], order[1:])[0, 1])


@pytest.mark.parametrize("count", COUNTS)
def test_a_keyed_permutation_is_a_bijection_with_an_inverse(count: int) -> None:
    permutation = KeyedPermutation(count, key=7)
    order = permutation(np.arange(count))
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(permutation.inverse(order), np.arange(count))


@pytest.mark.parametrize("count", [count for count in COUNTS if count >= 65_536])
def test_a_keyed_permutation_mixes(count: int) -> None:
    for key in range(3):
        order = KeyedPermutation(count, key)(np.arange(count))
        assert abs(lag_1(order)) < 0.01
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.01


@pytest.mark.parametrize("count", [10**9, 2**62])
def test_any_part_of_a_large_permutation_can_be_computed_alone(count: int) -> None:
    permutation = KeyedPermutation(count, key=3)
    places = np.array([0, 1, count // 3, count - 1])
    numbers = permutation(places)
    assert ((numbers >= 0) & (numbers < count)).all()
    assert permutation(places[2:]).tolist() == numbers[2:].tolist()
    assert permutation.inverse(numbers).tolist() == places.tolist()


@pytest.mark.parametrize(
    "count",
    [1, 63, 64, 65, 1000, WINDOW, WINDOW + 1, WINDOW * 3 // 2 - 70, WINDOW * 3 // 2, WINDOW * 3 // 2 + 1, 10**6],
)
@pytest.mark.parametrize("key", [None, 1, 2])
def test_an_order_has_every_row_once_and_any_part_alone(count: int, key: int | None) -> None:
    whole = Order(count, key).rows(0, count)
    assert np.array_equal(np.sort(whole), np.arange(count))
    cuts = np.random.default_rng(0).integers(0, count + 1, (5, 2))
    for first, last in np.sort(cuts, axis=1).tolist():
        assert np.array_equal(Order(count, key).rows(first, last), whole[first:last])
    if key is None:
        assert np.array_equal(whole, np.arange(count))


def test_a_shuffled_order_mixes_also_where_it_has_several_windows() -> None:
    assert abs(lag_1(Order(10**6, key=5).rows(0, 10**6))) < 0.01


def test_the_grid_of_runs_shifts_with_the_key() -> None:
    """Else the same 64 rows would be neighbours on disk and in the order, epoch after epoch."""
    neighbours = []
    for key in range(2):
        order = Order(10**6, key)
        window = np.sort(order.rows(0, WINDOW))
        neighbours.append(set((window[1:][np.diff(window) > 1] % RUN_ROWS).tolist()))
    assert len(neighbours[0]) == len(neighbours[1]) == 1
    assert neighbours[0] != neighbours[1]


@given(st.sets(st.tuples(*[st.integers(0, 2**63 - 1)] * 3), min_size=2, max_size=50))
def test_keys_of_seed_epoch_and_place_do_not_collide(parts: set[tuple[int, int, int]]) -> None:
    assert len({random.key(*part) for part in parts}) == len(parts)


def test_keys_of_small_counters_do_not_collide() -> None:
    parts = [(seed, place, epoch) for seed in range(40) for place in range(40) for epoch in range(40)]
    assert len({random.key(*part) for part in parts}) == len(parts)
    assert len({random.key(*part[:2]) for part in parts} | {random.key(*part) for part in parts}) == 40**3 + 40**2
