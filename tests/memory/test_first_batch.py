"""Sizes of batches beside a first one that fits: the largest that the bound allows, never more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.memory import MemoryModel
from brimful.memory.first_batch import FirstBatchSizes, cut_lazily

SHAPES = [(batch, length) for batch in (1, 3, 8) for length in (4, 16, 64)]
MODELS = {
    "bytes": MemoryModel.fit(SHAPES, [500 + batch * (3 * length + length**2) for batch, length in SHAPES]),
    "relative": MemoryModel.pretrained(),
}


@pytest.mark.parametrize("unit", MODELS)
@given(
    batch_size=st.integers(1, 40),
    longest=st.integers(1, 90),
    share=st.floats(0.01, 1),
    risk=st.sampled_from([0.01, 0.1, 0.4]),
    start=st.sampled_from([0.3, 1.0, 1.7]),
    more=st.floats(0, 9),
    steps=st.integers(1, 60),
    measured=st.booleans(),
)
def test_a_batch_has_the_largest_size_whose_bound_is_within_the_first_peak_and_whose_peak_is_a_twentieth_below(
    unit: str,
    batch_size: int,
    longest: int,
    share: float,
    risk: float,
    start: float,
    more: float,
    steps: int,
    measured: bool,
) -> None:
    model, length = MODELS[unit], max(1, int(share * longest))
    limit = model.predict(batch_size, longest)
    peak = limit if measured else None
    sizes = FirstBatchSizes(
        model, batch_size, longest, risk=risk, start=start, end=start + more, steps=steps, peak=peak
    )
    choices = [max(1, int(start * batch_size + 1e-9))]
    if steps > 1:
        choices = [max(1, int((start + more * n / (steps - 1)) * batch_size + 1e-9)) for n in range(steps)]
    bounded = [size for size in choices if model.bound(size, length, risk=risk) <= (1 if measured else 0.95) * limit]
    within = [size for size in bounded if model.predict(size, length) <= 0.95 * limit]
    assert sizes.rows(length) == max(within, default=min(batch_size, choices[0]))
    assert sizes.rows(length) >= sizes.rows(longest)


@given(st.lists(st.integers(1, 64), max_size=60), st.integers(1, 9))
def test_every_text_is_in_one_batch_and_the_first_is_as_large_as_was_said(lengths: list[int], batch_size: int) -> None:
    padded = np.array(sorted(lengths, reverse=True), dtype=np.int64)
    sizes = FirstBatchSizes(MODELS["bytes"], batch_size, max(lengths, default=1), start=0.4)
    parts = list(cut_lazily(padded, lambda: sizes))
    assert [number for part in parts for number in range(part.start, part.stop)] == list(range(len(lengths)))
    assert not parts or parts[0].stop == min(batch_size, len(lengths))
    assert all(part.stop - part.start == sizes.rows(int(padded[part.start])) for part in parts[1:-1])


def test_a_measured_first_batch_is_the_limit_from_then_on() -> None:
    sizes = FirstBatchSizes(MODELS["bytes"], 4, 64)
    learnt = sizes.learnt(4, 32, 9_000.0)
    assert (learnt.peak, learnt.model) == (None, MODELS["bytes"].refined([(4, 32)], [9_000.0]))
    learnt = learnt.learnt(4, 64, 20_000.0).learnt(4, 64, 19_000.0)
    assert learnt.peak == 20_000.0
    within = [size for size in learnt.choices if learnt.model.bound(size, 16, risk=0.025) <= 20_000]
    assert learnt.rows(16) == max(size for size in within if learnt.model.predict(size, 16) <= 0.95 * 20_000)


def test_one_peak_gives_the_scale_and_sizes_grow_slowly_at_first() -> None:
    prior = MODELS["relative"]
    sizes = FirstBatchSizes(prior, 8, 512, risk=0.4, end=20, steps=400)
    assert replace(sizes, longest=4000).rows(16) == 15, "below twice the first"
    first = sizes.learnt(8, 512, 8e9)
    assert first.model.predict(8, 512) == pytest.approx(8e9, rel=0.02)
    assert first.rows(16) == 8, "no peak of shorter samples is known"
    second = first.learnt(14, 16, 1e9)
    assert second.measured == (14, 8)
    assert second.rows(16) == 16, "one peak of 14 confirms nothing"
    assert second.learnt(14, 16, 1e9).rows(16) == 28
    assert second.peak == 8e9
    assert replace(second, measured=(1, 1)).rows(16) == 8, "a short last batch takes nothing back"


def test_a_batch_that_ran_out_of_memory_was_above_the_first_one() -> None:
    sizes = FirstBatchSizes(MODELS["relative"], 8, 512)
    assert sizes.exceeded(8, 512) == sizes, "there is no scale yet"
    sizes = sizes.learnt(8, 512, 8e9).learnt(8, 300, 5e9)
    less = sizes.exceeded(12, 256)
    assert less.rows(256) < sizes.rows(256)
    assert less.model.predict(12, 256) > sizes.model.predict(12, 256)
    assert (less.peak, less.measured) == (sizes.peak, sizes.measured)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, r"^batch_size must be at least 1 text \(got 0\)"),
        ({"steps": 0}, ValueError, r"^steps must be at least 1 size \(got 0\)"),
        ({"risk": 1.0}, ValueError, r"^threshold, the risk, must be between 0 and 1 \(got 1.0\)"),
        ({"start": 0.0}, ValueError, r"^batch_start_range must be positive \(got 0.0\)"),
        (
            {"start": 2.0, "end": 1.5},
            ValueError,
            r"^batch_end_range must be at least batch_start_range=2.0 \(got 1.5\)",
        ),
        ({"end": "6"}, TypeError, r"^batch_end_range must be a number \(got '6'\)"),
        (
            {"model": MemoryModel.fit([(1, 4, 4), (2, 4, 8)], [10, 20])},
            ValueError,
            r"^this model knows peaks by source and target length, and texts have one; fit it with \(n, 2\)",
        ),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FirstBatchSizes(**{"model": MODELS["bytes"], "batch_size": 2, "longest": 9, **wrong})
