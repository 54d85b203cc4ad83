from __future__ import annotations

from collections import UserList
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.testing import assert_exact_resume


class MapStyle(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A data set of torch: numbered samples, and no slices."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> dict[str, int]:
        return {"a": [5, 6, 7][number]}


TABLE = pa.table({"a": pa.chunked_array([[5], [6, 7]])})


@pytest.mark.parametrize(
    "sequence",
    [
        [{"a": 5}, {"a": 6}, {"a": 7}],
        ({"a": 5}, {"a": 6}, {"a": 7}),
        UserList([{"a": 5}, {"a": 6}, {"a": 7}]),
        TABLE,
        TABLE.combine_chunks().to_batches()[0],
        MapStyle(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_of_any_sequence(sequence: Any) -> None:
    dataset = bf.from_sequence(sequence)
    assert list(dataset) == [{"a": 5}, {"a": 6}, {"a": 7}]
    assert (len(dataset), dataset.kind) == (3, "indexed")


def test_strings_are_texts_and_rows_may_lack_keys_or_have_none() -> None:
    assert list(bf.from_sequence(["x", {"id": 1}])) == [{"text": "x", "id": None}, {"text": None, "id": 1}]
    assert list(bf.from_sequence([{}, {}])) == [{}, {}]
    assert list(bf.from_sequence([{"__key__": "a", "__x": 1}])) == [{"__key__": "a", "__x": 1}]


def test_values_keep_their_types() -> None:
    rows = [
        {
            "i": np.int16(1),
            "t": np.array([1, 2], dtype=np.int32),
            "m": np.ones((1, 2)),
            "s": "é",
            "y": b"\x00",
            "b": True,
        },
        {"i": None, "t": None, "m": None, "s": None, "y": None, "b": None},
        {"i": 2, "t": torch.tensor([3], dtype=torch.int32), "m": np.ones((2, 1)), "s": "", "y": b"", "b": False},
    ]
    one, none, two = bf.from_sequence(rows).map(lambda sample: sample)
    assert [one["t"].dtype, two["t"].dtype] == ["int32", "int32"]
    assert [one["t"].tolist(), two["t"].tolist()] == [[1, 2], [3]]
    assert [one["m"].tolist(), two["m"].tolist()] == [[[1.0, 1.0]], [[1.0], [1.0]]]
    assert {name: one[name] for name in "isyb"} == {"i": 1, "s": "é", "y": b"\x00", "b": True}
    assert set(none.values()) == {None}


@pytest.mark.parametrize("sequence", ["text", b"bytes", iter([1]), 5], ids=lambda one: type(one).__name__)
def test_what_is_no_sequence_of_samples_is_refused(sequence: Any) -> None:
    name = type(sequence).__name__
    with pytest.raises(
        TypeError,
        match=rf"^from_sequence needs a sequence of samples, such as a list of dicts \(got {name}\). Use from_iterable",
    ):
        bf.from_sequence(sequence)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            7,
            "from_sequence failed at row 4,097: TypeError: a sample must be a dict, a string or a list of token ids (got int)",
        ),
        ({1: 2}, "from_sequence failed in rows 4,096 to 4,098: the keys of a sample must be strings (got 1)"),
        (
            {"a": "x"},
            "from_sequence failed in rows 4,096 to 4,098: the values of column 'a' have no common type: Could not convert 'x'",
        ),
        (
            {"a": "\ud800"},
            "from_sequence failed at row 4,097: column 'a' has text with half a surrogate pair, which no column but one of type "
            "'json' can hold: it was cut within a character",
        ),
        (
            {"a": 1 << 70},
            "from_sequence failed at row 4,097: column 'a' has an integer, which no column but one of type 'json' can hold: "
            "1,180,591,620,717,411,303,424 is beyond 64 bits",
        ),
        (
            {"a": 1j},
            "from_sequence failed at row 4,097: column 'a' has a value of type complex, which no column can hold: give text, ",
        ),
        (
            {"a": torch.zeros(2, dtype=torch.bfloat16)},
            "from_sequence failed at row 4,097: column 'a' has a tensor of bfloat16, which no column can hold: columns have "
            "no such type: return tensor.float()",
        ),
        (
            {"a": {"x", "y"}},
            "from_sequence failed at row 4,097: column 'a' has a set, which no column can hold: a set has no order, and each "
            "process would give it another: give sorted(value)",
        ),
        (
            {"a": [frozenset("xy")]},
            "from_sequence failed at row 4,097: column 'a' has an object, which no column can hold: JSON has no equal for a "
            "frozenset at [0]",
        ),
        (
            {"a": {"b": {"x", "y"}}},
            "from_sequence failed at row 4,097: column 'a' has an object, which no column can hold: JSON has no equal for a "
            "set at b",
        ),
    ],
)
def test_a_row_that_is_no_sample_is_an_error_with_its_number(row: Any, message: str) -> None:
    with pytest.raises(bf.StageError) as error:
        list(bf.from_sequence([*[{"a": 1}] * 4_097, row, {"a": 2}]))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Path("x"), "column 'a' has a value of type PosixPath, which no column can hold: give text, "),
        ({"x", "y"}, "column 'a' has a set, which no column can hold: a set has no order"),
        ([{"x", "y"}], "column 'a' has an object, which no column can hold: JSON has no equal for a set at [0]"),
        (
            [{"b": {"x", "y"}}],
            "column 'a' has an object, which no column can hold: JSON has no equal for a set at [0].b",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["map", "from_iterable", "from_dataset"])
def test_a_value_that_no_column_holds_is_refused_with_what_helps(kind: str, value: Any, message: str) -> None:
    made: dict[str, Callable[[], bf.Dataset]] = {
        "map": lambda: bf.from_sequence([{"n": 1}]).map(lambda _: {"a": value}),
        "from_iterable": lambda: bf.from_iterable([{"a": value}]),
        "from_dataset": lambda: bf.from_dataset([{"a": value}]),
    }
    with pytest.raises(bf.StageError) as error:
        list(made[kind]())
    assert message in str(error.value)


@pytest.mark.parametrize(("before", "value"), [([1], {1, 2}), ([[1]], [{1, 2}]), ([[[1]]], [[{1, 2}]])])
def test_a_set_is_refused_where_lists_came_before_it(before: Any, value: Any) -> None:
    rows = bf.from_sequence([{"n": number} for number in range(50)])
    with pytest.raises(bf.StageError, match=r"a set has no order|JSON has no equal for a set"):
        list(rows.map(lambda row: {"a": before if row["n"] < 40 else value}))


def test_a_column_that_changes_its_type_late_is_an_error_with_its_place() -> None:
    with pytest.raises(bf.DataError, match=r"^a column changes its type: .*int64.*string.* \(sequence, row 8,192\)$"):
        list(bf.from_sequence([*[{"a": 1}] * 8_192, {"a": "x"}]))


@pytest.mark.parametrize("empty", [[], pa.table({}), pa.table({"input_ids": pa.array([], pa.list_(pa.int64()))})])
def test_nothing_gives_nothing(empty: Any) -> None:
    dataset = bf.from_sequence(empty)
    assert (list(dataset), len(dataset)) == ([], 0)
    assert list(dataset.batch_by_tokens(10)) == []
    with pytest.raises(bf.DataError, match="there is no sample to repeat"):
        list(bf.from_sequence(empty, repeat=True).batch(2))


def test_the_whole_is_shuffled_another_way_each_epoch_and_seed() -> None:
    rows = [{"n": number} for number in range(100)]

    def epochs(seed: int) -> list[list[int]]:
        drawn = [sample["n"] for sample in islice(bf.from_sequence(rows, shuffle=True, repeat=True, seed=seed), 200)]
        return [drawn[:100], drawn[100:]]

    orders = [*epochs(42), *epochs(1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert epochs(42) == orders[:2]


def test_resume_is_exact_at_every_sample() -> None:
    for shuffle in (False, True):
        assert_exact_resume(lambda: bf.from_sequence(["a", "b", "c", "d", "e"], shuffle=shuffle))  # noqa: B023


def test_another_sequence_is_refused() -> None:
    it = bf.from_sequence([{"a": 1}, {"a": 2}]).iter()
    next(it)
    with pytest.raises(bf.StateError, match=r"from_sequence\.[\w.]+ was .* when it was saved and is .* here"):
        bf.from_sequence([{"a": 1}, {"a": 3}]).iter(it.state_dict())


def test_an_error_far_down_names_the_row_of_the_sequence() -> None:
    rows = [{"text": "x"}] * 5 + [{"text": None}]
    with pytest.raises(
        bf.DataError,
        match=r"^tokenize: column 'text' is null or missing \(sequence, row 5\); filter it out or fill it$",
    ):
        list(bf.from_sequence(rows).shuffle(3).tokenize(lambda texts: [[1] for _ in texts]))
