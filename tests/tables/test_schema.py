from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.plan.errors import DataError
from brimful.tables.schema import MisfitError, conform_rows, infer, misfit

INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()


def kind_of(*values: Any) -> pa.DataType:
    return infer([{"a": value} for value in values], None, "shard x").field("a").type


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None], pa.null()),
        ([None, 1, None], INT),
        ([1, 2.5], FLOAT),
        ([2.5, 1], FLOAT),
        ([True], pa.bool_()),
        (["2020-01-01"], TEXT),
        ([[], [1]], pa.list_(INT)),
        ([[1], [2.5]], pa.list_(FLOAT)),
        ([{"b": 1}, {"c": "x"}], pa.json_()),
        ([[{"b": 1}], [{"b": 2.5, "c": None}], "x", 7, [1, "y"]], pa.json_()),
        ([{"b": b"x"}, {"c": "x"}], pa.struct([("b", pa.binary()), ("c", TEXT)])),
        ([[{"b": 1, "d": (1,)}], [{"b": 2.5}]], pa.list_(pa.struct([("b", FLOAT), ("d", pa.list_(INT))]))),
        ([[[None]], [[]]], pa.list_(pa.list_(INT))),
        ([1, 2**63], pa.uint64()),
        ([[1], None, [], [2**63]], pa.list_(pa.uint64())),
        ([[[2**63]], [[]]], pa.list_(pa.list_(pa.uint64()))),
        ([np.array([1, 2]), np.array([3])], pa.list_(INT)),
    ],
)
def test_a_column_has_the_type_that_holds_all_first_values(values: list[Any], kind: pa.DataType) -> None:
    assert kind_of(*values) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, "x", 2.5], FLOAT),
        (["x", 1], TEXT),
        ([True, 1], pa.bool_()),
        ([[1], 1], pa.list_(INT)),
        ([1, 10**30], INT),
        (["x", b"x"], TEXT),
        ([["x"], [b"x"], 1], pa.list_(TEXT)),
        ([datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3), 1], pa.date32()),
        ([1, "x", 2**63], pa.uint64()),
        ([1, "x", 2**63, -1], INT),
        ([[1], "x", [2**63]], pa.list_(pa.uint64())),
        (["\ud800", 1], INT),
        ([{"b": b"x"}, {"b": "x"}, {"c": 1}], pa.struct([("b", pa.binary()), ("c", INT)])),
    ],
)
def test_a_value_that_goes_with_none_before_it_does_not_count(values: list[Any], kind: pa.DataType) -> None:
    assert kind_of(*values) == kind


def test_a_schema_has_all_keys_of_the_first_rows_or_the_columns_asked_for() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "x", "a": None}]
    assert infer(rows, None, "shard x") == pa.schema([("a", INT), ("b", TEXT)])
    assert infer(rows, ("b",), "shard x") == pa.schema([("b", TEXT)])
    assert infer([], ("b",), "no shard") == pa.schema([("b", pa.null())])


def test_a_column_that_never_occurs_is_refused() -> None:
    message = (
        r"^there is no column 'c' in the first 2 rows \(shard x; keys: a, b\); correct columns=, or say its type in"
    )
    with pytest.raises(DataError, match=message):
        infer([{"a": 1}, {"b": 2}], ("a", "c"), "shard x")


SCHEMA = pa.schema(
    [
        ("a", INT),
        ("f", pa.float32()),
        ("t", pa.list_(pa.int32())),
        ("s", pa.struct([("b", INT), ("l", pa.list_(TEXT))])),
    ]
)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"a": None, "f": 1, "t": [], "s": None},
        {"a": 1, "f": 0.1, "t": [1, None], "s": {"b": 1, "l": ["x"]}},
        {"t": np.array([1, 2], dtype=np.int64), "s": {}},
    ],
)
def test_a_row_fits_its_schema(row: dict[str, Any]) -> None:
    assert misfit(row, SCHEMA) is None
    assert conform_rows([row], SCHEMA).schema == SCHEMA


REMEDY = "; say its type in schema=, or leave the column out with columns="


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "x"}, "column 'a' is int64 by the schema but string here" + REMEDY),
        ({"a": 1.0}, "column 'a' is int64 by the schema but double here" + REMEDY),
        (
            {"a": 2**64},
            "column 'a' is int64 by the schema but an integer here (18,446,744,073,709,551,616 is beyond 64 bits); "
            "say its type in schema= ('a': 'json'), or leave the column out with columns=",
        ),
        (
            {"a": 2**63},
            "column 'a' is int64 by the schema but an integer here (9,223,372,036,854,775,808 is beyond int64); "
            "say its type in schema= ('a': 'uint64', or 'json' if others are negative), or leave the column out with columns=",
        ),
        (
            {"a": {"b": b""}},
            "column 'a' is int64 by the schema but an object here (JSON has no equal for a bytes at b)" + REMEDY,
        ),
        (
            {"t": [1, {"b": None}]},
            "column 't' is list<item: int32> by the schema but an object here; say its type in schema= ('t': 'json'), or "
            "leave the column out with columns=",
        ),
        (
            {"t": [1, "x"]},
            "column 't' is list<item: int32> by the schema but list that no column can hold here (its values are of several "
            "kinds); say its type in schema= ('t': 'json'), or leave the column out with columns=",
        ),
        ({"t": [1, 2.5]}, "column 't' is list<item: int32> by the schema but list<item: double> here" + REMEDY),
        (
            {"t": [2**40]},
            "column 't' is list<item: int32> by the schema but list<item: int64> here; say its type in schema= "
            "('t': pa.list_(pa.int64())), or leave the column out with columns=",
        ),
        (
            {"t": [2**63, -1]},
            "column 't' is list<item: int32> by the schema but list that no column can hold here (no type of 64 bits has all "
            "its integers); say its type in schema= ('t': 'json'), or leave the column out with columns=",
        ),
        ({"t": 1}, "column 't' is list<item: int32> by the schema but int64 here" + REMEDY),
        (
            {"s": {"b": 1.5}},
            "column 's' is struct<b: int64, l: list<item: string>> by the schema but struct<b: double> here" + REMEDY,
        ),
        (
            {"s": {"c": 1}},
            "key 'c' of column 's' is not in the schema (struct<b: int64, l: list<item: string>>); "
            "name it in schema=, or leave the column out with columns=",
        ),
        (
            {"": 1},
            "key '' is not in the schema (a, f, t, s), which the first 1,000 rows decide where none is given; "
            "name it in schema=, or leave the column out with columns=",
        ),
        (
            {"z": 1},
            "key 'z' is not in the schema (a, f, t, s), which the first 1,000 rows decide where none is given; "
            "name it in schema=, or leave the column out with columns=",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_told_why(row: dict[str, Any], message: str) -> None:
    with pytest.raises(MisfitError) as error:
        conform_rows([{"a": 1}, {}, row, {"a": "y"}], SCHEMA)
    assert error.value.row() == 2
    assert error.value.told() == message
    assert str(misfit(row, SCHEMA)) == str(error.value)


def test_other_keys_are_left_out_where_columns_are_named() -> None:
    assert misfit({"z": 1, "a": 1}, SCHEMA, "drop") is None
    assert conform_rows([{"z": 1, "a": 1}], SCHEMA, extra="drop").schema == SCHEMA


def test_rows_without_any_column_are_rows_too() -> None:
    assert conform_rows([{}, {}], pa.schema([])).num_rows == 2


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, decimal.Decimal("1.75")),
        (1, 1.5),
        (1, True),
        (datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 17, 30)),
        (datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
        (datetime.timedelta(1), 5),
        (datetime.datetime(2020, 1, 1), 5),
        (np.float32(1), 1e300),
        (np.zeros(2, np.float32), np.array([1e300])),
        (np.zeros((2, 2), np.float32), np.full((2, 2), 1e300)),
        (np.zeros(2, np.float32), np.array([2**24 + 1])),
        (np.array([1]), np.array([True])),
        (np.array([1]), np.array([1.5])),
        (np.zeros((1, 1), np.int8), np.full((1, 1), 300)),
        ({"a": b""}, {"a": 1.5}),
        ({"a": b""}, {"a": b"", "b": 2}),
        (["a"], [1]),
    ],
    ids=str,
)
def test_a_value_that_a_type_would_change_is_an_error_with_its_place(first: Any, later: Any) -> None:
    """Arrow cuts some of them in silence, whether they come in a block with others or alone."""
    for place in (1_000, 1_100):
        rows = [{"x": later if number == place else first} for number in range(1_200)]
        for data in (bf.from_iterable(rows), bf.from_iterable(rows).map(dict)):
            with pytest.raises(bf.StageError, match=rf"row {place:,}: (column 'x'|key 'b' of column 'x')"):
                list(data)


@pytest.mark.parametrize(
    "odd",
    [
        [np.array([1]), [1]],
        np.array([object()]),
        torch.ones(1, requires_grad=True),
        torch.ones(1, dtype=torch.bfloat16),
    ],
    ids=["ragged", "objects", "grad", "bfloat16"],
)
def test_what_no_column_can_hold_is_an_error_with_its_place_and_may_be_skipped(odd: Any) -> None:
    rows = list(range(40))

    def made(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": odd if sample["x"] == 30 else np.array([1.5])}

    data = bf.from_sequence([{"x": row} for row in rows])
    with pytest.raises(bf.StageError, match=r"^map\(made\) failed at sequence, row 30: column 'x' "):
        list(data.map(made))
    with data.map(made, on_error="skip").iter() as it:
        assert len(list(it)) == 39
        assert it.stats.skipped == 1


def test_numbers_and_tensors_without_a_dimension_make_one_column() -> None:
    rows = [{"x": 1}, {"x": torch.tensor(2)}, {"x": np.int64(3)}]
    assert [sample["x"] for sample in bf.from_iterable(rows)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"b", "a"], pa.binary()),
        ([0.5, True], FLOAT),
        ([[0.5], [np.True_]], pa.list_(FLOAT)),
        ([[[b"b"]], [["a"]]], pa.list_(pa.list_(pa.binary()))),
        ([{"p": 0.5}, {"p": True}], pa.struct([("p", FLOAT)])),
    ],
)
def test_a_value_that_does_not_fit_alone_does_not_fit_beside_others(values: list[Any], kind: pa.DataType) -> None:
    schema = pa.schema([("a", kind)])
    for order in (values, values[::-1]):
        rows = [{"a": value} for value in order]
        with pytest.raises(MisfitError) as error:
            conform_rows(rows, schema)
        assert order[error.value.row()] is values[1]
        assert [misfit(row, schema) is not None for row in rows] == [value is values[1] for value in order]
