"""Fixed sizes and budgets: exact examples, the least number of batches, pairs, and every refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import by_window, wiki
from brimful.plan import AttentionCost, CostBudget, FixedSize, OverlongError, TokenBudget
from brimful.plan.cut import ascending, longest_first
from tests.effort import examples


def batches(policy: FixedSize | TokenBudget | CostBudget, lengths: object) -> list[list[int]]:
    return [batch.tolist() for batch in policy.plan(lengths).batches]  # type: ignore[arg-type]


def test_the_example_of_the_interface() -> None:
    plan = TokenBudget(60).plan([50, 30, 20, 20, 30, 20])
    assert [batch.tolist() for batch in plan.batches] == [[0], [1, 4], [2, 3, 5]]
    assert plan.padded_lengths.tolist() == [50, 30, 20]
    assert plan.padded_sizes.tolist() == [1, 2, 3]


def test_a_fixed_size_sorts_or_keeps_the_order_of_arrival() -> None:
    assert batches(FixedSize(2), [5, 9, 7, 9, 1]) == [[1, 3], [2, 0], [4]]
    assert batches(FixedSize(2, sort=False), [5, 9, 7, 9, 1]) == [[0, 1], [2, 3], [4]]
    assert FixedSize(2, sort=False).plan([5, 9, 7, 9, 1]).padded_lengths.tolist() == [9, 9, 1]
    assert FixedSize(2).max_length is None


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(12, 40))
@examples(60)
def test_greedy_makes_the_least_number_of_batches(lengths: list[int], budget: int) -> None:
    @cache
    def least(left: frozenset[int]) -> int:
        if not left:
            return 0
        first, *others = sorted(left)
        found = []
        for choice in range(1 << len(others)):
            batch = {first, *(other for bit, other in enumerate(others) if choice >> bit & 1)}
            if len(batch) * max(1, *(lengths[sample] for sample in batch), 1) <= budget:
                found.append(1 + least(left - batch))
        return min(found)

    assert len(TokenBudget(budget).plan(lengths)) == least(frozenset(range(len(lengths))))


def test_padded_lengths_are_multiples_or_buckets() -> None:
    assert TokenBudget(64, pad_to_multiple_of=8).plan([17, 8, 0]).padded_lengths.tolist() == [24, 8]
    assert TokenBudget(64, pad_to_multiple_of=8).plan([0]).padded_lengths.tolist() == [8]
    assert TokenBudget(64, buckets=[30, 10]).plan([11, 10, 0]).padded_lengths.tolist() == [30, 10]
    assert TokenBudget(64, buckets=[16, 32], pad_to_multiple_of=16).buckets == (16, 32)


def test_a_budget_counts_the_padded_shape() -> None:
    assert batches(TokenBudget(48, pad_to_multiple_of=16), [12, 12, 12, 12]) == [[0, 1, 2], [3]]
    assert batches(TokenBudget(48, buckets=[24]), [12, 12, 12]) == [[0, 1], [2]]


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(30, 200))
@examples(50)
def test_a_cost_of_slots_is_a_token_budget(lengths: list[int], budget: int) -> None:
    cost: Callable[[int, int], float] = lambda rows, length: rows * length  # noqa: E731
    assert batches(CostBudget(cost, budget), lengths) == batches(TokenBudget(budget), lengths)
    assert batches(CostBudget(AttentionCost(quadratic=0), budget), lengths) == batches(TokenBudget(budget), lengths)
    by_size: Callable[[int, int], float] = lambda rows, length: rows  # noqa: E731
    assert batches(CostBudget(by_size, 7), lengths) == batches(FixedSize(7), lengths)


def test_a_quadratic_cost_puts_fewer_long_samples_in_a_batch() -> None:
    plan = CostBudget(AttentionCost(quadratic=1 / 10), 240).plan([30, 30, 20, 20, 20, 20, 10])
    assert [batch.tolist() for batch in plan.batches] == [[0, 1], [2, 3, 4, 5], [6]]


def test_the_longest_sample_is_the_last_that_can_be_placed() -> None:
    for policy in (
        TokenBudget(60),
        TokenBudget(60, pad_to_multiple_of=16),
        TokenBudget(60, buckets=[7, 31]),
        CostBudget(AttentionCost(quadratic=0.5), 100),
        CostBudget(lambda rows, length: length, 1023.5),
    ):
        longest = policy.max_length
        assert longest is not None
        assert len(policy.plan([longest])) == 1
        with pytest.raises(OverlongError):
            policy.plan([longest + 1])
    assert CostBudget(lambda rows, length: rows, 10).max_length is None
    assert len(CostBudget(lambda rows, length: 1, 10).plan([5, 1 << 50])) == 1


def test_a_budget_of_pairs_counts_both_lengths() -> None:
    plan = TokenBudget(60).plan([[10, 20], [10, 20], [5, 1]])
    assert [batch.tolist() for batch in plan.batches] == [[0, 1], [2]]
    assert plan.padded_lengths.tolist() == [[10, 20], [5, 1]]
    assert (plan.slots, plan.padding) == (66, 0.0)
    assert TokenBudget(60, pad_to_multiple_of=8).plan([[10, 20]]).padded_lengths.tolist() == [[16, 24]]


def test_pairs_are_cut_in_strips_not_by_source_alone() -> None:
    sources = wiki(30_000)
    ratio = np.random.default_rng(1).lognormal(0, 0.4, len(sources))
    pairs = np.stack([sources, np.clip((sources * ratio).astype(int), 1, 1024)], axis=1)
    by_source = pairs[np.argsort(-sources, kind="stable")]
    plan = TokenBudget(8192).plan(pairs)
    assert plan.padding <= 0.05
    in_order = FixedSize(len(pairs) // len(plan), sort=False).plan(by_source)
    assert in_order.padding >= 0.25


def test_the_radix_sort_is_stable_at_any_width() -> None:
    random = np.random.default_rng(0)
    for bits in (1, 15, 16, 17, 33, 49):
        values = random.integers(0, 1 << bits, 2000) // 7 * 7
        assert (ascending(values) == np.argsort(values, kind="stable")).all()
        assert (longest_first(values) == np.argsort(-values, kind="stable")).all()


def test_padding_of_sorted_windows_of_wiki() -> None:
    lengths = wiki(200_000)
    arrival, _ = by_window(FixedSize(32, sort=False), lengths, len(lengths))
    assert arrival == pytest.approx(0.727, abs=0.005)
    for rows, padding in ((1_000, 0.198), (10_000, 0.0297), (100_000, 0.0034)):
        found, _ = by_window(TokenBudget(16_384), lengths, rows)
        assert found == pytest.approx(padding, abs=0.002)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedSize(0), "n must be at least 1 sample (got 0)"),
        (lambda: TokenBudget(0), "max_tokens must be at least 1 token (got 0)"),
        (lambda: TokenBudget(8, pad_to_multiple_of=0), "pad_to_multiple_of must be at least 1 token (got 0)"),
        (lambda: TokenBudget(8, pad_to_multiple_of=9), "pad_to_multiple_of must be at most max_tokens=8 (got 9)"),
        (lambda: TokenBudget(8, buckets=[]), "buckets must be at least 1 length (got none)"),
        (lambda: TokenBudget(8, buckets=[0, 4]), "buckets must be at least 1 token (got 0)"),
        (lambda: TokenBudget(1000, buckets=[1024]), "buckets must be at most max_tokens=1,000 (got 1,024)"),
        (
            lambda: TokenBudget(99, buckets=[8, 12], pad_to_multiple_of=8),
            "buckets must be multiples of pad_to_multiple_of=8 (got 12)",
        ),
        (lambda: TokenBudget(8, planner="best"), "planner must be one of greedy, least_padding (got 'best')"),
        (lambda: TokenBudget(8, step_cost=0.1), "step_cost needs planner='least_padding' (got 'greedy')"),
        (
            lambda: TokenBudget(8, planner="least_padding", step_cost=-0.1),
            "step_cost must not be negative (got -0.1)",
        ),
        (lambda: AttentionCost(quadratic=-1), "linear and quadratic must not be negative (got 1.0, -1)"),
        (
            lambda: CostBudget(AttentionCost(quadratic=9), 7),
            "limit must be at least that of one token, cost(1, 1)=10.0 (got 7)",
        ),
    ],
)
def test_settings_that_allow_no_batch_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


def test_a_size_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="max_tokens must be an integer"):
        TokenBudget(1e4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "lengths", "message"),
    [
        (
            TokenBudget(8192),
            [1, 2, 3, 9120, 10_000],
            "a sample of 9,120 tokens (sample 3) cannot fit max_tokens=8,192; truncate or filter it, or raise the budget",
        ),
        (
            TokenBudget(60, pad_to_multiple_of=16),
            [48, 49],
            "a sample of 49 tokens (sample 1) cannot fit max_tokens=60 in multiples of 16;"
            " truncate or filter it, or raise the budget",
        ),
        (
            TokenBudget(8192, buckets=[512, 1024]),
            [1025],
            "a sample of 1,025 tokens (sample 0) cannot fit max_tokens=8,192 in buckets of at most 1,024;"
            " truncate or filter it, or raise the budget or add a longer bucket",
        ),
        (
            TokenBudget(60),
            [[30, 30], [31, 30]],
            "a sample of 31 + 30 tokens (sample 1) cannot fit max_tokens=60; truncate or filter it, or raise the budget",
        ),
        (
            TokenBudget(60, buckets=[20]),
            [[21, 1]],
            "a sample of 21 + 1 tokens (sample 0) cannot fit max_tokens=60 in buckets of at most 20;"
            " truncate or filter it, or raise the budget or add a longer bucket",
        ),
        (
            CostBudget(AttentionCost(quadratic=1), 930),
            [30, 31],
            "a sample of 31 tokens (sample 1) cannot fit limit=930 (at most 30 tokens);"
            " truncate or filter it, or raise the limit",
        ),
    ],
)
def test_a_sample_that_cannot_fit_is_an_error_with_both_numbers(
    policy: TokenBudget | CostBudget, lengths: list[int], message: str
) -> None:
    with pytest.raises(OverlongError, match=f"^{re.escape(message)}$"):
        policy.plan(lengths)


def test_a_cost_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cost must be a function of \(batch_size, padded_length\) \(got 100.0\)"):
        CostBudget(100.0, AttentionCost(quadratic=1))  # type: ignore[arg-type]


def test_a_cost_that_falls_where_lengths_grow_is_refused() -> None:
    def cost(rows: int, length: int) -> float:
        return rows * length * (1 if length % 8 == 0 else 1.3)

    for lengths, words in ([64, 63, 60, 8], "63"), ([[32, 32], [30, 33], [4, 4]], r"30 \+ 33"):
        with pytest.raises(ValueError, match=f"a batch of one sample of {words} tokens is beyond the limit"):
            CostBudget(cost, 64).plan(lengths)
