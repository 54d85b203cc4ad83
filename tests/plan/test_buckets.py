"""Buckets: optimal ones against all choices, the tables, and every refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.plan import sft, wiki
from brimful.plan import optimal_buckets, uniform_buckets
from brimful.plan.buckets import pad_to_buckets
from tests.effort import examples

Cost = Callable[[int], float]

costs: dict[str, Cost | None] = {
    "length": None,
    "quadratic": lambda length: length * (1 + length / 7),
    "flat": lambda length: 3,
    "steps": lambda length: length // 5,
    "root": lambda length: length**0.5,
}


def total(lengths: list[int], buckets: list[int], cost: Cost | None) -> float:
    padded = pad_to_buckets(np.array(lengths), buckets).tolist()
    return float(sum(padded) if cost is None else sum(map(cost, padded)))


def padding(lengths: NDArray[np.int64], buckets: list[int]) -> float:
    return 1 - lengths.sum() / pad_to_buckets(lengths, buckets).sum()


@given(
    st.lists(st.integers(0, 25), min_size=1, max_size=30),
    st.integers(1, 6),
    st.sampled_from(sorted(costs)),
    st.sampled_from([1, 4]),
    st.sampled_from([None, 25, 31]),
)
@examples(120)
def test_no_other_buckets_cost_less(
    lengths: list[int], num_buckets: int, name: str, multiple: int, max_length: int | None
) -> None:
    cost = costs[name]
    found = optimal_buckets(lengths, num_buckets, cost=cost, multiple_of=multiple, max_length=max_length)
    rounded = {max(1, -(-length // multiple)) * multiple for length in [*lengths, max_length or 0]}
    top = max(rounded)
    least = min(
        total(lengths, sorted({*some, top}), cost)
        for count in range(num_buckets)
        for some in combinations(sorted(rounded), count)
    )
    assert found == sorted(set(found))
    assert len(found) <= num_buckets
    assert found[-1] == top
    assert set(found) <= rounded
    assert total(lengths, found, cost) == pytest.approx(least)


def test_buckets_are_as_many_as_help() -> None:
    assert optimal_buckets([5, 5, 9], 4) == [5, 9]
    assert optimal_buckets([5], 3) == [5]
    assert optimal_buckets([0, 0], 1) == [1]
    assert optimal_buckets([10, 11, 12, 50, 51, 100], 3) == [12, 51, 100]


@pytest.mark.parametrize(
    ("draw", "num_buckets", "exact", "uniform"),
    [
        (wiki, 8, 0.169, 0.261),
        (wiki, 16, 0.086, 0.140),
        (wiki, 32, 0.042, 0.064),
        (sft, 8, 0.185, 0.275),
        (sft, 16, 0.097, 0.150),
        (sft, 32, 0.050, 0.079),
    ],
)
def test_padding_of_buckets(
    draw: Callable[[int], NDArray[np.int64]], num_buckets: int, exact: float, uniform: float
) -> None:
    lengths = draw(200_000)
    longest = int(lengths.max())
    optimal = optimal_buckets(lengths, num_buckets)
    assert len(optimal) == num_buckets
    assert padding(lengths, optimal) == pytest.approx(exact, abs=0.002)
    assert padding(lengths, uniform_buckets(longest, num_buckets)) == pytest.approx(uniform, abs=0.004)
    assert padding(lengths, optimal) * num_buckets == pytest.approx(1.4, abs=0.2)


@pytest.mark.parametrize("draw", [wiki, sft])
def test_a_sample_of_the_lengths_is_enough(draw: Callable[[int], NDArray[np.int64]]) -> None:
    lengths = draw(200_000)
    drawn = optimal_buckets(lengths[:10_000], 16, max_length=int(lengths.max()))
    assert drawn[-1] == lengths.max()
    assert padding(lengths, drawn) <= padding(lengths, optimal_buckets(lengths, 16)) + 0.002


def test_buckets_at_equal_distances() -> None:
    assert uniform_buckets(1024, 4) == [256, 512, 768, 1024]
    assert uniform_buckets(1000, 7) == [143, 286, 429, 572, 715, 858, 1000]
    assert uniform_buckets(3, 8) == [1, 2, 3]
    for longest, num_buckets in ((10, 7), (1, 1), (4096, 33)):
        found = uniform_buckets(longest, num_buckets)
        assert found[-1] == longest
        assert len(found) <= num_buckets


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimal_buckets([], 2), "optimal_buckets needs at least 1 length (got none)"),
        (lambda: optimal_buckets([1], 0), "num_buckets must be at least 1 bucket (got 0)"),
        (lambda: optimal_buckets([1], 1, multiple_of=0), "multiple_of must be at least 1 token (got 0)"),
        (
            lambda: optimal_buckets([1, 2000], 1, max_length=1024),
            "max_length must be at least the longest length, 2,000 (got 1,024)",
        ),
        (
            lambda: optimal_buckets([1, 2, 3], 1, cost=lambda length: -length),
            "cost must never fall with length (got cost(1)=-1.0, cost(2)=-2.0)",
        ),
        (
            lambda: optimal_buckets([[1, 2]], 1),
            "optimal_buckets takes one length a sample (got shape (1, 2)); TokenBudget takes several",
        ),
        (lambda: uniform_buckets(0, 1), "max_length must be at least 1 token (got 0)"),
        (lambda: uniform_buckets(1, -1), "num_buckets must be at least 1 bucket (got -1)"),
    ],
)
def test_what_makes_no_buckets_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
