"""The largest batch of a length: exact, in few measurements, against trying all."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.memory import largest_batches
from tests.effort import examples

pieces = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=4)


@given(pieces, st.integers(1, 2 * 10**6), st.sampled_from([1, 512]), st.booleans(), st.integers(1, 500))
@examples(150)
def test_it_is_what_trying_all_batches_gives(
    pieces: list[tuple[int, int]], limit: int, block: int, runs_out: bool, most: int
) -> None:
    tried = []

    def peak(batch: int, length: object) -> float:
        tried.append(batch)
        real = max(constant + slope * block * batch for constant, slope in pieces)
        return inf if runs_out and real > limit else real

    expected = max((batch for batch in range(1, most + 1) if peak(batch, 0) <= limit), default=0)
    tried.clear()
    assert largest_batches(peak, [0], limit, max_batch_size=most) == [expected]
    assert len(tried) == len(set(tried)) <= 24, "nothing is measured twice"


def test_three_or_four_steps_where_the_peak_is_affine() -> None:
    tried: list[int] = []

    def peak(batch: int, length: int) -> float:
        tried.append(batch)
        return 1e9 + 3e6 * length * batch

    assert largest_batches(peak, [128], 24e9) == [59]  # type: ignore[arg-type]
    assert len(tried) <= 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: largest_batches(lambda b, n: 1.0, [1], 0), "limit_bytes must be positive (got 0)"),
        (
            lambda: largest_batches(lambda b, n: 1.0, [1], 1, max_batch_size=0),
            "max_batch_size must be at least 1 sample (got 0)",
        ),
    ],
)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
