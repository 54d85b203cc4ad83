from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan.mix import low_discrepancy_order


def discrepancy(shares: np.ndarray, k: int) -> float:
    """The most by which the part of any k shares in a row that lies below a limit differs from the limit."""
    stretches = np.sort(np.lib.stride_tricks.sliding_window_view(shares, k), axis=1)
    steps = np.arange(k + 1) / k
    return float(np.maximum(np.abs(stretches - steps[:-1]), np.abs(stretches - steps[1:])).max())


@given(st.integers(0, 700), st.integers(0, 2**64 - 1))
def test_each_number_comes_once_and_the_key_decides(count: int, key: int) -> None:
    order = low_discrepancy_order(count, key)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == low_discrepancy_order(count, key).tolist()


@given(st.integers(2, 64), st.integers(64, 2000), st.integers(0, 2**64 - 1))
def test_any_numbers_in_a_row_cover_the_whole_as_evenly_as_is_said(k: int, count: int, key: int) -> None:
    shares = (low_discrepancy_order(count, key) + 0.5) / count
    assert discrepancy(shares, k) <= (1 + log2(k) / 2) / k


@pytest.mark.parametrize("step", [2, 4, 8])
def test_orders_that_are_taken_in_turn_cover_it_together(step: int) -> None:
    shares = np.stack(
        [(low_discrepancy_order(300, 5, first=first, step=step, own_key=first) + 0.5) / 300 for first in range(step)], 1
    )
    for k in (2, 4, 8, 16):
        assert discrepancy(shares.ravel(), k) <= (1 + log2(k) / 2) / k


def test_orders_of_several_keys_differ_and_neighbours_do_not_stay_together() -> None:
    orders = [low_discrepancy_order(640, key) for key in range(20)]
    pairs = [set(zip(order[:-1].tolist(), order[1:].tolist())) for order in orders]
    shared = [len(one & other) / 639 for number, one in enumerate(pairs) for other in pairs[:number]]
    assert np.mean(shared) < 0.08  # of blocks of 10 that change places; nearly all without
