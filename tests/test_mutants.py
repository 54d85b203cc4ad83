"""The suite bites: it fails on every known way to break resume, budgets and order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import MUTANTS, Mutant, check, faulty, survives
from tests.trials import Trials
from tools.mutate import changes

MOST = 60
"""Faults by hand. What more could break is for `make mutate` to try."""


@pytest.fixture(scope="module")
def within() -> Iterator[Trials]:
    with faulty() as own:
        yield own


def test_the_table_is_up_to_date() -> None:
    assert len(MUTANTS) <= MOST
    assert len({mutant.why for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        check(mutant)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_mutant_is_found(mutant: Mutant, within: Trials) -> None:
    words = survives(mutant, within)
    assert words is None, f"{mutant.why}: {words}"


SOURCE = '''
class Counted:
    """A docstring 1."""

    size: int = 3

    @cache(4)
    def rest(self, rows: list[int]) -> int:
        """Another 2."""
        if self.on and rows:
            raise ValueError(f"{len(rows) + 5} rows")
        count: Literal[6] = max(rows, key=len)
        self.names["ä"] = [row for row in rows if row]
        self.begin(count)
        count = count.whole
        yield [count, self.size]
        return 0 <= count - 1 < self.size
'''


def test_what_is_changed_is_code_of_functions() -> None:
    found = {(before, after) for *_, before, after in changes(SOURCE)}
    assert found == {
        ("self.on and rows", "(self.on or rows)"),
        ("self.on and rows", "(rows)"),
        ("self.on and rows", "(self.on)"),
        ("self.on and rows", "(not (self.on and rows))"),
        ("max(rows, key=len)", "max(rows)"),
        ('self.names["ä"] = [row for row in rows if row]', "pass"),
        ("row", "(not (row))"),
        ("self.begin(count)", "pass"),
        ("count = count.whole", "pass"),
        ("[count, self.size]", "[0, self.size]"),
        ("[count, self.size]", "[count, 0]"),
        ("return 0 <= count - 1 < self.size", "return None"),
        ("0 <= count - 1 < self.size", "(0 < count - 1 < self.size)"),
        ("0 <= count - 1 < self.size", "(0 <= count - 1 <= self.size)"),
        ("0", "1"),
        ("0", "-1"),
        ("count - 1", "(count + 1)"),
        ("1", "2"),
        ("1", "0"),
    }
    text = SOURCE.encode()
    for _, start, end, before, after in changes(SOURCE):
        assert text[start:end].decode() == before
        compile(text[:start] + after.encode() + text[end:], "changed", "exec")
