from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import letters
from tests.strategies import small


def numbers(count: int, **options: bool) -> bf.Dataset:
    """Streamed, in blocks of 256."""
    return bf.from_iterable([{"n": number} for number in range(count)], **options)


def drawn(data: bf.Dataset, count: int | None = None) -> list[int]:
    return [sample["n"] for sample in islice(data, count)]


@given(st.integers(0, 700), st.integers(1, 500))
def test_each_window_is_permuted_and_a_short_last_one_joins_the_one_before(count: int, size: int) -> None:
    order = drawn(numbers(count).shuffle(size))
    assert sorted(order) == list(range(count))
    first = 0
    while first < count:
        rest = count - first
        last = count if rest < size + (size + 1) // 2 else first + size
        assert sorted(order[first:last]) == list(range(first, last))
        first = last


def test_each_epoch_seed_and_place_has_another_order() -> None:
    data = numbers(300, repeat=True)
    orders = [drawn(data.shuffle(300, seed=seed), 600)[start : start + 300] for seed in (1, 2) for start in (0, 300)]
    orders.append(drawn(data.shuffle(300, seed=1).shuffle(300, seed=1), 300))
    assert len({tuple(order) for order in orders}) == 5
    assert drawn(data.shuffle(300, seed=1), 300) == orders[0]


def test_epochs_do_not_mix_in_a_window() -> None:
    order = drawn(numbers(10, repeat=True).shuffle(25), 40)
    assert [sorted(order[start : start + 10]) for start in range(0, 40, 10)] == [list(range(10))] * 4


def test_a_window_of_one_changes_nothing() -> None:
    assert drawn(numbers(600).shuffle(1)) == list(range(600))


def test_indexed_and_streamed_data_are_both_shuffled_and_resumed_exactly() -> None:
    assert_exact_resume(lambda: numbers(20).shuffle(7))
    assert_exact_resume(lambda: letters("abcdefghijk").shuffle(4))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^buffer_size must be at least 1 sample \(got 0\)$"):
        numbers(1).shuffle(0)


@pytest.mark.parametrize("above", [lambda data: data, lambda data: data.batch(1, window=2)], ids=["samples", "batches"])
def test_all_of_the_open_buffer_is_compared_also_where_it_is_many_blocks(above: Callable[[bf.Dataset], Any]) -> None:
    def run(rows: list[Any]) -> Any:
        return above(bf.from_iterable(rows).shuffle(20))

    rows = [{"input_ids": [number]} for number in range(40)]
    for taken in (2, 4, 5, 19):
        with small(4), run(rows).iter() as it:
            for _ in range(taken):
                next(it)
            for number in range(20):
                edited = [*rows[:number], {"input_ids": [-1]}, *rows[number + 1 :]]
                with pytest.raises(bf.StateError, match="gave other rows"):
                    next(run(edited).iter(it.state_dict()))
            behind = [*rows[:39], {"input_ids": [-1]}]
            assert len(list(run(behind).iter(it.state_dict()))) == 40 - taken
