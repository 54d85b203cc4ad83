"""Packing: best-fit decreasing as the textbook says, and what it wastes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import by_window, sft, wiki
from brimful.plan import AttentionCost, OverlongError, Packed, Plan
from tests.effort import examples


def textbook(lengths: list[int], row_length: int) -> list[list[int]]:
    """Best-fit decreasing, sample by sample: of rows with equally little room the one that came to it last."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # room and when the row came to it
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    for time, number in enumerate(order):
        size = max(1, lengths[number])
        fitting = [(room, -since, row) for row, (room, since) in enumerate(rooms) if room >= size]
        if fitting:
            room, _, row = min(fitting)
        else:
            room, row = row_length, len(rows)
            rows.append([])
            rooms.append((room, time))
        rows[row].append(number)
        rooms[row] = (room - size, time)
    return rows


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(20, 50))
@examples(150)
def test_rows_are_those_of_best_fit_decreasing(lengths: list[int], row_length: int) -> None:
    rows = [row.tolist() for row in Packed(row_length).plan(lengths).batches]
    assert rows == textbook(lengths, row_length)


def fewest_rows(lengths: list[int], row_length: int) -> int:
    """Of all packings, by trying each row for each sample."""
    best = len(lengths)

    def place(at: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if at == len(lengths):
            best = len(rooms)
            return
        for row in range(len(rooms)):
            if rooms[row] >= lengths[at]:
                place(at + 1, [room - lengths[at] * (other == row) for other, room in enumerate(rooms)])
        place(at + 1, [*rooms, row_length - lengths[at]])

    place(0, [])
    return best


@given(st.lists(st.integers(1, 10), min_size=1, max_size=7), st.integers(10, 20))
@examples(50)
def test_rows_are_nearly_the_fewest(lengths: list[int], row_length: int) -> None:
    assert len(Packed(row_length).plan(lengths)) <= 11 / 9 * fewest_rows(lengths, row_length) + 2 / 3


def test_the_rows_of_an_example() -> None:
    plan = Packed(10).plan([3, 7, 4, 6, 5])
    assert [row.tolist() for row in plan.batches] == [[1, 0], [3, 2], [4]]
    assert plan.padded_lengths.tolist() == [10, 10, 10]
    assert plan.padded_sizes.tolist() == [1, 1, 1]
    assert plan.num_shapes == 1
    assert plan.padding == 1 - 25 / 30


def test_empty_samples_take_a_slot() -> None:
    assert [row.tolist() for row in Packed(2).plan([0, 0, 0]).batches] == [[0, 1], [2]]
    assert Packed(2).plan([0, 0, 0]).padding == 1.0


@pytest.mark.parametrize(
    ("draw", "row_length", "rows", "waste"),
    [
        (wiki, 512, 1_000, 0.0031),
        (wiki, 512, 10_000, 0.00044),
        (wiki, 512, 100_000, 0.00018),
        (sft, 4096, 1_000, 0.0033),
        (sft, 4096, 10_000, 0.0004),
        (sft, 4096, 100_000, 0.0001),
    ],
)
def test_waste_of_packing(draw: object, row_length: int, rows: int, waste: float) -> None:
    lengths = draw(100_000)  # type: ignore[operator]
    found, _ = by_window(Packed(row_length), lengths, rows)
    assert found <= 1.15 * waste


COST = AttentionCost(quadratic=1 / 10)


def row_costs(plan: Plan, lengths: list[int], cost: AttentionCost = COST) -> list[float]:
    return [sum(cost(1, lengths[number]) for number in row.tolist()) for row in plan.batches]


def least_work(lengths: list[int], row_length: int, num_rows: int) -> float:
    """Of the dearest row, of all packings into so many rows, by trying each row for each sample."""
    best = float("inf")

    def place(at: int, rooms: list[int], costs: list[float]) -> None:
        nonlocal best
        if max(costs) >= best:
            return
        if at == len(lengths):
            best = max(costs)
            return
        for row in range(num_rows):
            if rooms[row] >= lengths[at]:
                less = [room - lengths[at] * (other == row) for other, room in enumerate(rooms)]
                more = [cost + COST(1, lengths[at]) * (other == row) for other, cost in enumerate(costs)]
                place(at + 1, less, more)

    place(0, [row_length] * num_rows, [0.0] * num_rows)
    return best


def test_rows_by_cost_are_nearly_as_even_as_the_best_of_all_packings() -> None:
    draw = np.random.default_rng(0)
    even, full = [], []
    for _ in range(60):
        lengths, row_length = draw.integers(1, 20, draw.integers(1, 7)).tolist(), int(draw.integers(20, 40))
        by_fill, by_cost = Packed(row_length).plan(lengths), Packed(row_length, COST).plan(lengths)
        least = least_work(lengths, row_length, len(by_fill))
        even.append(max(row_costs(by_cost, lengths)) / least)
        full.append(max(row_costs(by_fill, lengths)) / least)
    assert np.mean(even) <= 1.01 < 1.1 <= np.mean(full)


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(20, 50))
@examples(150)
def test_rows_by_cost_hold_what_they_may_and_are_no_more(lengths: list[int], row_length: int) -> None:
    rows = [row.tolist() for row in Packed(row_length, COST).plan(lengths).batches]
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(0 < sum(max(1, lengths[number]) for number in row) <= row_length for row in rows)
    assert len(rows) <= len(textbook(lengths, row_length))


@pytest.mark.parametrize(("draw", "row_length"), [(wiki, 512), (sft, 4096)])
@pytest.mark.parametrize("count", [1_000, 10_000])
def test_rows_by_cost_are_of_like_work_and_waste_no_more(draw: object, row_length: int, count: int) -> None:
    lengths = draw(count)  # type: ignore[operator]
    cost = AttentionCost(quadratic=1 / 24_576)
    full, even = Packed(row_length).plan(lengths), Packed(row_length, cost).plan(lengths)
    assert even.padding <= full.padding + 0.001
    spread = [np.std(row_costs(plan, lengths.tolist(), cost)) for plan in (full, even)]
    assert spread[1] <= 0.95 * spread[0]
    heavy = [np.sort(row_costs(plan, lengths.tolist(), cost))[-len(plan) // 4 :].mean() for plan in (full, even)]
    assert heavy[1] < heavy[0]


def test_a_cost_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"^cost needs a function \(got 4\)$"):
        Packed(512, 4)  # type: ignore[arg-type]


def test_a_sample_longer_than_a_row_is_an_error() -> None:
    assert Packed(512).max_length == 512
    message = (
        r"a sample of 513 tokens \(sample 1\) cannot fit row_length=512; truncate or filter it, or take longer rows"
    )
    with pytest.raises(OverlongError, match=f"^{message}$"):
        Packed(512).plan([512, 513])
    with pytest.raises(ValueError, match=r"^row_length must be at least 1 token \(got 0\)$"):
        Packed(0)


def test_rows_of_any_length_take_no_more_memory() -> None:
    plan = Packed(1 << 40).plan([1 << 39, 1 << 38, 1 << 39])
    assert [row.tolist() for row in plan.batches] == [[0, 2], [1]]
