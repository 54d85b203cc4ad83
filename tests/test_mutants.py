"""The suite bites: it fails on every known way to break resume, budgets and order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.mutants import MUTANTS, Mutant, survives, unmutated


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[str | None]]]:
    """What the tests say of each mutant that is asked for: as many at once as there are cores."""
    asked = [item.callspec.params for item in request.session.items if "said" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {params["mutant"].why: pool.submit(survives, params["mutant"]) for params in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_table_is_up_to_date(mutant: Mutant) -> None:
    unmutated(mutant)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_the_mutant_is_found(mutant: Mutant, said: dict[str, Future[str | None]]) -> None:
    words = said[mutant.why].result()
    assert words is None, f"{mutant.why}: {words}"
