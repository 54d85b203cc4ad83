"""Least squares with no coefficient below zero, and pieces: against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.memory.growth import coefficients, nonnegative, per_sample, pieces_of, terms, triangle
from tests.effort import examples


def brute_force(matrix: np.ndarray, values: np.ndarray) -> float:
    """The least squared error over all choices of coefficients that are free, those that come out negative aside."""
    least = float(values @ values)
    for free in product([False, True], repeat=matrix.shape[1]):
        if any(free):
            x = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0]
            if (x >= 0).all():
                least = min(least, float(((matrix[:, free] @ x - values) ** 2).sum()))
    return least


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 9))
@examples(60)
def test_no_nonnegative_coefficients_fit_better(seed: int, count: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(rows, count)) * 10.0 ** random.integers(-6, 6, count)
    values = random.normal(size=rows)
    x = nonnegative(matrix, values)
    assert (x >= 0).all()
    assert ((matrix @ x - values) ** 2).sum() <= brute_force(matrix, values) * (1 + 1e-9) + 1e-12


@given(st.integers(0, 10**6), st.booleans())
@examples(25)
def test_a_triangle_knows_what_its_rows_know(seed: int, pairs: bool) -> None:
    random = np.random.default_rng(seed)
    rows = terms(random.integers(1, 64, 30).astype(float), random.integers(8, 512, (30, 1 + pairs)).astype(float))
    peaks = random.uniform(1e6, 1e9, 30)
    whole = coefficients(triangle(rows, peaks), True)
    in_parts = triangle(rows[20:], peaks[20:], triangle(rows[:20], peaks[:20]))
    np.testing.assert_allclose(rows @ coefficients(in_parts, True), rows @ whole, rtol=1e-7)
    relative = rows / peaks[:, None]
    error = ((relative @ whole - 1) ** 2).sum()
    assert error <= ((relative @ nonnegative(relative, np.ones(30)) - 1) ** 2).sum() * (1 + 1e-9)


def test_terms_grow_with_the_batch_and_with_each_length() -> None:
    assert terms(np.array([3.0]), np.array([[5.0]])).tolist() == [[1, 3, 15, 75]]
    assert terms(np.array([2.0]), np.array([[3.0, 5.0]])).tolist() == [[1, 2, 6, 10, 18, 30, 50]]
    assert per_sample(np.array([[4.0]])).tolist() == [[1, 4, 16]]


def test_moments_of_a_step_are_told_apart() -> None:
    """An optimizer's update, which no batch changes, and activations: one fit would be wrong by a fifth."""
    batches, lengths = (one.ravel() for one in np.meshgrid([1, 2, 4, 8, 16, 32], [64, 128, 256, 512]))
    rows = terms(batches.astype(float), lengths[:, None].astype(float))
    peaks = np.maximum(8e9, 5e9 + 1e6 * batches * lengths)
    pieces = pieces_of(rows, peaks, True)
    assert len(pieces) == 2
    assert sorted(np.concatenate(pieces).tolist()) == list(range(len(peaks)))
    fitted = np.array([coefficients(triangle(rows[part], peaks[part]), True) for part in pieces])
    np.testing.assert_allclose((rows @ fitted.T).max(axis=1), peaks, rtol=1e-6)


def test_noise_is_no_reason_for_a_piece() -> None:
    random = np.random.default_rng(0)
    batches, lengths = random.integers(1, 64, 200).astype(float), random.integers(8, 512, (200, 1)).astype(float)
    rows = terms(batches, lengths)
    peaks = (1e9 + 2e5 * batches * lengths[:, 0]) * random.lognormal(0, 0.05, 200)
    assert len(pieces_of(rows, peaks, True)) == 1
