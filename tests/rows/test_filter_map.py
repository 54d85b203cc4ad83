from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.facts import facts_of
from tests.samples import letters, spelled


def test_a_sample_takes_the_place_of_each_but_where_it_is_none() -> None:
    def upper(sample: dict[str, Any]) -> dict[str, Any] | None:
        return {"letter": sample["letter"].upper()} if sample["letter"] != "b" else None

    assert spelled(letters("abcb").filter_map(upper)) == "AC"
    assert spelled(letters("bb").filter_map(upper)) == ""


def test_with_a_seed_it_gets_a_generator() -> None:
    def some(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
        return sample if rng.random() < 0.5 else None

    data = letters("abcdefghijklmnopqrst").filter_map(some, seed=2)
    assert 0 < len(spelled(data)) < 20
    assert spelled(data) == spelled(data)


def test_types_are_those_of_the_first_thousand_results_of_whichever_rows() -> None:
    """They used to be looked for in the first 1,000 rows of each block, and found in others than a run from the start has."""

    def half(sample: dict[str, int]) -> dict[str, float] | None:
        return None if sample["x"] % 2 else {"x": sample["x"] if sample["x"] < 2_000 else 0.5}

    data = bf.from_sequence([{"x": number} for number in range(6_000)]).filter_map(half)
    assert facts_of(data.stage).row_schema().field("x").type == pa.int64()
    with pytest.raises(bf.StageError, match=r"row 2,000: column 'x' is int64 by the schema but double here"):
        list(data)
