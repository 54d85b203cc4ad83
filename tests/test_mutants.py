"""The suite bites: it fails on every known way to break resume, budgets and order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import MUTANTS, Mutant, Survives, forks, unmutated


@pytest.fixture(scope="module")
def survives() -> Iterator[Survives]:
    with forks() as survives:
        yield survives


def test_the_table_is_up_to_date() -> None:
    for mutant in MUTANTS:
        unmutated(mutant)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_mutant_is_found(mutant: Mutant, survives: Survives) -> None:
    words = survives(mutant)
    assert words is None, f"{mutant.why}: {words}"
