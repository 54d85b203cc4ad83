"""Samples that no policy can place: four words for a plan, and cutting them in pieces."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from brimful.plan import (
    AttentionCost,
    CostBudget,
    FixedSize,
    OverlongError,
    Packed,
    Plan,
    Policy,
    StaticShapes,
    TokenBudget,
)
from brimful.plan.buckets import Rounding
from brimful.plan.overlong import plan_with, split_long
from brimful.plan.rounded import Rounded
from tests.effort import examples

WORDS = ["raise", "truncate", "drop", "alone"]
COST = AttentionCost(quadratic=1 / 4)
POLICIES = [TokenBudget(30), TokenBudget(30, pad_to_multiple_of=8), TokenBudget(30, buckets=[5, 20]), Packed(20)]


def batches(plan: Plan) -> list[list[int]]:
    return [batch.tolist() for batch in plan.batches]


def test_the_error_knows_the_sample() -> None:
    with pytest.raises(OverlongError) as caught:
        plan_with(TokenBudget(60), [50, 70, 10, 80], "raise")
    error = caught.value
    assert (error.sample, error.length, error.max_length, error.samples) == (1, 70, 60, (1, 3))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_truncated_samples_are_planned_as_the_longest_there_may_be() -> None:
    plan, counts = plan_with(TokenBudget(60), [50, 70, 10, 80], "truncate")
    assert batches(plan) == [[1], [3], [0], [2]]
    assert plan.padded_lengths.tolist() == [60, 60, 50, 10]
    assert plan.padding == 0.0
    assert counts == {"truncated": 2, "dropped": 0, "alone": 0, "dropped_tokens": 10 + 20}


def test_dropped_samples_are_in_no_batch() -> None:
    plan, counts = plan_with(TokenBudget(60), [70, 50, 80, 10], "drop")
    assert batches(plan) == [[1], [3]]
    assert plan.tokens == 60
    assert counts == {"truncated": 0, "dropped": 2, "alone": 0, "dropped_tokens": 70 + 80}


def test_samples_alone_come_first_and_keep_their_length() -> None:
    plan, counts = plan_with(TokenBudget(60), [50, 70, 10, 80], "alone")
    assert batches(plan) == [[1], [3], [0], [2]]
    assert plan.padded_lengths.tolist() == [70, 80, 50, 10]
    assert (plan.tokens, plan.padding) == (210, 0.0)
    assert counts == {"truncated": 0, "dropped": 0, "alone": 2, "dropped_tokens": 0}


@pytest.mark.parametrize(
    ("policy", "lengths", "padded"),
    [
        (TokenBudget(16, pad_to_multiple_of=8), [3, 21, 4], [24]),
        (TokenBudget(60, buckets=[20, 40]), [[25, 25], [1, 1], [41, 1]], None),
        (TokenBudget(60, buckets=[20, 40]), [[25, 25], [1, 1], [15, 35]], [[40, 40]]),
        (Rounded(CostBudget(COST, 100), Rounding(buckets=[8, 32, 64])), [20, 3, 40], [32, 64]),
        (Rounded(TokenBudget(16, pad_to_multiple_of=4), Rounding(pad_to_multiple_of=6)), [13, 20], [20, 24]),
        (Packed(10), [12, 3], [12]),
    ],
)
def test_samples_alone_are_padded_to_the_multiple_or_the_next_bucket(
    policy: Policy, lengths: list[Any], padded: list[Any] | None
) -> None:
    if padded is None:
        with pytest.raises(
            OverlongError, match=re.escape("(sample 2) cannot fit buckets of at most 40 tokens, also alone")
        ):
            plan_with(policy, lengths, "alone")
        return
    plan, counts = plan_with(policy, lengths, "alone")
    assert counts["alone"] == len(padded)
    assert plan.padded_lengths[: len(padded)].tolist() == padded


class OwnShapes:
    """Static shapes of a user's own."""

    max_length, shapes = 9, ((3, 5), (1, 9))

    def plan(self, lengths: ArrayLike) -> Plan:
        return StaticShapes([5, 9], 15).plan(lengths)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (StaticShapes([8, 16], 64), "static shapes of at most 16 tokens"),
        (OwnShapes(), "static shapes of at most 9 tokens"),
        (TokenBudget(64, buckets=[8, 16]), "buckets of at most 16 tokens"),
        (Rounded(FixedSize(2), Rounding(buckets=[16])), "buckets of at most 16 tokens"),
    ],
)
def test_no_sample_alone_makes_a_shape_that_nobody_asked_for(policy: Policy, limit: str) -> None:
    message = f"a sample of 21 tokens (sample 1) cannot fit {limit}, also alone; truncate or filter it, or add a longer bucket"
    with pytest.raises(OverlongError, match=f"^{re.escape(message)}$") as caught:
        plan_with(policy, [3, 21, 4, 30], "alone")
    assert (caught.value.sample, caught.value.length, caught.value.samples) == (1, 21, (1, 3))
    assert plan_with(policy, [3, 21, 4, 30], "drop")[1]["dropped"] == 2


class Refusing:
    """Places samples of `limits` tokens at most, one limit after the other; names `most` of the others each time."""

    max_length = None

    def __init__(self, *limits: int, most: int = 1_000) -> None:
        self.limits, self.most, self.calls = limits, most, 0

    def plan(self, lengths: ArrayLike) -> Plan:
        array = np.asarray(lengths)
        limit = self.limits[min(self.calls, len(self.limits) - 1)]
        self.calls += 1
        over = np.flatnonzero(array > limit).tolist()[: self.most]
        if over:
            raise OverlongError("too long", sample=over[0], samples=tuple(over) if self.most > 1 else ())
        return Plan.of(array, [[sample] for sample in range(len(array))])


@pytest.mark.parametrize("word", ["drop", "alone"])
def test_what_a_users_policy_refuses_is_dropped_or_alone(word: str) -> None:
    for policy, calls in ((Refusing(5), 2), (Refusing(8, 5), 3), (Refusing(5, most=1), 4), (Refusing(50), 1)):
        plan, counts = plan_with(policy, [2, 9, 5, 7, 3, 6], word)  # type: ignore[arg-type]
        refused = [1, 3, 5] if calls > 1 else []
        assert policy.calls == calls
        alone = [[sample] for sample in refused]
        assert batches(plan) == (alone if word == "alone" else []) + [[n] for n in range(6) if n not in refused]
        assert counts[{"drop": "dropped", "alone": "alone"}[word]] == len(refused)
        assert counts["dropped_tokens"] == (22 if word == "drop" and refused else 0)


def test_a_policy_is_not_asked_once_for_each_sample_that_it_refuses() -> None:
    policy = Refusing(5, most=1)
    with pytest.raises(ValueError, match=r"^Refusing.plan refused other samples 16 times, .* name all samples"):
        plan_with(policy, [9] * 1_000, "drop")
    assert policy.calls == 16


@pytest.mark.parametrize("samples", [{}, {"sample": 7}, {"samples": (0, 3)}])
def test_a_refusal_that_names_no_sample_it_was_given_is_raised(samples: dict[str, Any]) -> None:
    class Vague:
        max_length = None

        def plan(self, lengths: ArrayLike) -> Plan:
            raise OverlongError("no", **samples)

    with pytest.raises(OverlongError, match=r"^no$"):
        plan_with(Vague(), [1, 2], "drop")


def test_pairs_are_dropped_and_placed_alone_by_their_padded_shape() -> None:
    pairs = [[16, 8], [17, 8], [9, 9], [40, 0], [1, 1]]
    policy = TokenBudget(32, pad_to_multiple_of=8)
    plan, counts = plan_with(policy, pairs, "drop")
    assert sorted(np.concatenate(plan.batches).tolist()) == [0, 1, 2, 4]
    assert counts["dropped"] == 1
    plan, counts = plan_with(policy, pairs, "alone")
    assert plan.padded_lengths[0].tolist() == [40, 8]
    assert counts["alone"] == 1
    plan, counts = plan_with(TokenBudget(24, pad_to_multiple_of=8), pairs, "drop")
    assert sorted(np.concatenate(plan.batches).tolist()) == [0, 4]
    assert (counts["dropped"], counts["dropped_tokens"]) == (3, 25 + 18 + 40)
    assert plan_with(policy, [[1, 1]], "drop")[1]["dropped"] == 0
    with pytest.raises(
        ValueError, match="overlong='truncate' takes one length a sample; for several choose raise, drop"
    ):
        plan_with(policy, pairs, "truncate")


@given(st.sampled_from(POLICIES), st.lists(st.integers(0, 40), max_size=25), st.sampled_from(WORDS[1:]))
@examples(80)
def test_every_sample_is_planned_or_counted(policy: Policy, lengths: list[int], word: str) -> None:
    assert policy.max_length is not None
    too_long = {number for number, length in enumerate(lengths) if length > policy.max_length}
    if word == "alone" and too_long and getattr(policy, "buckets", None):
        with pytest.raises(OverlongError, match="buckets of at most 20 tokens, also alone"):
            plan_with(policy, lengths, "alone")
        return
    plan, counts = plan_with(policy, lengths, word)  # type: ignore[arg-type]
    assert not (plan.padded_lengths % getattr(policy, "pad_to_multiple_of", 1)).any()
    members = sorted(np.concatenate([[], *plan.batches]).tolist())
    assert members == [number for number in range(len(lengths)) if word != "drop" or number not in too_long]
    over = sum(lengths[number] - policy.max_length for number in too_long)
    tokens = {"truncate": over, "drop": sum(lengths[number] for number in too_long), "alone": 0}[word]
    assert counts == {"truncated": 0, "dropped": 0, "alone": 0, "dropped_tokens": tokens} | {
        {"truncate": "truncated", "drop": "dropped", "alone": "alone"}[word]: len(too_long)
    }
    if not too_long:
        assert batches(plan) == batches(policy.plan(lengths))


@pytest.mark.parametrize("word", WORDS)
def test_where_all_fit_every_word_gives_the_same_plan(word: str) -> None:
    for policy in (TokenBudget(60), FixedSize(2)):
        plan, counts = plan_with(policy, [50, 30, 20, 20, 30, 20], word)  # type: ignore[arg-type]
        assert batches(plan) == batches(policy.plan([50, 30, 20, 20, 30, 20]))
        assert not any(counts.values())


def test_an_unknown_word_is_refused() -> None:
    message = "overlong must be one of raise, truncate, drop, alone (got 'split')"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_with(TokenBudget(60), [1], "split")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 12))
@examples(60)
def test_pieces_are_the_samples_in_order(lengths: list[int], max_length: int) -> None:
    pieces = split_long(lengths, max_length)
    expected = [
        (sample, start, min(max_length, length - start))
        for sample, length in enumerate(lengths)
        for start in range(0, max(length, 1), max_length)
    ]
    assert list(zip(*(field.tolist() for field in pieces), strict=True)) == expected


def test_pieces_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_length must be at least 1 token \(got 0\)$"):
        split_long([1], 0)
    with pytest.raises(ValueError, match=r"^split_long takes one length a sample \(got shape \(1, 2\)\)"):
        split_long([[1, 2]], 4)
