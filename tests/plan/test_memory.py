"""MemoryBudget: no batch beyond the bound, none smaller than it need be, references, orders, states, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.header import described
from brimful.plan import CostBudget, OverlongError, TokenBudget, memory
from brimful.testing import assert_exact_resume
from tests.effort import examples

SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (8, 32, 128)]


def model_of(constant: float = 1e6, linear: float = 1e3, quadratic: float = 10.0) -> bf.memory.MemoryModel:
    peaks = [constant + batch * (linear * length + quadratic * length**2) for batch, length in SHAPES]
    return bf.memory.MemoryModel.fit(SHAPES, peaks)


@dataclass(frozen=True)
class Slots:
    """A model of one's own: a slot takes a byte."""

    scale: float = 1.0
    num_lengths: int = 1
    unit: str = "bytes"

    def predict(self, batch: int, length: Any) -> float:
        return self.scale * batch * int(np.sum(length))

    def largest_batch(self, length: Any, limit_bytes: float, *, risk: float) -> int:
        return int(limit_bytes // (self.scale * int(np.sum(length))))

    def fingerprint(self) -> str:
        return f"{self.scale} bytes a slot"


lengths = st.lists(st.integers(0, 40), max_size=40)
pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40)


@given(lengths, st.floats(1.2e6, 3e6), st.sampled_from([0.01, 0.1]))
@examples(40)
def test_batches_are_as_large_as_the_bound_allows(lengths: list[int], limit: float, risk: float) -> None:
    model = model_of()
    policy = bf.MemoryBudget(model, limit, risk=risk)
    plan = policy.plan(lengths)
    shapes = list(zip(plan.padded_sizes.tolist(), plan.padded_lengths.tolist()))
    assert all(model.bound(size, length, risk=risk) <= limit * (1 + 1e-12) for size, length in shapes)
    assert all(model.bound(size + 1, length, risk=risk) > limit * (1 - 1e-12) for size, length in shapes[:-1])
    by_cost = CostBudget(lambda batch, length: model.bound(batch, length, risk=risk), limit)
    assert [batch.tolist() for batch in plan.batches] == [batch.tolist() for batch in by_cost.plan(lengths).batches]
    assert policy.max_length == by_cost.max_length


@given(lengths, st.integers(40, 300))
@examples(30)
def test_a_model_of_slots_is_a_token_budget(lengths: list[int], limit: int) -> None:
    plan, tokens = bf.MemoryBudget(Slots(), limit).plan(lengths), TokenBudget(limit).plan(lengths)
    assert [batch.tolist() for batch in plan.batches] == [batch.tolist() for batch in tokens.batches]


@given(pairs, st.integers(40, 200))
@examples(30)
def test_a_model_of_slots_of_pairs_is_a_token_budget(pairs: list[tuple[int, int]], limit: int) -> None:
    plan, tokens = bf.MemoryBudget(Slots(num_lengths=2), limit).plan(pairs), TokenBudget(limit).plan(pairs)
    assert [batch.tolist() for batch in plan.batches] == [batch.tolist() for batch in tokens.batches]


def test_pairs_keep_to_the_bound_of_both_lengths() -> None:
    shapes = np.array([(b, s, t) for b in (1, 4, 16) for s in (8, 32, 128) for t in (8, 32, 128)])
    batch, source, target = shapes.T
    model = bf.memory.MemoryModel.fit(shapes, 1e6 + batch * (100 * source + 1000 * target + 5.0 * target**2))
    samples = np.random.default_rng(0).integers(1, 128, (500, 2))
    plan = bf.MemoryBudget(model, 4e6).plan(samples)
    bounds = [
        model.bound(size, tuple(pair)) for size, pair in zip(plan.padded_sizes.tolist(), plan.padded_lengths.tolist())
    ]
    assert max(bounds) <= 4e6
    assert np.mean(bounds) >= 0.9 * 4e6
    with pytest.raises(
        OverlongError, match=r"^a sample of 9 \+ 900 tokens \(sample 1\) cannot fit limit_bytes=4,000,000 at a risk"
    ):
        bf.MemoryBudget(model, 4e6).plan([[1, 1], [9, 900]])


@given(lengths, st.integers(1, 30), st.integers(10, 40))
@examples(30)
def test_a_first_batch_that_fits_may_always_be_made(lengths: list[int], batch: int, length: int) -> None:
    model = model_of()
    policy = bf.MemoryBudget(model, reference=(batch, length), risk=0.01)
    fitting = [min(one, length) for one in lengths]
    plan = policy.plan(fitting)
    limit = model.predict(batch, length)
    for size, padded in zip(plan.padded_sizes.tolist(), plan.padded_lengths.tolist()):
        assert size <= batch or model.bound(size, padded, risk=0.01) <= limit * (1 + 1e-12)
    first = policy.plan([length] * 100)
    assert first.padded_sizes.tolist()[0] == min(batch, 100), "exactly the batch that is known"
    longest = policy.max_length
    assert longest is not None
    for longer in {length + 1, longest} & set(range(length + 1, longest + 1)):
        size = policy.plan([longer] * 100).padded_sizes.tolist()[0]
        assert model.bound(size, longer, risk=0.01) <= limit * (1 + 1e-12)


def test_the_pretrained_model_needs_a_reference() -> None:
    prior = bf.memory.MemoryModel.pretrained()
    plan = bf.MemoryBudget(prior, reference=(80, 256), risk=0.1).plan([256] * 80 + [64] * 100)
    assert plan.padded_sizes.tolist()[0] == 80
    assert plan.padded_sizes.tolist()[1] > 80
    assert bf.MemoryBudget(prior.anchored(8, 256, 2e9), 8e9).plan([256] * 20).padded_sizes.tolist()[0] > 8
    with pytest.raises(
        ValueError, match=r"^this model knows no bytes, only the ratio of two peaks \(got limit_bytes=8,000,000,000\). "
    ):
        bf.MemoryBudget(prior, 8e9)


def test_friendly_batch_sizes_are_rounded_down() -> None:
    policy = bf.MemoryBudget(Slots(), 1000, batch_sizes="friendly")
    sizes = {
        length: policy.plan([length] * 1000).padded_sizes.tolist()[0] for length in (10, 30, 90, 130, 150, 400, 1000)
    }
    assert sizes == {10: 96, 30: 32, 90: 8, 130: 4, 150: 4, 400: 2, 1000: 1}


def test_the_hardest_batches_come_first_where_that_is_asked_for() -> None:
    lengths = [30] * 3 + [20] * 17
    plan = bf.MemoryBudget(Slots(), 100, order="hardest_first").plan(lengths)
    slots = plan.padded_sizes * plan.padded_lengths
    assert slots.tolist() == sorted(slots.tolist(), reverse=True)
    other = bf.MemoryBudget(Slots(), 100).plan(lengths)
    assert sorted(batch.tolist() for batch in plan.batches) == sorted(batch.tolist() for batch in other.batches)
    assert (plan.tokens, plan.padding) == (other.tokens, other.padding)


def data() -> bf.Dataset:
    random = np.random.default_rng(0)
    return bf.from_iterable([{"input_ids": list(range(n))} for n in random.integers(1, 40, 90).tolist()])


def test_a_stream_resumes_exactly() -> None:
    assert_exact_resume(lambda: data().batch(bf.MemoryBudget(model_of(), 1.4e6), window=40), max_resumes=6)


def test_a_state_is_refused_under_another_model() -> None:
    assert described(bf.MemoryBudget(model_of(), 2e6))["model"] == model_of().fingerprint()
    with data().batch(bf.MemoryBudget(model_of(), 1.4e6), window=40).iter() as it:
        next(it)
        state = it.state_dict()
    for policy, words in {
        bf.MemoryBudget(model_of(linear=2e3), 1.4e6): "model was '9 peaks, ",
        bf.MemoryBudget(model_of(), 1.4e6, risk=0.01): "risk was 0.025 when it was saved and is 0.01 here",
        bf.MemoryBudget(model_of(), reference=(16, 40)): "limit_bytes was 1400000.0",
    }.items():
        with pytest.raises(bf.StateError, match=re.escape(words)):
            data().batch(policy, window=40).iter(state)


def test_overlong_samples_are_named_dropped_or_cut() -> None:
    policy = bf.MemoryBudget(Slots(), 10)
    message = (
        "a sample of 11 tokens (sample 1) cannot fit limit_bytes=10 at a risk of 2.5% (at most 10 tokens); "
        "truncate or filter it, or raise the limit or the risk"
    )
    with pytest.raises(OverlongError, match="^" + re.escape(message) + "$"):
        policy.plan([1, 11])
    batches = bf.from_sequence([{"input_ids": [1] * 11}, {"input_ids": [2]}]).batch(policy, overlong="truncate")
    with batches.iter() as it:
        assert sorted(tuple(batch["input_ids"].shape) for batch in it) == [(1, 1), (1, 10)]
        assert it.stats["truncated"] == 1


@dataclass(frozen=True)
class Nothing:
    num_lengths: int = 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bf.MemoryBudget(Slots()), ValueError, "MemoryBudget takes either limit_bytes or reference=(batch, length) (got"),
        (lambda: bf.MemoryBudget(Slots(), 5, reference=(1, 2)), ValueError, "(got 5 and (1, 2))"),
        (lambda: bf.MemoryBudget(Slots(), 5, risk=0), ValueError, "risk must be between 0 and 1 (got 0)"),
        (lambda: bf.MemoryBudget(Slots(), 0.5), ValueError, "limit_bytes must be at least the peak of a single token, 1 and its"),
        (lambda: bf.MemoryBudget(Slots(), "5"), TypeError, "limit_bytes must be a number (got '5')"),
        (lambda: bf.MemoryBudget(Slots(), reference=5), TypeError, "reference must be (batch, length) (got 5)"),
        (lambda: bf.MemoryBudget(Slots(), reference=(0, 5)), ValueError, "reference must be at least 1 (got 0)"),
        (
            lambda: bf.MemoryBudget(Slots(num_lengths=2), reference=(1, 5)),
            TypeError,
            "reference must be (batch, (source length, target length)) (got (1, 5))",
        ),
        (lambda: bf.MemoryBudget(Slots(), 5, batch_sizes="even"), ValueError, "batch_sizes must be one of any, friendly (got"),
        (lambda: bf.MemoryBudget(Slots(), 5, order="up"), ValueError, "order must be one of longest_first, hardest_first"),
        (lambda: bf.MemoryBudget(Nothing(), 5), TypeError, "model must have largest_batch (got Nothing(num_lengths=1)); a Mem"),
        (
            lambda: bf.MemoryBudget(Slots(), 5).plan([[1, 2]]),
            ValueError,
            "the model of this MemoryBudget takes 1 length(s) a sample (got 2). Fit it with shapes of 3 numbers",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_batches_far_beyond_those_that_a_model_has_seen_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    shapes = [(batch, length) for batch in (1, 4) for length in (10, 20, 40)]
    model = bf.memory.MemoryModel.fit(shapes, [1000 + batch * length for batch, length in shapes])
    memory._said.clear()
    with caplog.at_level("WARNING", logger="brimful"):
        bf.MemoryBudget(model, 1400).plan([40] * 8)
        assert not caplog.records
        for _ in range(2):
            bf.MemoryBudget(model, 1400).plan([20] * 20 + [90])
    assert [record.getMessage() for record in caplog.records] == [
        f"a {kind} is planned, but the memory model has seen none above {known}. Its risk does not hold so far beyond: "
        "probe near it (bf.memory.probe, brimful memory probe)"
        for kind, known in (("batch of 16", 4), ("length of 90", 40))
    ]
