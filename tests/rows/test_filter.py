from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed


@pytest.mark.parametrize("letters", [letters, streamed])
def test_samples_are_kept_where_the_function_is_true(letters: Any) -> None:
    assert spelled(letters("abcab").filter(lambda sample: sample["letter"] != "b")) == "aca"
    assert spelled(letters("abc").filter(lambda sample: cast(bool, np.bool_(sample["letter"] == "b")))) == "b"
    assert spelled(letters("abc").filter(lambda sample: sample["letter"] if sample["letter"] > "a" else 0)) == "bc"  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_what_the_function_does_to_a_sample_is_forgotten(source: Any) -> None:
    def changes(sample: dict[str, Any]) -> bool:
        sample["input_ids"] += 1
        sample["x"] = 1
        return True

    (sample,) = source([{"input_ids": [1, 2]}]).filter(changes)
    assert (sample["input_ids"].tolist(), list(sample)) == ([1, 2], ["input_ids"])


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_what_is_neither_true_nor_false_is_an_error_with_its_place(source: Any) -> None:
    message = r"^filter\(<lambda>\) failed at \w+, row 0: ValueError: The truth value of an array"
    with pytest.raises(bf.StageError, match=message):
        list(source([{"input_ids": np.array([1, 2])}]).filter(lambda sample: sample["input_ids"] > 1))


def test_with_a_seed_samples_are_drawn_and_keep_their_columns() -> None:
    def coin(sample: dict[str, Any], rng: np.random.Generator) -> bool:
        return bool(rng.random() < 0.5)

    data = letters("abcdefghij" * 100).stream().filter(coin, seed=1)
    kept = list(data)
    assert 400 < len(kept) < 600
    assert list(kept[0]) == ["letter"]
    assert list(data) == kept
    assert_exact_resume(lambda: letters("abcdefgh").stream().filter(coin, seed=1))


def test_resume_goes_on_where_everything_is_dropped() -> None:
    assert_exact_resume(lambda: bf.from_iterable(["a"] * 600).filter(lambda sample: False))
