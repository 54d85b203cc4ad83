"""Micro batches of samples that arrive one by one, held against their limits and against plans of all samples."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brimful as bf
from brimful.plan import Planner
from brimful.plan.units import units_of

calls = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=6), st.booleans()), max_size=25
)


@given(
    calls=calls,
    limits=st.sampled_from(
        [{"tokens": 400}, {"tokens": 400, "images": 60}, {"tokens": 400, "images": 60, "samples": 7}]
    ),
    max_open=st.integers(1, 5),
    max_wait=st.integers(0, 30),
    save_at=st.integers(0, 25),
)
@settings(max_examples=300, deadline=None)
def test_each_sample_is_in_one_micro_batch_within_the_limits_and_none_waits_for_long(
    calls: list[tuple[list[tuple[int, int]], bool]], limits: dict[str, int], max_open: int, max_wait: int, save_at: int
) -> None:
    planner = Planner(limits, max_open=max_open, max_wait=max_wait)
    names = [name for name in limits if name != "samples"]
    sizes, ready, together = np.zeros((0, len(names)), np.int64), [], []
    for number, (samples, whole) in enumerate(calls):
        if number == save_at:
            state = json.loads(json.dumps(planner.state_dict()))
            planner = Planner(limits, max_open=max_open, max_wait=max_wait)
            planner.load_state_dict(state)
        given_sizes = np.array(samples, np.int64).reshape(-1, 2)[:, : len(names)]
        added = planner.add(dict(zip(names, given_sizes.T, strict=True)), together=whole)
        assert added.tolist() == [*range(len(sizes), len(sizes) + len(samples))]
        together += [len(sizes)] * len(samples) if whole else added.tolist()
        sizes = np.concatenate([sizes, given_sizes])
        ready += planner.ready()
        waiting = set(range(len(sizes))) - {one for batch in ready for one in batch.tolist()}
        assert planner.num_waiting == len(waiting)
        assert not waiting or min(waiting) > len(sizes) - 1 - max_wait - 6  # those that came together count at once
    ready += planner.flush()
    assert planner.num_waiting == 0
    numbers = [one for batch in ready for one in batch.tolist()]
    assert sorted(numbers) == [*range(len(sizes))]
    batch_of = np.empty(len(sizes), np.int64)
    for number, batch in enumerate(ready):
        assert len(batch)
        assert (sizes[batch].sum(axis=0) <= [limits[name] for name in names]).all()
        assert len(batch) <= limits.get("samples", len(batch))
        batch_of[batch] = number
    units = units_of(np.array(together, np.int64), len(sizes))
    assert (units.greatest(batch_of) == -units.greatest(-batch_of)).all()


DISTRIBUTIONS: dict[str, Any] = {
    "lognormal": lambda rng: np.clip(rng.lognormal(6.5, 1, 4_000), 16, 16_384),
    "rollouts": lambda rng: np.clip(
        np.repeat(rng.lognormal(7, 0.8, 500), 8) * rng.lognormal(0, 0.4, 4_000), 16, 16_384
    ),
    "two lengths": lambda rng: np.where(rng.random(4_000) < 0.5, 300, 8_000),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_hardly_more_than_a_plan_that_knows_all_samples(name: str) -> None:
    lengths = DISTRIBUTIONS[name](np.random.default_rng(0)).astype(np.int64)
    planner = Planner(16_384)
    batches = []
    for part in np.array_split(lengths, 500):
        planner.add(part)
        batches += planner.ready()
    batches += planner.flush()
    assert len(batches) <= 1.012 * len(bf.Packed(16_384).plan(lengths)) + 1


def test_the_order_of_calls_does_not_matter_but_for_what_comes_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 400, 300)
    one, many = Planner(1_000), Planner(1_000)
    one.add(lengths)
    for length in lengths:
        many.add([length])
    assert [batch.tolist() for batch in one.flush()] == [batch.tolist() for batch in many.flush()]


def test_what_does_not_fit_is_refused_and_nothing_is_placed() -> None:
    planner = Planner({"tokens": 100, "samples": 3})
    planner.add([50])
    with pytest.raises(bf.OverlongError, match=r"a sample of 101 tokens \(sample 1\) cannot fit tokens=100"):
        planner.add([10, 101])
    with pytest.raises(
        bf.OverlongError, match=r"a unit of 3 samples \(sample 0\) has 120 in sum, and cannot fit tokens=100"
    ):
        planner.add([40, 40, 40], together=True)
    with pytest.raises(bf.OverlongError, match=r"a unit of 4 samples .* has 4 in sum, and cannot fit samples=3"):
        planner.add([1, 1, 1, 1], together=True)
    assert planner.num_waiting == 1
    assert planner.add([20]).tolist() == [1]
    with pytest.raises(bf.StateError, match=r"limits={'tokens': 100, 'samples': 3}, and the planner {'tokens': 100}"):
        Planner(100).load_state_dict(planner.state_dict())
    with pytest.raises(bf.StateError, match=r"a state is a dict of limits, next, open, ready, .* \(got next\)"):
        planner.load_state_dict({"next": 1})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limits": 0}, "limits must be at least 1"),
        ({"limits": {}}, "limits must be at least 1"),
        ({"limits": 1 << 62}, "limits must be at most 1,099,511,627,776"),  # sums of sizes would wrap around
        ({"limits": 8, "max_open": 0}, "max_open must be at least 1"),
        ({"limits": 8, "max_wait": -1}, "max_wait must be at least 0"),
    ],
)
def test_settings_that_allow_nothing_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Planner(**arguments)


def test_a_state_goes_on_with_limits_in_another_order() -> None:
    planner, other = Planner({"a": 10, "b": 20}), Planner({"b": 20, "a": 10})
    planner.add({"a": [9], "b": [1]})
    other.load_state_dict(json.loads(json.dumps(planner.state_dict(), sort_keys=True)))
    other.add({"a": [5], "b": [1]})
    assert [batch.tolist() for batch in other.flush()] == [[0], [1]]


def test_a_state_stays_as_it_was_saved() -> None:
    planner = Planner(100, max_wait=1)
    planner.add([60, 70, 10])
    state = planner.state_dict()
    saved = json.dumps(state)
    planner.add([20, 5])
    assert json.dumps(state) == saved
    state["limits"]["tokens"] = 1
    for samples in (*state["ready"], *(samples for samples, _ in state["open"])):
        samples.append(99)
    assert sorted(one for batch in planner.flush() for one in batch.tolist()) == [0, 1, 2, 3, 4]


def test_a_state_with_more_open_micro_batches_than_allowed_here_closes_them() -> None:
    planner, fewer = Planner(100, max_open=8), Planner(100, max_open=2)
    planner.add([60] * 8)
    fewer.load_state_dict(planner.state_dict())
    fewer.add([60])
    assert [len(batch) for batch in fewer.ready()] == [1] * 7
    assert fewer.num_waiting == 2


@pytest.mark.parametrize("state", [{}, {"limits": 3}])
def test_what_is_no_state_of_a_planner_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(bf.StateError, match="a state is a dict of limits, next, open, ready"):
        Planner(100).load_state_dict(state)
