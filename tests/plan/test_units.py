"""Units: neighbouring samples of which no plan parts any, held against brute force on small windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.memory import MemoryModel
from brimful.plan.buckets import Rounding
from brimful.plan.overlong import plan_with
from brimful.plan.plan import Plan, planned
from brimful.plan.rounded import Rounded

PEAKS = MemoryModel.fit([(1, 1), (1, 8), (4, 1), (4, 8)], [11, 18, 14, 42])
Fits = Callable[[Sequence[Any]], bool]
"""Whether a batch of samples of these lengths is within the limits."""


def longest(lengths: Sequence[Any]) -> int:
    return max(1, *lengths)


def slots(lengths: Sequence[Any]) -> int:
    return sum(max(1, length) for length in lengths)


def attention(lengths: Sequence[Any]) -> bool:
    return len(lengths) * longest(lengths) * (1 + longest(lengths) / 10) <= 80


ONE_LENGTH: dict[str, tuple[Any, Fits]] = {
    "fixed size": (bf.FixedSize(6), lambda own: len(own) <= 6),
    "arrival order": (bf.FixedSize(6, sort=False), lambda own: len(own) <= 6),
    "tokens": (bf.TokenBudget(40), lambda own: len(own) * longest(own) <= 40),
    "multiples": (bf.TokenBudget(40, pad_to_multiple_of=4), lambda own: len(own) * -(-longest(own) // 4) * 4 <= 40),
    "least padding": (bf.TokenBudget(40, planner="least_padding"), lambda own: len(own) * longest(own) <= 40),
    "cost": (bf.CostBudget(bf.AttentionCost(quadratic=0.1), 80), attention),
    "static": (bf.StaticShapes([4, 8], 40), lambda own: len(own) <= (10 if longest(own) <= 4 else 5)),
    "memory": (bf.MemoryBudget(PEAKS, 60), lambda own: len(own) <= PEAKS.largest_batch(longest(own), 60, risk=0.025)),
    "hardest first": (
        bf.MemoryBudget(PEAKS, 60, order="hardest_first"),
        lambda own: len(own) <= PEAKS.largest_batch(longest(own), 60, risk=0.025),
    ),
    "packed": (bf.Packed(40), lambda own: slots(own) <= 40),
    "packed by cost": (bf.Packed(40, lambda length: length**2), lambda own: slots(own) <= 40),
    "packed, few": (bf.Packed(40, row_limits={"samples": 6}), lambda own: len(own) <= 6 and slots(own) <= 40),
    "buckets": (Rounded(bf.FixedSize(6), Rounding(buckets=[4, 8])), lambda own: len(own) <= 6),
    "multi": (bf.MultiBudget(padded={"a": 40}, max_samples=6), lambda own: len(own) <= 6 and len(own) * longest(own) <= 40),
    "sum": (bf.MultiBudget(total={"a": 40}, max_samples=6), lambda own: len(own) <= 6 and sum(own) <= 40),
}  # fmt: skip
TWO_LENGTHS: dict[str, tuple[Any, Fits]] = {
    "pairs": (
        bf.TokenBudget(60),
        lambda own: len(own) * (longest([a for a, _ in own]) + longest([b for _, b in own])) <= 60,
    ),
    "fixed size": (bf.FixedSize(6), lambda own: len(own) <= 6),
    "padded and total": (
        bf.MultiBudget(padded={"a": 40}, total={"b": 30}),
        lambda own: len(own) * longest([a for a, _ in own]) <= 40 and sum(b for _, b in own) <= 30,
    ),
    "both padded": (
        bf.MultiBudget(padded={"a": 40, "b": 30}),
        lambda own: len(own) * longest([a for a, _ in own]) <= 40 and len(own) * longest([b for _, b in own]) <= 30,
    ),
    "packed": (
        bf.Packed(40, row_limits={"b": 30, "samples": 7}),
        lambda own: len(own) <= 7 and sum(max(1, a) for a, _ in own) <= 40 and sum(b for _, b in own) <= 30,
    ),
}
CASES = [(name, 1, *one) for name, one in ONE_LENGTH.items()] + [(name, 2, *one) for name, one in TWO_LENGTHS.items()]


def drawn(random: Random, num_sizes: int) -> tuple[list[Any], list[int]]:
    units = [number for number in range(random.randint(0, 9)) for _ in range(random.randint(1, 4))]
    sizes = [tuple(random.randint(0, 8) for _ in range(num_sizes)) for _ in units]
    return [size[0] if num_sizes == 1 else size for size in sizes], units


def array(lengths: list[Any], num_sizes: int) -> Any:
    return np.array(lengths, np.int64).reshape(len(lengths), *[num_sizes][: num_sizes - 1])


@pytest.mark.parametrize(
    ("name", "num_sizes", "policy", "fits"), CASES, ids=[f"{name}-{num}" for name, num, *_ in CASES]
)
def test_a_plan_keeps_units_whole_and_keeps_to_its_limits(name: str, num_sizes: int, policy: Any, fits: Fits) -> None:
    random = Random(name)
    for _ in range(150):
        lengths, units = drawn(random, num_sizes)
        values = array(lengths, num_sizes)
        whole = [[place for place, _ in own] for _, own in groupby(enumerate(units), key=lambda pair: pair[1])]
        too_large = [place for own in whole if not fits([lengths[place] for place in own]) for place in own]
        if too_large:
            with pytest.raises(bf.OverlongError) as caught:
                planned(policy, values, np.array(units))
            assert caught.value.sample in too_large
            assert {*caught.value.samples} <= {*too_large}
        plan, counts = plan_with(policy, values, "drop", np.array(units, np.int64))
        assert sorted(plan.numbers.tolist()) == sorted({*range(len(units))} - {*too_large})
        assert counts["dropped"] == len(too_large)
        for batch in plan.batches:
            own = batch.tolist()
            assert fits([lengths[place] for place in own])
            for unit in {units[place] for place in own}:
                first = units.index(unit)
                assert sorted(place for place in own if units[place] == unit) == [
                    *range(first, first + units.count(unit))
                ]
        assert_no_two_neighbours_would_do(plan, lengths, fits, name)


def assert_no_two_neighbours_would_do(plan: Plan, lengths: list[Any], fits: Fits, name: str) -> None:
    """The first unit of the next batch had no place in this one, where batches are cut from sorted units."""
    if name in ("hardest first", "packed", "packed by cost", "packed, few", "sum", "pairs", "both padded"):
        return
    for batch, after in zip(plan.batches, plan.batches[1:]):
        both = [lengths[place] for place in (*batch.tolist(), *after.tolist())]
        assert not fits(both)


@pytest.mark.parametrize("name", ["fixed size", "tokens", "multiples", "cost", "memory", "packed", "multi", "sum"])
def test_units_of_one_sample_are_as_samples(name: str) -> None:
    policy, _ = ONE_LENGTH[name]
    lengths = np.random.default_rng(0).integers(1, 9, 300)
    alone, plain = planned(policy, lengths, np.arange(300)), planned(policy, lengths)
    assert [batch.tolist() for batch in alone.batches] == [batch.tolist() for batch in plain.batches]
    assert alone.padded_lengths.tolist() == plain.padded_lengths.tolist()
    assert alone.padded_sizes.tolist() == plain.padded_sizes.tolist()
    assert alone.tokens == plain.tokens


def test_a_unit_that_is_too_large_is_alone() -> None:
    lengths, units = np.array([9, 2, 8, 8, 8, 50, 1, 3]), np.array([0, 0, 1, 1, 1, 2, 2, 3])
    plan, counts = plan_with(bf.TokenBudget(20), lengths, "alone", units)
    assert [batch.tolist() for batch in plan.batches] == [[2, 3, 4], [5, 6], [0, 1], [7]]
    assert plan.padded_lengths.tolist() == [8, 50, 9, 3]
    assert plan.padded_sizes.tolist() == [3, 2, 2, 1]
    assert counts["alone"] == 5


def test_units_do_not_become_one_where_what_lies_between_them_is_left_out() -> None:
    plan, counts = plan_with(bf.Packed(10), [6, 20, 6], "drop", np.array([7, 3, 7]))
    assert counts["dropped"] == 1
    assert sorted(batch.tolist() for batch in plan.batches) == [[0], [2]]


def test_a_unit_whose_samples_are_cut_may_fit() -> None:
    lengths, units = np.array([30, 4, 5, 6]), np.array([0, 1, 1, 1])
    plan, counts = plan_with(bf.TokenBudget(20), lengths, "truncate", units)
    assert [batch.tolist() for batch in plan.batches] == [[0], [1, 2, 3]]
    assert counts["truncated"] == 1


class Sorted:
    """A policy of a user's: two batches, the short half and the long half."""

    max_length = None

    def plan(self, lengths: Any) -> Plan:
        return Plan.of(lengths, [half for half in np.array_split(np.argsort(lengths, kind="stable"), 2) if len(half)])


class InOrder:
    """A policy of a user's that knows units."""

    max_length = None

    def plan(self, lengths: Any, units: Any = None) -> Plan:
        cuts = [0, *np.flatnonzero(np.diff(units)) + 1, len(lengths)]
        return Plan.of(lengths, [range(begin, end) for begin, end in pairwise(cuts)])


def test_a_policy_of_a_users_is_refused_by_name_where_it_parts_a_unit() -> None:
    lengths = np.array([1, 9, 2, 8])
    assert len(planned(Sorted(), lengths, np.array([0, 1, 2, 3]))) == 2
    words = "Sorted.plan does not fit the 4 samples that it was given: samples 0 to 1 are a unit, and lie in batches 0 and 1"
    with pytest.raises(ValueError, match=re.escape(words)):
        planned(Sorted(), lengths, np.array([0, 0, 1, 1]))
    assert [batch.tolist() for batch in planned(InOrder(), lengths, np.array([0, 0, 1, 1])).batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            lambda: bf.TokenBudget(20).plan([8, 2, 2], units=[0, 0, 0]),
            "a unit of 3 samples (sample 0) is padded to 8 tokens, and cannot fit a batch of that "
            "length, which has at most 2 samples; filter it, or raise the budget",
        ),
        (
            lambda: bf.FixedSize(2).plan([8, 2, 2, 1], units=[7, 0, 0, 0]),
            "a unit of 3 samples (sample 1) is padded to 2 tokens, and cannot fit a batch of that "
            "length, which has at most 2 samples",
        ),
        (
            lambda: bf.Packed(10).plan([8, 2, 2], units=[0, 0, 0]),
            "a unit of 3 samples (sample 0) has 12 in sum, and cannot fit row_length=10; filter it, or raise the limit",
        ),
        (
            lambda: bf.MultiBudget(padded={"a": 99}, total={"b": 9}).plan([[1, 5], [1, 5]], units=[0, 0]),
            "a unit of 2 samples (sample 0) has 10 in sum, and cannot fit b=9",
        ),
        (
            lambda: bf.MultiBudget(total={"b": 9}, max_samples=1).plan([5, 1], units=[0, 0]),
            "a unit of 2 samples (sample 0) has 2 in sum, and cannot fit samples=1",
        ),
        (
            lambda: bf.steps([8, 2, 2], 10, 1, units=[0, 0, 0]),
            "or raise the limit, or share it among the micro batches of a rank (units_within='rank')",
        ),
        (
            lambda: bf.TokenBudget(20).plan([8, 2], units=[0]),
            "units has a number for each of 2 samples (got an array of shape (1,))",
        ),
    ],
)
def test_what_a_unit_cannot_fit_is_told_with_both_numbers(plan: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        plan()
