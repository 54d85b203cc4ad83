from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.core.run import Run
from brimful.testing import assert_exact_resume
from tests.samples import letters, shard, spelled


def test_all_samples_of_the_function_take_the_place_of_each() -> None:
    def repeated(sample: dict[str, Any]) -> Any:
        return (sample for _ in range("abc".index(sample["letter"])))  # a generator will do

    assert spelled(letters("abcab").flat_map(repeated)) == "bccb"
    assert spelled(letters("aaa").flat_map(repeated)) == ""


def test_many_samples_of_one_come_in_blocks_that_a_resume_can_begin_at() -> None:
    def make() -> bf.Dataset:
        return letters("ab").flat_map(lambda sample: [sample] * 5_000)

    stage = make().stage
    sizes = [block.num_rows for block, _ in stage.items(stage.start(0), Run())]
    assert (sizes[0], max(sizes), sum(sizes)) == (16, 3_856, 10_000)
    assert_exact_resume(make, max_resumes=4, epochs=(0,))


def test_with_a_seed_it_gets_a_generator() -> None:
    def some(sample: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        return [sample] * int(rng.integers(3))

    data = letters("abcdefghij").flat_map(some, seed=2)
    assert spelled(data) == spelled(data)
    assert 0 < len(spelled(data)) < 20


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "flat_map(<lambda>) failed at shard a.jsonl, line 2: TypeError: 'NoneType' object is not iterable"),
        ("text", "flat_map(<lambda>) must return dicts (got str; shard a.jsonl, line 2)"),
        ({"a": 1}, "flat_map(<lambda>) must return dicts (got str; shard a.jsonl, line 2)"),
    ],
)
def test_what_is_no_list_of_dicts_is_an_error_with_its_place(tmp_path: Path, wrong: Any, message: str) -> None:
    data = shard(tmp_path, [{"a": 1}, {"a": 2}]).flat_map(lambda sample: [sample] if sample["a"] == 1 else wrong)
    with pytest.raises(bf.StageError) as error:
        list(data)
    assert str(error.value) == message


def test_an_error_of_a_generator_names_the_function_and_the_row(tmp_path: Path) -> None:
    def fails(sample: dict[str, Any]) -> Any:
        yield sample
        raise KeyError("boom")

    with pytest.raises(bf.StageError, match=r"^flat_map\(fails\) failed at shard a\.jsonl, line 1: KeyError: 'boom'$"):
        list(shard(tmp_path, [{"a": 1}]).flat_map(fails))


def test_as_many_samples_as_rows_have_the_places_of_their_rows(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"letter": "a", "n": 2}, {"letter": "b", "n": 0}]).flat_map(
        lambda sample: [sample] * sample["n"]
    )
    with pytest.raises(bf.StageError, match=r"^map\(second\) failed at shard a\.jsonl, line 1: "):
        list(data.enumerate().map(second))


def second(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["step"]:
        raise KeyError("boom")
    return sample
