"""What every plan promises, whatever the policy, and what it refuses."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from benchmarks.plan import sft, wiki
from brimful.plan import (
    AttentionCost,
    CostBudget,
    FixedSize,
    MultiBudget,
    Packed,
    Plan,
    Policy,
    StaticShapes,
    TokenBudget,
    as_lengths,
)
from brimful.plan.buckets import Rounding
from brimful.plan.plan import is_proven, planned
from brimful.plan.rounded import Rounded
from brimful.plan.stacked import Stacked, stacked
from tests.effort import examples

MOST = 60  # tokens: every policy drawn here can place them, one or two lengths of half of it

sizes = st.integers(1, 9)
budgets = st.integers(2 * MOST, 400)
buckets = st.sets(st.integers(1, MOST), max_size=4).map(lambda some: sorted(some | {MOST}))
of_pairs = st.one_of(
    st.builds(FixedSize, sizes, sort=st.booleans()),
    st.builds(TokenBudget, budgets),
    st.builds(TokenBudget, budgets, pad_to_multiple_of=st.sampled_from([1, 8, 12])),
    st.builds(TokenBudget, budgets, buckets=buckets),
    st.builds(CostBudget, st.builds(AttentionCost, quadratic=st.floats(0, 0.1)), st.integers(2000, 4000)),
)
policies = of_pairs | st.one_of(
    st.builds(TokenBudget, budgets, planner=st.just("least_padding"), step_cost=st.none() | st.floats(0, 1)),
    st.builds(StaticShapes, buckets, budgets),
    st.builds(Packed, st.integers(MOST, 200)),
)
of_two_sizes = st.one_of(
    st.builds(lambda a, b: MultiBudget(padded={"a": a}, total={"b": b}), budgets, budgets),
    st.builds(lambda a, b, n: MultiBudget(padded={"a": a, "b": b}, max_samples=n), budgets, budgets, sizes),
    st.builds(lambda a, b: MultiBudget(total={"a": a, "b": b}), budgets, budgets),
    st.builds(lambda a, b, n: Packed(a, row_limits={"b": b, "samples": n}), budgets, budgets, sizes),
    st.builds(Stacked, st.builds(TokenBudget, budgets), st.just(2)),
)
lengths = st.lists(st.integers(0, MOST), max_size=40)
pairs = st.lists(st.tuples(st.integers(0, MOST // 2), st.integers(0, MOST // 2)), max_size=40)

LARGE = {
    "wiki": (wiki(20_000), 512),
    "sft": (sft(20_000), 4096),
    "all equal": (np.full(20_000, 77), 77),
    "one length": (np.array([3]), 3),
    "empty samples": (np.zeros(500, np.int64), 0),
}


def of_every_kind(longest: int) -> list[Policy]:
    """Each policy, with room for samples of that length."""
    budget = 4 * max(longest, 1)
    return [
        FixedSize(32),
        FixedSize(32, sort=False),
        TokenBudget(budget),
        TokenBudget(budget, pad_to_multiple_of=8 if longest > 8 else 1),
        TokenBudget(budget, planner="least_padding"),
        TokenBudget(budget, planner="least_padding", step_cost=0.05),
        CostBudget(AttentionCost(quadratic=1 / 512), 16.0 * max(longest, 1) ** 2),
        StaticShapes([max(longest // 2, 1), max(longest, 1)], budget),
        Packed(max(longest, 1)),
    ]


def as_lists(plan: Plan) -> tuple[object, ...]:
    return [batch.tolist() for batch in plan.batches], plan.padded_lengths.tolist(), plan.padded_sizes.tolist()


def check(policy: Policy, lengths: np.ndarray) -> None:
    """Each sample once; all as long as their batch is padded, or shorter; nothing over the limit; the same again."""
    plan = policy.plan(lengths)
    assert sorted(np.concatenate([[], *plan.batches]).tolist()) == list(range(len(lengths)))
    assert all(len(batch) and batch.dtype == np.int64 for batch in plan.batches)
    assert plan.tokens == lengths.sum()
    for batch, columns, rows in zip(plan.batches, plan.padded_lengths, plan.padded_sizes, strict=True):
        slots = rows * np.sum(columns)
        match policy:
            case Packed():
                assert (rows, columns) == (1, policy.row_length)
                assert lengths[batch].sum() <= columns
                continue
            case FixedSize():
                assert rows <= policy.n
            case TokenBudget():
                assert slots <= policy.max_tokens
                assert policy.buckets is None or np.isin(columns, policy.buckets).all()
                assert not (columns % policy.pad_to_multiple_of).any()
            case CostBudget():
                assert policy.cost(int(rows), int(np.sum(columns))) <= policy.limit
            case StaticShapes():
                assert rows == policy.max_tokens // columns
        assert (lengths[batch] <= columns).all()
        assert (columns >= 1).all()
        assert len(batch) == rows or isinstance(policy, StaticShapes)
    assert as_lists(plan) == as_lists(policy.plan(lengths.tolist()))


@given(policies, lengths)
@examples(150)
def test_a_plan_keeps_every_promise(policy: Policy, lengths: list[int]) -> None:
    check(policy, as_lengths(lengths))


@given(of_pairs, pairs)
@examples(100)
def test_a_plan_of_pairs_keeps_every_promise(policy: Policy, pairs: list[tuple[int, int]]) -> None:
    check(policy, np.array(pairs, dtype=np.int64).reshape(-1, 2))


@pytest.mark.parametrize("name", LARGE)
def test_a_large_plan_keeps_every_promise(name: str) -> None:
    lengths, longest = LARGE[name]
    for policy in of_every_kind(longest):
        check(policy, lengths)


@given(policies, lengths)
@examples(50)
def test_equal_lengths_keep_the_order_of_arrival(policy: Policy, lengths: list[int]) -> None:
    plan = policy.plan(lengths)
    if isinstance(policy, Packed):
        return  # a longer row may be opened for a sample after a shorter one
    arrival = np.concatenate([np.zeros(0, np.int64), *plan.batches])
    for length in set(lengths):
        same = [number for number in arrival.tolist() if lengths[number] == length]
        assert same == sorted(same)


@given(policies, st.lists(st.integers(1, MOST), max_size=30), st.randoms(use_true_random=False))
@examples(50)
def test_shapes_do_not_depend_on_the_order_of_arrival(policy: Policy, lengths: list[int], random: object) -> None:
    if isinstance(policy, FixedSize) and not policy.sort:
        return
    mixed = sorted(lengths, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert as_lists(policy.plan(lengths))[1:] == as_lists(policy.plan(mixed))[1:]


@given(policies)
@examples(30)
def test_a_policy_is_a_value(policy: Policy) -> None:
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert isinstance(policy, Policy)


@pytest.mark.parametrize("name", LARGE)
def test_every_policy_of_ours_makes_plans_that_fit(name: str) -> None:
    lengths, longest = LARGE[name]
    for policy in of_every_kind(longest):
        assert len(planned(policy, lengths)) > 0


@pytest.mark.parametrize("policy", of_every_kind(60), ids=repr)
def test_no_samples_make_an_empty_plan(policy: Policy) -> None:
    plan = policy.plan([])
    assert (len(plan), plan.padding, plan.num_shapes, plan.tokens, plan.slots) == (0, 0.0, 0, 0, 0)


@pytest.mark.parametrize("policy", [FixedSize(2), FixedSize(2, sort=False), TokenBudget(9, buckets=[4])])
def test_no_pairs_make_an_empty_plan(policy: Policy) -> None:
    plan = policy.plan(np.zeros((0, 2), np.int64))
    assert (len(plan), plan.padding) == (0, 0.0)


def test_padding_is_the_share_of_slots_without_a_token() -> None:
    plan = TokenBudget(60).plan([50, 30, 20, 20, 30, 20])
    assert plan.slots == 50 + 2 * 30 + 3 * 20
    assert plan.padding == 1 - 170 / 170
    assert Plan.of([4, 2], [[0, 1]]).padding == 1 - 6 / 8
    assert Plan.of([0, 0], [[0, 1]]).padding == 1.0


def test_shapes_are_distinct_pairs_of_rows_and_padded_length() -> None:
    plan = Plan.of([4, 4, 4, 4, 3], [[0], [1], [2, 3], [4]])
    assert plan.num_shapes == 3
    assert repr(plan) == "Plan(4 batches, 3 shapes, 0.00% padding)"
    assert Plan.of([[4, 1], [4, 2]], [[0], [1]]).num_shapes == 2


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, np.int64])
def test_lengths_may_be_of_any_integer_type(dtype: type) -> None:
    assert as_lists(TokenBudget(200).plan(np.array([200, 100], dtype)))[0] == [[0], [1]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1.0, 2.0], "lengths must be integers (got float64)"),
        (["a"], "lengths must be integers (got <U1)"),
        ([True], "lengths must be integers (got bool)"),
        ([3, -1], "lengths must not be negative (sample 1 has -1)"),
        (
            np.array([1, 1 << 63], np.uint64),
            "lengths must be at most 9,223,372,036,854,775,807 (sample 1 has 9223372036854775808)",
        ),
        ([[3, 1], [2, -4]], "lengths must not be negative (sample 1 has [ 2 -4])"),
        (7, "lengths must have shape (n,) or (n, d) (got ())"),
        ([[]], "lengths must have shape (n,) or (n, d) (got (1, 0))"),
        ([[1, 2], [3]], "(got lists of different lengths); give the len of each"),
        ({"tokens": [3], "images": [1]}, "lengths take no names here (got tokens, images); give an array"),
    ],
)
@pytest.mark.parametrize("policy", [TokenBudget(10), FixedSize(1)])
def test_lengths_that_are_none_are_refused(policy: Policy, lengths: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.plan(lengths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([[0, 1]], "sample 2 is in 0 batches; a plan has each in exactly one"),
        ([[0, 1], [1, 2]], "sample 1 is in 2 batches; a plan has each in exactly one"),
        ([[0, 1, 2], []], "batch 1 is empty; leave it out"),
        ([[0, 1, 2, 3]], "sample numbers must be between 0 and 2 (got 0 to 3)"),
        ([[-1, 0, 1]], "sample numbers must be between 0 and 2 (got -1 to 1)"),
    ],
)
def test_a_plan_that_loses_or_repeats_a_sample_is_refused(batches: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan.of([1, 2, 3], batches)


@dataclass(frozen=True)
class Own:
    """A user's policy, which has the plan already."""

    made: Any
    shapes: Any = None
    max_length = None

    def plan(self, lengths: ArrayLike) -> Plan:
        return self.made


WHOLE = Plan.of([4, 2, 3], [[0, 2], [1]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": np.array([0, 2])}, "bounds must go from 0 to 2, the end of numbers (got 0 to 3)"),
        (
            {"numbers": np.array([0, 2]), "bounds": np.array([0, 1, 2])},
            "sample 1 is in 0 batches; a plan has each in exactly one",
        ),
        ({"numbers": np.array([0, 2, 2])}, "sample 1 is in 0 batches; a plan has each in exactly one"),
        ({"numbers": np.array([0, 2, 3])}, "sample numbers must be between 0 and 2 (got 0 to 3)"),
        ({"bounds": np.array([0, 3, 3])}, "batch 1 is empty; leave it out"),
        ({"bounds": np.array([0, 4, 3])}, "batch 1 is empty; leave it out"),
        ({"bounds": np.array([1, 2, 3])}, "bounds must go from 0 to 3, the end of numbers (got 1 to 3)"),
        (
            {"padded_lengths": np.array([3, 2])},
            "batch 0 is padded to 3 tokens, and its longest sample has 4; pad it to 4 at least",
        ),
        ({"padded_lengths": np.array([[4], [2]])}, "padded_lengths must be an array of int64 (2,) (got int64 (2, 1));"),
        ({"padded_lengths": np.array([4.0, 2.0])}, "padded_lengths must be an array of int64 (2,) (got float64 (2,));"),
        (
            {"padded_sizes": [2, 1]},
            "padded_sizes must be an array of int64 (2,) (got list); bf.Plan.of makes it of lists",
        ),
        (
            {"padded_sizes": np.array([1, 1])},
            "batch 0 has 1 rows, 4 slots, for 2 samples of 7 tokens; give it a row for each sample",
        ),
        ({"padded_sizes": np.array([2, 0])}, "batch 1 has 0 rows, 0 slots, for 1 samples of 2 tokens"),
        (
            {"padded_sizes": np.array([2, 3])},
            "batch 1 has 3 rows for 1 samples. Copies of a sample fill it up, and they have no",
        ),
    ],
)
def test_a_plan_that_does_not_fit_its_samples_is_refused(changes: dict[str, Any], message: str) -> None:
    words = f"Own.plan does not fit the 3 samples that it was given: {message}"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        planned(Own(replace(WHOLE, **changes)), as_lengths([4, 2, 3]))


def same(one: Plan, other: Plan) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Plan))


def test_a_plan_that_fits_is_taken() -> None:
    rows = Plan.of([4, 2, 3], [[0, 2], [1]], padded_lengths=[8, 8], padded_sizes=[1, 1])
    for plan in (WHOLE, Plan.of([4, 2, 3], [[1], [0, 2]], padded_lengths=[6, 9]), rows, Plan.of([], [])):
        assert same(planned(Own(plan), as_lengths([4, 2, 3] if len(plan) else [])), plan)


def test_a_plan_of_pairs_holds_the_longest_of_each_length() -> None:
    pairs = as_lengths([[4, 1], [2, 5]])
    with pytest.raises(ValueError, match=re.escape("padded to 4 + 4 tokens, and its longest sample has 4 + 5")):
        Plan.of(pairs, [[0, 1]], padded_lengths=[[4, 4]])
    with pytest.raises(ValueError, match=re.escape("padded_lengths must be an array of int64 (1, 2) (got int64 (1,))")):
        planned(Own(Plan.of([4, 5], [[0, 1]])), pairs)


@given(policies, lengths)
@examples(300)
def test_what_is_not_checked_fits(policy: Policy, lengths: list[int]) -> None:
    """Plans of policies of ours are taken as they are: here they are checked as a user's."""
    assert is_proven(policy)
    assert is_proven(Rounded(policy, Rounding(pad_to_multiple_of=8)))
    taken = planned(policy, as_lengths(lengths))
    assert same(planned(Own(taken, getattr(policy, "shapes", None)), as_lengths(lengths)), taken)


@given(of_pairs | of_two_sizes, pairs)
@examples(200)
def test_what_is_not_checked_fits_pairs(policy: Policy, pairs: list[tuple[int, int]]) -> None:
    assert is_proven(policy)
    taken = planned(policy, as_lengths(np.array(pairs, np.int64).reshape(-1, 2)))
    assert same(planned(Own(taken), as_lengths(np.array(pairs, np.int64).reshape(-1, 2))), taken)


class Shorter(TokenBudget):
    """A user's own, by inheritance."""

    def plan(self, lengths: ArrayLike, *, units: Any = None) -> Plan:
        plan = super().plan(lengths, units=units)
        return replace(plan, padded_lengths=plan.padded_lengths - 1)


def test_a_policy_that_asks_something_of_the_users_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^Shorter\.plan does not fit the 2 samples"):
        planned(Shorter(60), as_lengths([4, 2]))

    def cost(batch: int, length: int) -> int:
        return batch * length

    asked = CostBudget(cost, 60), stacked(CostBudget(cost, 60), 2), Packed(60, cost=np.square)
    for policy in (*asked, Rounded(Own(WHOLE), Rounding()), Stacked(Own(WHOLE), 2)):
        assert not is_proven(policy)


@given(of_pairs, pairs.filter(bool), st.data())
@examples(100)
def test_any_number_less_in_a_plan_is_seen(policy: Policy, pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """One padded length shorter than the longest sample, one sample lost, one twice: each is refused, whatever the policy."""
    lengths = as_lengths(pairs)
    plan = planned(policy, lengths)
    at = data.draw(st.integers(0, len(lengths) - 1))
    batch = int(np.searchsorted(plan.bounds, at, side="right")) - 1
    short, other = plan.padded_lengths.copy(), plan.numbers.copy()
    short[batch] = lengths[plan.batches[batch]].max(axis=0) - data.draw(st.sampled_from([(1, 0), (0, 1), (1, 1)]))
    other[at] = data.draw(st.integers(-1, len(lengths)).filter(lambda sample: sample != other[at]))
    for wrong in (replace(plan, padded_lengths=short), replace(plan, numbers=other)):
        with pytest.raises(ValueError, match=r"^Own\.plan does not fit"):
            planned(Own(wrong), lengths)


@pytest.mark.parametrize("policy", [StaticShapes([8], 16), Packed(16)], ids=["StaticShapes", "Packed"])
def test_what_cannot_plan_pairs_says_so(policy: Policy) -> None:
    message = f"{type(policy).__name__} takes one length a sample (got shape (1, 2)); TokenBudget takes several"
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.plan([[1, 2]])


@pytest.mark.parametrize(
    "settings", [{"padded_lengths": [7.5]}, {"padded_lengths": [np.nan]}, {"padded_sizes": [2.5]}], ids=str
)
def test_a_plan_of_numbers_that_are_not_whole_is_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name} must be whole numbers \(got \["):
        Plan.of([3, 1], [[0, 1]], **settings)
    for batches in ([[0, 1.5]], [["0", "1"]], [[True, False]]):
        with pytest.raises(ValueError, match=r"^sample numbers must be whole numbers \(got \["):
            Plan.of([3, 1], batches)
    assert Plan.of([3, 1], [[1.0, 0.0]], padded_lengths=np.ceil([3.5])).padded_lengths.tolist() == [4]
