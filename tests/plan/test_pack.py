"""Packing: best-fit decreasing as the textbook says, and what it wastes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import by_window, sft, wiki
from brimful.plan import OverlongError, Packed
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


def test_a_sample_longer_than_a_row_is_an_error() -> None:
    assert Packed(512).max_length == 512
    message = (
        r"a sample of 513 tokens \(sample 1\) cannot fit row_length=512; truncate or filter it, or take longer rows"
    )
    with pytest.raises(OverlongError, match=f"^{message}$"):
        Packed(512).plan([512, 513])
    with pytest.raises(ValueError, match=r"^row_length must be at least 1 token \(got 0\)$"):
        Packed(0)
