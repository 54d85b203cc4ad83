"""MemoryModel: what it predicts, bounds and allows; what it learns; files; refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.memory import MemoryModel, spread_shapes
from tests.effort import examples

BATCHES, LENGTHS = (1, 2, 8, 32), (16, 64, 256)
GRID = np.array([(batch, length) for batch in BATCHES for length in LENGTHS])


def truth(parts: tuple[float, ...]) -> Callable[[Any], Any]:
    constant, sample, linear, quadratic = parts
    return lambda shapes: (
        constant + shapes[:, 0] * (sample + linear * shapes[:, 1] + quadratic * shapes[:, 1].astype(float) ** 2)
    )


def model_of(*parts: float) -> MemoryModel:
    return MemoryModel.fit(GRID, truth(parts)(GRID))


coefficient = st.one_of(st.just(0.0), st.floats(1.0, 1e4))
parts = st.tuples(st.floats(1.0, 1e9), coefficient, st.floats(0.1, 1e4), coefficient)


@given(parts, st.integers(0, 300), st.integers(1, 4096))
@examples(50)
def test_what_explains_the_peaks_is_found_and_no_shape_beyond_them_costs_more(
    parts: tuple[float, ...], batch: int, length: int
) -> None:
    model = MemoryModel.fit(GRID, truth(parts)(GRID))
    found, real = model.predict(batch, length), float(truth(parts)(np.array([[batch, length]]))[0])
    if LENGTHS[0] <= length <= LENGTHS[-1]:
        assert found == pytest.approx(real, rel=1e-4)
    elif length > LENGTHS[-1]:
        assert found >= real * (1 - 1e-4)


def test_below_the_shortest_length_a_sample_costs_in_proportion_at_least() -> None:
    """Eight chosen lengths may all be long: the quadratic that fits them best leaves nothing for short samples."""
    shapes = np.array([(1, 256), (8, 256), (1, 512), (8, 512)])
    model = MemoryModel.fit(shapes, truth((1e6, 0, 0, 10))(shapes))
    assert model.predict(8, 64) - model.predict(0, 64) >= (model.predict(8, 256) - model.predict(0, 256)) / 4 * (
        1 - 1e-9
    )


@given(parts, st.integers(1, 600), st.floats(1e6, 1e11), st.sampled_from([0.005, 0.025, 0.2]))
@examples(60)
def test_the_largest_batch_is_the_last_whose_bound_is_within_the_limit(
    parts: tuple[float, ...], length: int, limit: float, risk: float
) -> None:
    model = model_of(*parts)
    batch = model.largest_batch(length, limit, risk=risk)
    assert batch == 0 or model.bound(batch, length, risk=risk) <= limit * (1 + 1e-12)
    assert batch >= 1 << 40 or model.bound(batch + 1, length, risk=risk) > limit * (1 - 1e-12)
    assert batch >= model.largest_batch(length + 1, limit, risk=risk), "never more for a longer one"
    assert batch <= model.largest_batch(length, limit, risk=0.3), "never more at a smaller risk"


def test_a_limit_that_is_a_bound_to_the_bit_is_kept_at_once_and_by_that_batch() -> None:
    flat = MemoryModel.fit([(b, length) for b in (1, 2, 4, 8) for length in (10, 20)], [2_900_000_000] * 8)
    bound = flat.bound(1, 10)
    for limit in (bound, np.nextafter(bound, 0), np.nextafter(np.nextafter(bound, 0), 0), 3049654373.216823):
        batch = flat.largest_batch(10, float(limit))
        assert batch == 0 or flat.bound(batch, 10) <= limit
        assert batch == 1 << 40 or flat.bound(batch + 1, 10) > limit
    assert flat.largest_batch(10, bound) >= 1


@given(parts, st.integers(1, 64), st.integers(1, 600), st.sampled_from([0.005, 0.025, 0.2]))
@examples(60)
def test_a_batch_fits_into_its_own_bound(parts: tuple[float, ...], batch: int, length: int, risk: float) -> None:
    model = model_of(*parts)
    bound = model.bound(batch, length, risk=risk)
    found = model.largest_batch(length, bound, risk=risk)
    assert found >= batch
    assert model.bound(found, length, risk=risk) <= bound


def test_every_batch_of_many_fits_into_its_own_bound() -> None:
    """A quotient is rounded to the other side for some of them on any machine, whatever the last bit of the fit."""
    model = model_of(1e6, 1234.5, 0.1, 7.7)
    for risk in (0.005, 0.025, 0.2):
        for batch in range(1, 200):
            assert model.largest_batch(100, model.bound(batch, 100, risk=risk), risk=risk) >= batch


@given(st.integers(0, 10**6))
@examples(20)
def test_the_peak_is_convex_in_the_batch_and_never_falls(seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = np.column_stack([random.integers(1, 64, 30), random.integers(8, 512, 30)])
    model = MemoryModel.fit(shapes, random.uniform(1e6, 1e9, 30))
    for length in random.integers(1, 2000, 4).tolist():
        peaks = np.array([model.predict(batch, length) for batch in range(12)])
        rises = np.diff(peaks)
        assert (rises >= -1e-6).all()
        assert (np.diff(rises) >= -1e-6 * peaks[-1]).all()
        assert model.predict(9, length + 1) >= model.predict(9, length) * (1 - 1e-12)


def test_a_peak_that_no_batch_changes_sets_no_limit() -> None:
    flat = MemoryModel.fit(GRID, np.full(len(GRID), 8e9))
    assert flat.largest_batch(64, 16e9) == 1 << 40
    assert flat.largest_batch(64, 8e9) == 0, "its bound is above"


def test_source_and_target_lengths() -> None:
    shapes = np.array([(b, s, t) for b in (1, 4, 16) for s in (32, 128, 512) for t in (16, 64, 256)])
    batch, source, target = shapes.T.astype(float)
    model = MemoryModel.fit(shapes, 1e6 + batch * (3000 * source + 7000 * target + 2 * source * target + source**2))
    assert model.num_lengths == 2
    expected = 1e6 + 8 * (3000 * 100 + 7000 * 50 + 2 * 5000 + 100**2)
    assert model.predict(8, (100, 50)) == pytest.approx(expected, rel=1e-6)
    allowed = model.largest_batch((100, 50), 1e9)
    assert model.bound(allowed, (100, 50)) <= 1e9 < model.bound(allowed + 1, (100, 50))
    assert model.predict(8, (1024, 50)) >= 1e6 + 8 * (3000 * 1024 + 7000 * 50 + 2 * 1024 * 50 + 1024**2)
    with pytest.raises(
        ValueError, match=r"^this model takes \(batch, source length, target length\) \(got \(batch, length\)\)$"
    ):
        model.predict(8, 100)


def test_what_is_learnt_later_counts_as_what_was_known_at_first() -> None:
    random = np.random.default_rng(0)
    shapes = np.column_stack([random.integers(1, 64, 60), random.integers(8, 512, 60)])
    peaks = truth((1e9, 1e5, 1e5, 100))(shapes) * random.lognormal(0, 0.02, 60)
    at_once = MemoryModel.fit(shapes, peaks)
    later = (
        MemoryModel.fit(shapes[:12], peaks[:12]).refined(shapes[12:40], peaks[12:40]).refined(shapes[40:], peaks[40:])
    )
    assert later.predict(20, 300) == pytest.approx(at_once.predict(20, 300), rel=1e-9)
    assert (later.lengths, later.batches, len(later.margin)) == (at_once.lengths, at_once.batches, 60)
    assert later.margin.factor(0.025) == pytest.approx(at_once.margin.factor(0.025), abs=0.02)
    assert len(json.dumps(later.to_json())) < 4096


def test_a_peak_is_predicted_before_it_is_learnt() -> None:
    model = model_of(1e6, 0, 1e3, 0)
    peak = model.predict(8, 64) * 2
    refined = model.refined([(8, 64)], [peak])
    assert refined.margin.counts[-1] == (138, 1)  # log 2 in steps of .5 %
    assert refined.bound(8, 64) > peak
    assert len(model.margin) == len(refined.margin) - 1, "the model that was refined stays as it was"


def test_a_batch_size_of_one_says_what_a_sample_costs_at_most() -> None:
    shapes = np.array([(1, length) for length in (16, 64, 256)])
    model = MemoryModel.fit(shapes, truth((1e6, 0, 1e4, 0))(shapes))
    assert model.predict(1, 64) == pytest.approx(1e6 + 64e4, rel=1e-6)
    assert model.predict(10, 64) == pytest.approx(10 * (1e6 + 64e4), rel=1e-6)


def test_a_file_holds_all_of_a_model(tmp_path: Path) -> None:
    model = model_of(1e6, 10, 1e3, 2).refined([(3, 50)], [3e6])
    model.save(tmp_path / "memory.json")
    loaded = MemoryModel.load(tmp_path / "memory.json")
    assert loaded == model
    assert loaded.fingerprint() == model.fingerprint() != model_of(1e6, 10, 1e3, 2).fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]
    for text, why in {
        "[]": "its format is not 'brimful memory model 1'",
        "{": "Expecting property name",
        json.dumps(model.to_json() | {"pieces": [[1.0]]}): "its pieces must have the shape (n, 5, 5)",
        json.dumps({name: value for name, value in model.to_json().items() if name != "errors"}): "'errors'",
        json.dumps(model.to_json() | {"lengths": [[0, 4]]}): "its batches and lengths must be ranges from 1 on (got",
        json.dumps(model.to_json() | {"squared_errors": float("nan")}): "squared_errors must be finite",
        json.dumps(model.to_json() | {"squared_errors": -1.0}): "squared_errors must be at least 0 (got -1.0)",
        json.dumps(model.to_json() | {"errors": [[0, -2]]}): "errors must be at least 1 (got -2)",
        json.dumps(model.to_json() | {"errors": [[3, 1], [2, 1]]}): "its steps of errors must ascend, from -1,000 to",
        json.dumps(model.to_json() | {"errors": [[float("inf"), 1]]}): "a step of errors must be an integer (got inf)",
        json.dumps(model.to_json() | {"lengths": [[1, float("inf")]]}): "a length must be an integer (got inf)",
        json.dumps(model.to_json() | {"batches": [1, 2.5]}): "a batch must be an integer (got 2.5)",
        "[" * 100_000: "maximum recursion depth exceeded",
        json.dumps(model.to_json() | {"unit": "miles"}): "unit must be one of bytes, relative (got 'miles')",
    }.items():
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="other.json holds no memory model: " + re.escape(why)):
            MemoryModel.load(tmp_path / "other.json")


def test_the_pretrained_model_knows_ratios() -> None:
    prior = MemoryModel.pretrained()
    assert prior.unit == "relative"
    assert prior.predict(64, 128) == pytest.approx(2 * prior.predict(32, 128), rel=1e-6)
    anchored = prior.anchored(32, 256, 8e9)
    assert (anchored.unit, anchored.predict(32, 256)) == ("bytes", pytest.approx(8e9))
    assert anchored.largest_batch(256, 8e9) < 32 < anchored.largest_batch(64, 16e9)
    assert anchored.refined([(32, 256)], [8e9]).predict(32, 256) == pytest.approx(8e9)
    with pytest.raises(
        ValueError, match=r"^this model knows peaks only relative to one another; give it bytes by anchored"
    ):
        prior.refined([(1, 1)], [1.0])


def test_a_model_begins_with_one_peak_and_what_others_say_gives_way_to_the_next(tmp_path: Path) -> None:
    begun = MemoryModel.pretrained().from_first_peak(8, 512, 8e9)
    assert (begun.unit, begun.predict(8, 512)) == ("bytes", pytest.approx(8e9, rel=0.02))
    flat = begun.refined([(8, 128), (12, 64)], [8e9, 12e9])
    assert flat.predict(16, 32) > 1.3 * begun.predict(16, 32)
    flat.save(tmp_path / "memory.json")
    assert MemoryModel.load(tmp_path / "memory.json") == flat
    for growth, why in (
        ([-1, 1], "a rate of growth must be at least 0"),
        ([1, 0], "a weight of growth must be positive"),
    ):
        with pytest.raises(ValueError, match=why):
            MemoryModel.from_json(begun.to_json() | {"growth": growth})


def test_it_prints_what_it_knows() -> None:
    words = "MemoryModel(12 peaks, batches 1 to 32, lengths 16 to 256; at risk 2.5 % peaks are up to "
    assert repr(model_of(1e6, 0, 1e3, 0)).startswith(words)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: MemoryModel.fit([(1, 2)], [3]),
            ValueError,
            "fit needs at least 2 peaks (got 1); 8 of different shapes do",
        ),
        (
            lambda: MemoryModel.fit([(4, 2), (4, 3)], [3, 4]),
            ValueError,
            "fit needs at least 2 batch sizes (got 2 peaks of batch 4): one cannot tell what a sample adds to what is there "
            "anyway; probe batch 1 too",
        ),
        (
            lambda: MemoryModel.fit([1, 2], [3, 4]),
            ValueError,
            "shapes must be (n, 2) or (n, 3), at least one: batch and length, or source",
        ),
        (lambda: MemoryModel.fit([(1, 2.5)] * 2, [3, 4]), TypeError, "shapes must be integers (got float64)"),
        (
            lambda: MemoryModel.fit([(1, 2)] * 2, [3]),
            ValueError,
            "peak_bytes must have one peak a shape, (2,) (got (1,))",
        ),
        (lambda: MemoryModel.fit([(1, 2), (2, 0)], [3, 4]), ValueError, "(shape 1 is batch 2 of length 0)"),
        (
            lambda: MemoryModel.fit([(1, 2), (2, 2)], [3, 0]),
            ValueError,
            "a peak must be positive and finite (peak 1 is 0.0)",
        ),
        (lambda: MemoryModel.fit([(1, 2), (2, 2)], [float("nan"), 1]), ValueError, "(peak 0 is nan)"),
        (lambda: model_of(1, 1, 1, 1).bound(1, 1, risk=1), ValueError, "risk must be between 0 and 1 (got 1)"),
        (
            lambda: model_of(1, 1, 1, 1).predict(1, 0),
            ValueError,
            "a shape must have lengths of at least 1 (got batch 1, length 0)",
        ),
        (
            lambda: model_of(1, 1, 1, 1).refined([(1, 2, 3)], [4]),
            ValueError,
            "this model takes (batch, length) (got (batch, source",
        ),
        (
            lambda: model_of(1, 1, 1, 1).largest_batch(5, float("inf")),
            ValueError,
            "limit_bytes must be finite (got inf)",
        ),
        (lambda: model_of(1, 1, 1, 1).anchored(1, 5, 0), ValueError, "peak_bytes must be positive (got 0)"),
        (lambda: spread_shapes([(1, 2)], count=0), ValueError, "count must be at least 1 shape (got 0)"),
        (
            lambda: spread_shapes([]),
            ValueError,
            "shapes must be (n, 2) or (n, 3), at least one: batch and length, or source and target (got (0,))",
        ),
    ],
)
def test_what_is_refused(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_chosen_shapes_are_the_corners_and_then_the_middle() -> None:
    shapes = [(batch, length) for batch in (1, 4, 16) for length in (8, 32, 128)]
    chosen = [shapes[number] for number in spread_shapes(shapes, count=5)]
    assert chosen[0] == (16, 128)
    assert set(chosen) == {(1, 8), (1, 128), (16, 8), (16, 128), (4, 32)}
    assert len(spread_shapes([(1, 2), (1, 2), (3, 4)], count=8)) == 2
