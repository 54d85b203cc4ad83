from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import failing_at, letters, same, shard, spelled


def test_a_sample_takes_the_place_of_each() -> None:
    data = letters("abc").map(lambda sample: {"letter": sample["letter"] * 2, "n": 1})
    assert [*data] == [{"letter": "aa", "n": 1}, {"letter": "bb", "n": 1}, {"letter": "cc", "n": 1}]
    assert list(letters("ab").map(lambda sample: {})) == [{}, {}]


def test_what_a_function_leaves_alone_stays_as_it_is() -> None:
    rows = [
        {"t": np.array([1, 2], dtype=np.int16), "f": 0.5, "s": "é", "n": None, "d": {"a": [1]}, "l": [["x"], []]},
        {"t": None, "f": None, "s": None, "n": None, "d": None, "l": None},
        {"t": np.array([], dtype=np.int16), "f": -0.0, "s": "", "n": None, "d": {"a": None}, "l": [None]},
    ]
    data = bf.from_sequence(rows)
    before, after = list(data), list(data.map(same).map(dict))
    assert repr(after) == repr(before)
    assert after[0]["t"].dtype == np.int32, "as all samples show small integers"


@pytest.mark.parametrize(
    ("verb", "wrong"), [("map", None), ("map", "text"), ("map", [{"a": 1}]), ("filter_map", 5)], ids=repr
)
def test_what_is_no_dict_is_an_error_with_its_place(tmp_path: Path, verb: str, wrong: Any) -> None:
    data = getattr(shard(tmp_path, [{"a": 1}, {"a": 2}]), verb)(lambda sample: sample if sample["a"] == 1 else wrong)
    message = rf"^{verb}\(<lambda>\) must return dicts \(got {type(wrong).__name__}; shard a\.jsonl, line 2\)$"
    with pytest.raises(bf.StageError, match=message):
        list(data)


@pytest.mark.parametrize("verb", ["map", "filter", "filter_map", "flat_map"])
@pytest.mark.parametrize("seed", [None, 1])
def test_an_error_names_the_function_the_file_and_the_line(tmp_path: Path, verb: str, seed: int | None) -> None:
    data = shard(tmp_path, [{"letter": letter} for letter in "abc"])
    for fn, name in ((failing_at("b"), "fails"), (partial(failing_at("b")), "partial")):
        with pytest.raises(bf.StageError) as error:
            list(getattr(data, verb)(fn, seed=seed))
        if verb != "flat_map":
            assert str(error.value) == f"{verb}({name}) failed at shard a.jsonl, line 2: KeyError: 'boom'"
            assert isinstance(error.value.__cause__, KeyError)


def test_values_without_a_common_type_are_an_error(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"a": 1}, {"a": 2}]).map(lambda sample: {"b": sample["a"] if sample["a"] == 1 else "x"})
    message = (
        r"^map\(<lambda>\) failed at shard a\.jsonl, line 2: column 'b' is int64 by the schema but string here; return one "
        r"type in every sample$"
    )
    with pytest.raises(bf.StageError, match=message):
        list(data)


@pytest.mark.parametrize("streams", [None, 2])
def test_what_a_function_gives_has_the_types_of_its_first_thousand_results(tmp_path: Path, streams: int | None) -> None:
    """Whatever block, epoch or stream it is in: a fraction later on would make another tensor of the same column."""
    for number in range(2):
        lines = "".join(f'{{"a": {1000 * number + row}}}\n' for row in range(1_000))
        (tmp_path / f"{number}.jsonl").write_text(lines)
    files = bf.from_files(f"{tmp_path}/*.jsonl", n_active_shards=1, streams=streams)

    def rows(late: Any) -> bf.Dataset:
        return files.map(lambda sample: {"a": sample["a"], "b": late if sample["a"] == 1_500 else sample["a"] + 0.5})

    batches = list(rows(7).batch(10))
    assert {batch["b"].dtype for batch in batches} == {torch.float64}
    message = r"map\(<lambda>\) failed at shard 1\.jsonl, line 501: column 'b' is double by the schema but string here"
    with pytest.raises(bf.StageError, match=message):
        list(rows("x"))
    extra = files.map(lambda sample: sample | ({"c": 1} if sample["a"] == 1_500 else {}))
    with pytest.raises(
        bf.StageError, match=r"key 'c' is not in the schema \(a\), .* return it in every sample, None where"
    ):
        list(extra)


def test_types_are_those_of_epoch_0_and_stay_in_the_state() -> None:
    def fraction_in_epoch_0(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        asked.append(int(rng.integers(2**60)))
        return {"x": 1.5 if asked[-1] in asked[:600] else 1}

    def repeated() -> bf.Dataset:
        return bf.from_iterable([{"letter": "a"}] * 600, repeat=True).map(fraction_in_epoch_0, seed=0)

    asked: list[int] = []
    it = repeated().iter()
    assert [next(it)["x"] for _ in range(1000)] == [1.5] * 600 + [1.0] * 400
    assert isinstance(next(repeated().iter(it.state_dict()))["x"], float)
    assert asked.count(asked[0]) == 1, "no first results are wanted where the state has their types"


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"letter": sample["letter"], "draw": int(rng.integers(10**9))}


def test_a_seed_gives_each_row_a_generator_of_its_own(tmp_path: Path) -> None:
    def draws(data: bf.Dataset, seed: int = 3) -> list[int]:
        return [sample["draw"] for sample in data.map(drawn, seed=seed)]

    data = letters("abcdef")
    assert draws(data) == draws(data)
    assert len({*draws(data), *draws(data, seed=4)}) == 12
    epochs = [sample["draw"] for sample in letters("abc", repeat=True).map(drawn, seed=3).take(6)]
    assert len(set(epochs)) == 6
    twice = data.map(drawn, seed=3).map(lambda sample, rng: sample | {"again": int(rng.integers(10**9))}, seed=3)
    assert all(sample["draw"] != sample["again"] for sample in twice)
    assert_exact_resume(lambda: letters("abcdef").map(drawn, seed=3).shuffle(2))


def test_a_generator_depends_on_the_row_and_not_on_the_block() -> None:
    rows = [{"letter": "x"}] * 600
    whole, by_256 = (source(rows).map(drawn, seed=3) for source in (bf.from_sequence, bf.from_iterable))
    assert [sample["draw"] for sample in whole] == [sample["draw"] for sample in by_256]


def test_functions_follow_one_another() -> None:
    data = (
        letters("abcd")
        .map(lambda sample: {"letter": sample["letter"].upper()})
        .filter(lambda sample: sample["letter"] != "B")
    )
    assert spelled(data.flat_map(lambda sample: [sample, sample])) == "AACCDD"
