"""Least padding against all cuts of a sorted window, and on large windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import by_window, sft, wiki
from brimful.plan import TokenBudget, cut
from tests.effort import examples

LONGEST = 20
lengths = st.lists(st.integers(0, LONGEST), min_size=1, max_size=9)
budgets = st.integers(LONGEST, 70)


def all_cuts(lengths: list[int], budget: int) -> Iterator[tuple[int, int]]:
    """Batches and slots of every cut of the lengths, longest first, into batches within the budget."""
    ordered = sorted((max(1, length) for length in lengths), reverse=True)
    inner = range(1, len(ordered))
    for count in range(len(ordered)):
        for middle in combinations(inner, count):
            bounds = [0, *middle, len(ordered)]
            slots = [(end - start) * ordered[start] for start, end in pairwise(bounds)]
            if max(slots) <= budget:
                yield len(slots), sum(slots)


@given(lengths, budgets)
@examples(80)
def test_no_cut_into_as_few_batches_has_fewer_slots(lengths: list[int], budget: int) -> None:
    plan = TokenBudget(budget, planner="least_padding").plan(lengths)
    assert (len(plan), plan.slots) == min(all_cuts(lengths, budget))


@given(lengths, budgets, st.sampled_from([0.0, 0.05, 0.3, 1.0, 9.0]))
@examples(80)
def test_no_cut_costs_less_where_a_batch_has_a_price(lengths: list[int], budget: int, step_cost: float) -> None:
    plan = TokenBudget(budget, planner="least_padding", step_cost=step_cost).plan(lengths)
    step = round(step_cost * budget)
    assert plan.slots + step * len(plan) == min(slots + step * count for count, slots in all_cuts(lengths, budget))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=200), st.integers(400, 3000))
@examples(40)
def test_least_padding_never_pads_more_than_greedy(lengths: list[int], budget: int) -> None:
    greedy = TokenBudget(budget).plan(lengths)
    least = TokenBudget(budget, planner="least_padding").plan(lengths)
    assert len(least) == len(greedy)
    assert least.slots <= greedy.slots


def test_many_places_for_a_boundary_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = wiki(3_000)
    exact = TokenBudget(65_536, planner="least_padding").plan(lengths)
    monkeypatch.setattr(cut, "_MOST_PLACES", 2)
    thinned = TokenBudget(65_536, planner="least_padding").plan(lengths)
    greedy = TokenBudget(65_536).plan(lengths)
    assert len(exact) == len(thinned) == len(greedy)
    assert exact.slots < thinned.slots <= greedy.slots


@pytest.mark.parametrize(("draw", "greedy", "fewest"), [(wiki, 0.0305, 0.0270), (sft, 0.0055, 0.0050)])
def test_padding_of_windows_of_ten_thousand(draw: object, greedy: float, fewest: float) -> None:
    lengths = draw(100_000, seed=2)  # type: ignore[operator]
    padding, batches = by_window(TokenBudget(16_384), lengths, 10_000)
    assert padding <= greedy
    least, same = by_window(TokenBudget(16_384, planner="least_padding"), lengths, 10_000)
    assert least <= fewest
    assert same == batches
    priced, more = by_window(TokenBudget(16_384, planner="least_padding", step_cost=0.05), lengths, 10_000)
    assert priced <= 0.0190
    assert batches <= more <= 1.1 * batches


def test_a_price_of_five_percent_over_a_corpus_like_wikitext_2() -> None:
    plan = TokenBudget(16_384, planner="least_padding", step_cost=0.05).plan(wiki(23_767))
    assert plan.padding <= 0.009


def test_a_boundary_at_no_length_change_is_found() -> None:
    # Two batches are enough only if the second is full, so it has to begin inside the run of tens.
    lengths = np.array([40, 10, 10, 10, 10, 10, 10])
    plan = TokenBudget(40, planner="least_padding").plan(lengths)
    assert [len(batch) for batch in plan.batches] == [1, 2, 4]
    assert plan.padding == 0.0
