"""Policies that users write: plain classes, without anything of ours."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.core.errors import DataError, StateError

DATA = bf.from_sequence([{"id": number, "input_ids": [1] * (1 + number * 7 % 40)} for number in range(200)])


class Sorted:
    """Batches of `size`, by length."""

    max_length = None

    def __init__(self, size: int, steps: Any = ()) -> None:
        self.size, self.steps, self._calls = size, np.asarray(steps), 0

    def plan(self, lengths: Any) -> bf.Plan:
        self._calls += 1
        return bf.Plan.of(lengths, np.array_split(np.argsort(lengths, kind="stable"), -(-len(lengths) // self.size)))


class Short(Sorted):
    max_length = 20


def saved(policy: bf.Policy) -> dict[str, Any]:
    with DATA.batch(policy, window=50).iter() as it:
        assert len(list(islice(it, 7))) == 7
        return it.state_dict()


def test_a_state_holds_the_settings_of_a_users_policy() -> None:
    for policy, other, name in (
        (Sorted(7), Sorted(9), "size"),
        (Sorted(7, [1, 2]), Sorted(7, [1, 3]), "steps"),
        (Sorted(7, range(500)), Sorted(7, range(1, 501)), "steps"),
    ):
        state = saved(policy)
        assert len(list(DATA.batch(type(policy)(policy.size, policy.steps), window=50).iter(state))) > 0
        with pytest.raises(StateError, match=name):
            DATA.batch(other, window=50).iter(state)


def test_what_begins_with_an_underscore_is_no_setting() -> None:
    policy = Sorted(7)
    state = saved(policy)
    assert policy._calls > 0
    whole = [batch["id"].tolist() for batch in DATA.batch(Sorted(7), window=50)]
    assert [batch["id"].tolist() for batch in DATA.batch(Sorted(7), window=50).iter(state)] == whole[7:]


def test_a_sample_that_a_users_policy_says_it_cannot_place_is_an_error() -> None:
    with pytest.raises(DataError, match=r"a sample of 22 tokens .* cannot fit max_length=20 of Short"):
        list(DATA.batch(Short(4), window=50))
    assert sum(len(batch["id"]) for batch in DATA.batch(Short(4), window=50, overlong="truncate")) == 200
