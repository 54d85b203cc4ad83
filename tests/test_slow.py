"""The list of slow tests names tests that there are, and is made of what pytest prints."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.slow import longest, slow

ROOT = Path(__file__).parents[1]


def test_each_slow_test_is_there() -> None:
    found = set()
    for file in {name.partition("::")[0] for name in slow()}:
        tree = ast.parse((ROOT / file).read_text())
        found |= {f"{file}::{one.name}" for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    assert slow()
    assert slow() <= found


def test_the_longest_are_listed_until_the_others_take_a_share() -> None:
    log = """
============================= slowest durations ==============================
2.00s call     tests/a.py::one[x y]
3.00s call     tests/a.py::two
2.00s call     tests/a.py::one[y]
0.50s setup    tests/b.py::three
9.00s call     src/brimful/plan/plan.py::brimful.plan.plan
"""
    assert longest(log, 0.6) == ["tests/a.py::one"]
    assert longest(log, 0.4) == ["tests/a.py::one", "tests/a.py::two"]
