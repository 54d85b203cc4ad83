"""What running out of memory teaches, and for which shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.oom.exhaustion import Limits
from brimful.plan.errors import StateError

shapes = st.tuples(st.integers(1, 500), st.integers(1, 500))


def test_a_limit_holds_for_larger_samples_and_for_those_a_tenth_smaller_as_slots() -> None:
    limits = Limits()
    limits.learn("samples", (100,), 8)
    found = {width: limits.allowed("samples", (width,)) for width in (89, 90, 95, 100, 101, 5_000)}
    assert found == {89: None, 90: 8, 95: 8, 100: 8, 101: 8, 5_000: 8}
    assert limits.allowed("tokens", (100,)) is None, "another measure"
    assert limits.allowed("samples", (100, 100)) is None, "other columns"
    limits.learn("tokens", (), 64)
    assert limits.allowed("tokens", ()) == 64


@given(st.lists(st.tuples(shapes, st.integers(1, 64)), max_size=30), shapes)
def test_limits_are_only_lowered_hold_what_was_learnt_and_survive_json(
    given: list[tuple[tuple[int, int], int]], shape: tuple[int, int]
) -> None:
    limits = Limits()
    before = None
    for widths, size in given:
        limits.learn("samples", widths, size)
        known = limits.allowed("samples", widths)
        assert known is not None
        assert known <= size
        now = limits.allowed("samples", shape)
        assert before is None or (now is not None and now <= before)
        before = now
    other = Limits()
    other.load_state_dict(json.loads(json.dumps(limits.state_dict())))
    assert other.allowed("samples", shape) == before
    assert other.state_dict() == limits.state_dict()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "'int' object is not iterable"),
        ([3], "after \\* must be an iterable"),
        ([["samples", 8]], "missing 1 required positional argument: 'widths'"),
        ([["rows", 8, []]], "the unit of a limit must be one of samples, tokens \\(got 'rows'\\)"),
        ([["samples", 0, [2]]], "a limit must be at least 1 \\(got 0\\)"),
        ([["samples", 8, [-2]]], "a width must be at least 0 \\(got -2\\)"),
        ([["samples", float("inf"), [2]]], "a limit must be an integer \\(got inf\\)"),
        ([["samples", 8, [1 << 70]]], "a width must be at most"),
        ([["samples", 8, 2]], "'int' object is not iterable"),
    ],
)
def test_a_damaged_state_is_refused_before_anything_is_changed(given: Any, words: str) -> None:
    limits = Limits()
    limits.learn("samples", (100,), 8)
    before = limits.state_dict()
    with pytest.raises(StateError, match=f"this state of a guard is damaged: .*{words}"):
        limits.load_state_dict(before | {"limits": [*before["limits"], *given] if isinstance(given, list) else given})
    assert limits.state_dict() == before
