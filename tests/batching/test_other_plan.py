"""A state in the middle of a window belongs to the window's plan: with another one samples would be lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import brimful as bf

ROWS = [
    {"id": number, "input_ids": [number] * (1 + number * 7_919 % 50), "k": number * 31 % 101} for number in range(120)
]
MESSAGE = r" makes other batches of window 0 than when the state was saved: .*Go on with the one that saved it"


def key(times: int) -> Callable[[Any], int]:
    def by(sample: Any) -> int:
        return int(sample["k"]) * times

    return by


def size(most: int) -> Callable[[Any], int]:
    def of(longest: Any) -> int:
        return most

    return of


def cost(power: float) -> Callable[[Any, Any], Any]:
    def of(samples: Any, length: Any) -> Any:
        return samples * length**power

    return of


def even(power: float) -> Callable[[Any], Any]:
    def of(lengths: Any) -> Any:
        return np.abs(lengths - 25.0 * (power != 1))

    return of


@dataclass(frozen=True)
class Own:
    max_length = None

    def plan(self, lengths: Any) -> bf.Plan:
        return bf.Plan.of(
            lengths, np.array_split(np.argsort(lengths * SIGN["of"], kind="stable"), len(lengths) // 8 + 1)
        )


SIGN = {"of": 1}

PLANS: dict[str, Callable[[Any, int], Any]] = {
    "key": lambda data, way: data.batch_by(8, key(way), window=60),
    "boundary_key": lambda data, way: data.batch_by(8, key(1), boundary_key=key(way - 1), window=60),
    "batch_size": lambda data, way: data.batch_by(size(8 * way or 8), key(1), window=60),
    "CostBudget": lambda data, way: data.batch(bf.CostBudget(cost(1 if way == 1 else 1.2), 200), window=60),
    "balance_cost": lambda data, way: data.batch(4, window=60, balance_group=2, balance_cost=even(way)),
    "pack": lambda data, way: data.pack(60, rows=2, window=60, balance_cost=even(way)),
}
OTHER = {"batch_size": 2}


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("allow", [(), {"functions"}], ids=["", "functions"])
def test_a_function_of_the_same_name_that_plans_otherwise_is_refused_in_a_window(
    source: Any, plan: str, allow: Any
) -> None:
    one, other = PLANS[plan](source(ROWS), 1), PLANS[plan](source(ROWS), OTHER.get(plan, -1))
    with one.iter() as it:
        before = [next(it), next(it)]
        state = json.loads(json.dumps(it.state_dict()))
        rest = [batch["input_ids"].tolist() for batch in it]
    assert len(before) == 2
    with one.iter(state, allow=allow) as again:
        assert [batch["input_ids"].tolist() for batch in again] == rest
    with pytest.raises(bf.StateError, match=MESSAGE):
        next(other.iter(state, allow=allow))


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_a_policy_of_the_same_name_that_plans_otherwise_is_refused(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = source(ROWS).batch(Own(), window=60)
    with batches.iter() as it:
        next(it)
        state = it.state_dict()
    sampler = bf.BatchSampler([len(row["input_ids"]) for row in ROWS], Own(), window=60)
    next(iter(sampler))
    place = sampler.state_dict()
    monkeypatch.setitem(SIGN, "of", -1)
    with pytest.raises(bf.StateError, match=r"^batch\(policy=Own\(\), .*" + MESSAGE):
        next(batches.iter(state))
    with pytest.raises(bf.StateError, match=MESSAGE):
        sampler.load_state_dict(place)


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_between_two_windows_another_plan_goes_on(source: Any) -> None:
    one, other = (source(ROWS).batch_by(8, key(way), window=60) for way in (1, -1))
    with one.iter() as it:
        found = [number for _ in range(8) for number in next(it)["id"].tolist()]
        state = it.state_dict()
    with other.iter(state) as it:
        assert sorted([*found, *(number for batch in it for number in batch["id"].tolist())]) == [*range(len(ROWS))]


def test_other_lengths_that_are_allowed_are_said(caplog: pytest.LogCaptureFixture) -> None:
    def of(times: int) -> bf.Batches:
        def longer(sample: Any) -> Any:
            return {**sample, "input_ids": [1] * (1 + len(sample["input_ids"]) * times % 50)}

        return bf.from_iterable(ROWS).map(longer).batch_by_tokens(200, window=60)

    with of(1).iter() as it:
        next(it)
        state = it.state_dict()
    assert list(of(3).iter(state, allow={"rows"}))
    assert "makes other batches of window 0 than when the state was saved" in caplog.text
    assert "as allow={'rows'} says" in caplog.text
