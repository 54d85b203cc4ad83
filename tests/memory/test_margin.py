"""A risk means what it says: Student's t, and errors that were seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.memory.margin import Margin, student_quantile
from tests.effort import examples


@pytest.mark.parametrize(
    ("share", "degrees", "quantile"),
    [(0.975, 1, 12.7062), (0.99, 2, 6.9646), (0.99, 3, 4.5407), (0.975, 12, 2.1788), (0.999, 4, 7.1732), (0.95, 200, 1.6525)],
)  # fmt: skip
def test_quantiles_of_student(share: float, degrees: int, quantile: float) -> None:
    assert student_quantile(share, degrees) == pytest.approx(quantile, abs=2e-4)
    assert student_quantile(1 - share, degrees) == pytest.approx(-quantile, abs=2e-4)


def after(margin: Margin, errors: list[float]) -> Margin:
    for error in errors:
        margin = margin.after(error)
    return margin


def exceeded(draw: object, risk: float, known: int, rounds: int = 4_000) -> float:
    """How often the next error lies above the margin of those before it."""
    random = np.random.default_rng(1)
    drawn = draw(random, (rounds, known + 1))  # type: ignore[operator]
    misses = [row[-1] > np.log(Margin.of(row[:-1].tolist()).factor(risk)) for row in drawn]
    return float(np.mean(misses))


DRAWS = {
    "normal": lambda random, size: random.normal(0, 0.05, size),
    "heavy": lambda random, size: 0.03 * random.standard_t(2, size),
    "rare and large": lambda random, size: np.where(random.random(size) < 0.03, 0.8, random.normal(0, 0.02, size)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(("risk", "known"), [(0.1, 30), (0.05, 19), (0.025, 60)])
def test_errors_that_were_seen_bound_the_next_one(name: str, risk: float, known: int) -> None:
    share = exceeded(DRAWS[name], risk, known)
    assert share <= risk + 3 * np.sqrt(risk / 4_000)


@pytest.mark.parametrize(("risk", "known"), [(0.025, 0), (0.025, 8), (0.01, 8), (0.01, 30)])
def test_few_errors_bound_the_next_one_where_they_are_normal(risk: float, known: int) -> None:
    assert exceeded(lambda random, size: random.normal(0, 0.04, size), risk, known) <= risk + 3 * np.sqrt(risk / 4_000)


@given(st.lists(st.floats(-1, 1), max_size=60), st.lists(st.floats(-1, 1), max_size=5), st.floats(0.001, 0.4))
@examples(60)
def test_a_margin_is_bounded_and_grows_as_the_risk_falls(first: list[float], then: list[float], risk: float) -> None:
    margin = after(Margin.of(first), then)
    assert margin.counts == after(Margin.of(then), first).counts
    assert margin.squares == pytest.approx(sum(e**2 for e in first + then))
    assert Margin.from_json(margin.counts, margin.squares, margin.risk_adjustment) == margin
    assert len(margin) == len(first) + len(then)
    assert 1 <= margin.factor(risk) <= margin.factor(risk / 2)


def test_a_margin_begins_at_a_tenth() -> None:
    assert Margin().factor(0.025) == pytest.approx(1.117, abs=0.001)
    assert Margin.of([0.5]).factor(0.4) >= np.exp(0.5), "never less than the greatest error of few"
    assert len(Margin.of([0.001] * 100_000).counts) == 1, (
        "its size depends on how errors differ, not on how many they are"
    )


@pytest.mark.parametrize("risk", [0.025, 0.1])
def test_errors_that_get_worse_exceed_their_bounds_no_more_often(risk: float) -> None:
    """In bursts, ever more of them, as where generation ends late: without an adjusted risk far more often."""
    random = np.random.default_rng(3)
    misses = careless = count = 0
    for _ in range(6):
        burst = np.repeat(random.random(60) < np.linspace(0, 0.2, 60), 5)
        errors = np.where(burst, random.normal(1.0, 0.2, 300), random.normal(0, 0.05, 300)).tolist()
        margin, counted = Margin(), Margin()
        for error in errors:
            misses += np.exp(error) > margin.factor(risk)
            careless += np.exp(error) > counted.factor(risk)
            margin, counted, count = margin.after(error), counted._counted([error]), count + 1
    assert misses <= risk * count + 3 * np.sqrt(risk * count)
    assert careless > 1.3 * misses


def test_care_goes_as_errors_stay_within() -> None:
    margin = Margin.of([0.01] * 200)
    missed = margin.after(0.5)
    assert missed.risk_adjustment[4] == 39, "one step for each error within, at a risk of 2.5 %"
    assert missed.factor(0.025) > margin.factor(0.025)
    assert after(missed, [0.0] * 39).risk_adjustment[4] == 0
    for wrong in ([1] * 7, [151] * 8):
        with pytest.raises(ValueError, match=r"^care must be 8 numbers up to 150"):
            Margin.from_json([], 0.0, wrong)
