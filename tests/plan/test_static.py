"""Static shapes: one batch size a bucket, whatever the samples."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import wiki
from brimful.plan import OverlongError, StaticShapes, TokenBudget, optimal_buckets
from tests.effort import examples


def test_only_the_last_batch_is_filled_up() -> None:
    plan = StaticShapes([64, 16], 64).plan([50, 10, 10, 10, 10, 10])
    assert [batch.tolist() for batch in plan.batches] == [[0], [1, 2, 3, 4], [5]]
    assert plan.padded_sizes.tolist() == [1, 4, 4]
    assert plan.padded_lengths.tolist() == [64, 16, 16]
    assert plan.padding == 1 - 100 / 192


def test_short_samples_fill_up_a_batch_of_a_longer_bucket() -> None:
    plan = StaticShapes([16, 64], 128).plan([50, 10, 10])
    assert [batch.tolist() for batch in plan.batches] == [[0, 1], [2]]
    assert plan.padded_sizes.tolist() == [2, 8]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(50, 300))
@examples(50)
def test_every_batch_but_the_last_is_full(lengths: list[int], max_tokens: int) -> None:
    plan = StaticShapes([5, 20, 50], max_tokens).plan(lengths)
    sizes = np.array([len(batch) for batch in plan.batches])
    assert (plan.padded_sizes == max_tokens // plan.padded_lengths).all()
    assert (sizes[:-1] == plan.padded_sizes[:-1]).all()
    assert sizes[-1] <= plan.padded_sizes[-1]


def test_there_are_as_many_shapes_as_buckets() -> None:
    lengths = wiki(20_000)
    buckets = optimal_buckets(lengths, 8)
    plan = StaticShapes(buckets, 16_384).plan(lengths)
    assert plan.num_shapes == 8
    assert len(plan) == len(TokenBudget(16_384, buckets=buckets).plan(lengths))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaticShapes([], 8), "buckets must be at least 1 length (got none)"),
        (lambda: StaticShapes([9], 8), "buckets must be at most max_tokens=8 (got 9)"),
        (lambda: StaticShapes([4], 0), "max_tokens must be at least 1 token (got 0)"),
    ],
)
def test_shapes_that_hold_nothing_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


def test_a_sample_longer_than_every_bucket_is_an_error() -> None:
    assert StaticShapes([8, 4], 100).max_length == 8
    with pytest.raises(OverlongError, match=r"^a sample of 9 tokens \(sample 1\) cannot fit .* buckets of at most 8;"):
        StaticShapes([8, 4], 100).plan([8, 9])
