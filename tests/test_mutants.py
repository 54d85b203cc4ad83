"""The suite bites: it fails on every known way to break resume, budgets and order."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, Mutant, survives, unmutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_table_is_up_to_date(mutant: Mutant) -> None:
    unmutated(mutant)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_mutant_is_found(mutant: Mutant) -> None:
    said = survives(mutant)
    assert said is None, f"{mutant.why}: {said}"
