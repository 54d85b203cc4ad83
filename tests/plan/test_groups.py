"""Groups against every partition there is, and thresholds against every set of them."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.plan.groups import balanced_thresholds, by_thresholds, find_thresholds, optimal_partition
from tests.effort import examples

COSTS: dict[str, Callable[..., float] | None] = {
    "product": None,
    "quadratic": lambda *lengths: float(sum(lengths)) ** 2,
    "flat": lambda *lengths: 3.0,
    "falling": lambda *lengths: 100.0 - sum(lengths),
    "waves": lambda *lengths: 1.0 + sum(length * 7 % 5 for length in lengths),
}

FALL = ("falling", "waves")
"""Those that fall somewhere."""


def partitions(numbers: Sequence[int], most: int) -> Iterator[list[list[int]]]:
    """Every way to divide some numbers into at most `most` groups."""
    if not numbers:
        yield []
        return
    for rest in partitions(numbers[1:], most):
        if len(rest) < most:
            yield [[numbers[0]], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [numbers[0], *group], *rest[i + 1 :]]


def group_costs(lengths: Any, groups: Sequence[Any], cost: Callable[..., float] | None) -> list[float]:
    rows = np.maximum(np.asarray(lengths).reshape(len(lengths), -1), 1)
    tops = [rows[np.asarray(group)].max(axis=0).tolist() for group in groups]
    return [len(group) * float(cost(*top) if cost else np.prod(top)) for group, top in zip(groups, tops)]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 4), st.sampled_from(sorted(COSTS)))
@examples(150)
def test_no_other_partition_costs_less(lengths: list[int], num_groups: int, name: str) -> None:
    cost = COSTS[name]
    least = min(sum(group_costs(lengths, groups, cost)) for groups in partitions(range(len(lengths)), num_groups))
    found = optimal_partition(lengths, num_groups, cost=cost)
    assert sorted(np.concatenate(found).tolist()) == [*range(len(lengths))]
    assert len(found) <= num_groups
    assert sum(group_costs(lengths, found, cost)) == pytest.approx(least)
    thresholds = find_thresholds(lengths, num_groups, cost=cost)
    assert thresholds == sorted(set(thresholds))
    assert len(thresholds) < num_groups
    assert sum(group_costs(lengths, by_thresholds(lengths, thresholds), cost)) == pytest.approx(least)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from(sorted(COSTS)),
)
@examples(100)
def test_no_other_partition_by_two_lengths_costs_less(
    lengths: list[tuple[int, int]], num_groups: int, name: str
) -> None:
    cost = COSTS[name]
    if name in FALL:
        lengths = [*dict.fromkeys((max(a, 1), max(b, 1)) for a, b in lengths)]
    least = min(sum(group_costs(lengths, groups, cost)) for groups in partitions(range(len(lengths)), num_groups))
    found = optimal_partition(lengths, num_groups, cost=cost)
    assert sorted(np.concatenate(found).tolist()) == [*range(len(lengths))]
    assert len(found) <= num_groups
    assert sum(group_costs(lengths, found, cost)) == pytest.approx(least)


def test_equal_samples_stay_together_though_a_cost_that_falls_would_part_them() -> None:
    lengths, cost = [(3, 1), (2, 2), (2, 2), (3, 1)], COSTS["waves"]
    assert [group.tolist() for group in optimal_partition(lengths, 2, cost=cost)] == [[0, 1, 2, 3]]
    assert sum(group_costs(lengths, [[0, 1, 2, 3]], cost)) == 24
    assert sum(group_costs(lengths, [[0, 1, 2], [3]], cost)) == 22


@given(st.integers(9, 13), st.integers(1, 4), st.sampled_from(["product", "quadratic", "waves"]), st.randoms())
@examples(30)
def test_of_many_pairs_no_runs_cost_less(count: int, num_groups: int, name: str, random: Any) -> None:
    cost = COSTS[name]
    lengths = np.array(random.sample([(i, j) for i in range(1, 9) for j in range(1, 9)], count))
    least = np.inf
    for order in (np.lexsort((lengths[:, 1], lengths[:, 0])), np.lexsort((lengths[:, 0], lengths[:, 1]))):
        for ends in (ends for k in range(num_groups) for ends in combinations(range(1, count), k)):
            least = min(least, sum(group_costs(lengths, np.split(order, ends), cost)))
    found = optimal_partition(lengths, num_groups, cost=cost)
    assert sorted(np.concatenate(found).tolist()) == [*range(count)]
    assert len(found) <= num_groups
    assert sum(group_costs(lengths, found, cost)) <= least + 1e-9


def test_a_cost_of_pairs_is_asked_for_few_shapes_and_little_is_kept() -> None:
    draw = np.random.default_rng(0)
    sources = np.clip(draw.lognormal(5, 1, 600).astype(int), 1, 4_096)
    targets = np.maximum(1, (sources * draw.uniform(0.7, 1.3, 600)).astype(int))
    asked: list[tuple[int, ...]] = []

    def cost(*lengths: int) -> float:
        asked.append(lengths)
        return float(sum(lengths))

    tracemalloc.start()
    try:
        found = optimal_partition(np.stack([sources, targets], axis=1), 6, cost=cost)
        kept = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(np.concatenate(found).tolist()) == [*range(600)]
    assert len(asked) == len(set(asked)) <= 10 * 600
    assert kept <= 2_000 * 600  # 8 x 600 x 600 bytes are a number a run


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.integers(1, 5),
    st.sampled_from(["product", "quadratic", "flat"]),
)
@examples(150)
def test_the_dearest_of_balanced_groups_is_the_cheapest(lengths: list[int], num_groups: int, name: str) -> None:
    cost = COSTS[name]
    values = sorted(set(lengths))
    least = min(
        max(group_costs(lengths, by_thresholds(lengths, some), cost))
        for count in range(num_groups)
        for some in combinations(values, count)
    )
    thresholds = balanced_thresholds(lengths, num_groups, cost=cost)
    assert len(thresholds) < num_groups
    assert max(group_costs(lengths, by_thresholds(lengths, thresholds), cost)) == pytest.approx(least)


def test_the_demo_has_its_thresholds() -> None:
    lengths = np.repeat([1, 4, 16, 64], [771, 193, 48, 12])
    assert bf.grouping.find_thresholds(lengths, 4) == [1, 4, 16]
    assert bf.grouping.find_thresholds(lengths[::-1].copy(), 4) == [1, 4, 16]
    assert bf.grouping.find_thresholds([7, 7], 4) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: find_thresholds([], 2), "find_thresholds needs at least 1 length (got none)"),
        (lambda: find_thresholds([1], 0), "num_groups must be at least 1 group (got 0)"),
        (lambda: find_thresholds([1, 2], 2, cost=lambda length: np.nan), "cost must be finite (got cost(1)=nan)"),
        (lambda: balanced_thresholds([], 2), "balanced_thresholds needs at least 1 length (got none)"),
        (
            lambda: balanced_thresholds([1, 2], 2, cost=lambda length: -length),
            "balanced_thresholds: cost must never fall with length (got cost(1)=-1.0, cost(2)=-2.0)",
        ),
        (lambda: optimal_partition(np.zeros((0, 2), int), 2), "optimal_partition needs at least 1 length (got none)"),
        (lambda: optimal_partition([[1, -1]], 2), "lengths must not be negative (sample 0 has -1)"),
    ],
)
def test_what_makes_no_groups_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
