from __future__ import annotations

import datetime
import decimal
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.tables.checksums import MOST, RowChecksums, checksums, difference, in_state
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import with_column

small = st.integers(0, 3)
parts = st.fixed_dictionaries({"x": st.none() | small, "y": st.none() | st.text("ab", max_size=2)})
rows_of_all = st.fixed_dictionaries(
    {
        "tokens": st.lists(small, max_size=3),
        "text": st.none() | st.text("xyé", max_size=2),
        "bytes": st.none() | st.binary(max_size=2),
        "id": st.none() | small,
        "flag": st.none() | st.booleans(),
        "part": st.none() | st.sampled_from([0.0, 0.5, float("nan")]),
        "nested": st.lists(st.none() | st.lists(st.text("x", max_size=1), max_size=2), max_size=2),
        "maybe": st.none() | st.lists(st.none() | small, max_size=2),
        "three": st.none() | st.lists(st.none() | small, min_size=3, max_size=3),
        "struct": st.none() | parts,
        "turns": st.none() | st.lists(st.none() | parts, max_size=2),
        "map": st.none()
        | st.dictionaries(st.text("ab", min_size=1, max_size=1), st.none() | small).map(lambda m: [*m.items()]),
        "time": st.none() | st.just(datetime.datetime(2026, 1, 1)),
        "price": st.none() | st.sampled_from([decimal.Decimal("1.50"), decimal.Decimal("2.25")]),
        "kind": st.none() | st.sampled_from(["a", "b"]),
        "none": st.none(),
    }
)
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])
KIND = pa.schema(
    [
        ("tokens", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("part", pa.float32()),
        ("nested", pa.list_(pa.list_(pa.string()))),
        ("maybe", pa.list_(pa.int64())),
        ("three", pa.list_(pa.int8(), 3)),
        ("struct", STRUCT),
        ("turns", pa.list_(STRUCT)),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("time", pa.timestamp("us")),
        ("price", pa.decimal128(5, 2)),
        ("kind", pa.string()),
        ("none", pa.int64()),
    ]
)
WIDE = {
    "tokens": pa.large_list(pa.int32()),
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
    "nested": pa.large_list(pa.large_list(pa.large_string())),
    "maybe": pa.large_list(pa.int64()),
}


def block(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, KIND)


def otherwise(rows: pa.RecordBatch, wide: bool) -> pa.RecordBatch:
    """The same rows, as Arrow may keep them too: without the columns that are null, in dictionaries, with wide offsets."""
    for name, column in zip(rows.schema.names, rows.columns):
        if column.null_count == len(column):
            rows = rows.drop_columns(name)
        elif name in ("kind", "id"):
            rows = with_column(rows, name, column.dictionary_encode())
        elif wide and name in WIDE:
            rows = with_column(rows, name, column.cast(WIDE[name]))
        elif name == "text":
            rows = with_column(rows, name, column.cast(pa.string_view()))
    return rows


@given(
    st.lists(rows_of_all, max_size=6),
    st.lists(rows_of_all, max_size=2),
    st.lists(st.integers(0, 6), max_size=4),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_checksums_are_of_the_rows_however_they_are_cut_and_kept(
    rows: list[dict[str, Any]], around: list[dict[str, Any]], cuts: list[int], wide: list[bool]
) -> None:
    alone = checksums(block(rows))
    within = block([*around, *rows, *around]).slice(len(around), len(rows))
    assert checksums(within) == alone
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    apart = RowChecksums()
    for (first, last), own in zip(pairwise(edges), wide):
        apart.add(otherwise(within.slice(first, last - first), own))
    assert apart.by_column() == alone


@given(st.lists(rows_of_all, max_size=3), st.lists(rows_of_all, max_size=3))
def test_columns_that_differ_have_other_checksums_and_no_others(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    held = [{name: [row[name] for row in rows] for name in KIND.names} for rows in (one, other)]
    shown = [
        {name: repr(values) for name, values in columns.items() if any(value is not None for value in values)}
        for columns in held
    ]
    found = [checksums(block(rows)) for rows in (one, other)]
    if len(one) == len(other):
        for name in KIND.names:
            assert (found[0].get(name) == found[1].get(name)) == (shown[0].get(name) == shown[1].get(name)), name
    else:
        assert found[0] != found[1]


BASE = {"tokens": [1, 2, 3], "text": "abc", "id": 5, "flag": True, "nested": [["x"]], "maybe": [1, None]}


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": [1, 2]},
        {"tokens": [1, 2, 7]},
        {"text": "abd"},
        {"text": None},
        {"id": 6},
        {"id": None},
        {"flag": False},
        {"nested": []},
        {"nested": [["y"]]},
        {"nested": [[], ["x"]]},
        {"maybe": None},
        {"maybe": [None, 1]},
    ],
    ids=json.dumps,
)
def test_a_change_of_one_value_of_the_same_size_is_seen_in_its_column(changed: dict[str, Any]) -> None:
    one, other = (checksums(block([BASE, row, BASE])) for row in (BASE, BASE | changed))
    assert [name for name in one if one[name] != other[name]] == [*changed]


def test_the_order_and_the_number_of_rows_count() -> None:
    one, two = BASE, BASE | {"tokens": [4]}
    found = [checksums(block(rows)) for rows in ([one, two], [two, one], [one], [])]
    empty = [checksums(pa.RecordBatch.from_pydict({"none": pa.nulls(count)})) for count in range(3)]
    assert len({repr(each) for each in [*found, *empty]}) == 6  # no row has no value either


def test_what_lies_under_a_null_and_where_a_row_came_from_do_not_count() -> None:
    values = pa.array([1, 2, 3, 4], pa.int32())
    valid = pa.py_buffer(b"\x05")  # of three rows the second is null
    offsets = [pa.array(ends, pa.int32()).buffers()[1] for ends in ([0, 2, 3, 4], [0, 2, 2, 3])]
    lists = [
        pa.Array.from_buffers(pa.list_(pa.int32()), 3, [valid, offsets[0]], children=[values]),
        pa.Array.from_buffers(
            pa.list_(pa.int32()), 3, [valid, offsets[1]], children=[values.take(pa.array([0, 1, 3]))]
        ),
    ]
    texts = [
        pa.Array.from_buffers(pa.string(), 3, [valid, offsets[0], pa.py_buffer(b"abcd")]),
        pa.Array.from_buffers(pa.string(), 3, [valid, offsets[1], pa.py_buffer(b"abd")]),
    ]
    numbers = [
        pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([7, middle, 9]))]) for middle in (0, 8)
    ]
    one, other = (
        pa.RecordBatch.from_arrays([lists[n], texts[n], numbers[n]], ["lists", "texts", "numbers"]) for n in range(2)
    )
    assert one.equals(other)
    assert checksums(one) == checksums(other) == checksums(with_column(one, ORIGIN, origins("shard c", np.arange(3))))


def test_zeros_of_another_type_are_other_values() -> None:
    kinds = (pa.int64(), pa.float64(), pa.timestamp("us"), pa.int32())
    assert len({checksums(pa.RecordBatch.from_arrays([pa.array([0], kind)], ["x"]))["x"] for kind in kinds}) == 4


def test_a_state_keeps_few_numbers_and_a_difference_names_the_columns() -> None:
    rows = {f"column {number:02d}": [number] for number in range(2 * MOST + 1)}
    ours = checksums(pa.RecordBatch.from_pydict(rows))
    saved = in_state(checksums(pa.RecordBatch.from_pydict(rows | {"column 09": [1]})))
    assert len(saved) == MOST
    assert difference(ours, in_state(ours)) == ""
    assert difference(ours, saved).startswith("column 'column 01' or 'column 09' had the crc32 ")
    few = {"a": 1, "b": 2}
    assert difference(few, [1, 3]) == "column 'b' had the crc32 00000003 then, and has 00000002 now"
    assert difference(few, [1]) == "1 columns had values then, and 2 have some now (a, b)"
