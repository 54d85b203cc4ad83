from __future__ import annotations

from typing import Any

import numpy as np

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
