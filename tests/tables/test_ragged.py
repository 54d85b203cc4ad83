from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan.errors import DataError
from brimful.tables.blocks import concat
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import (
    EMPTY,
    Ragged,
    array_of,
    attention_mask,
    gaps,
    gather,
    is_ragged,
    list_array,
    null_in,
    numpy_of,
    pad,
    ragged,
    surround,
    token_counts,
    with_column,
)

rows_of_ints = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)
kinds = st.sampled_from([pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint8()), pa.list_(pa.float32())])


def block(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def rows(column: Ragged) -> list[list[Any]]:
    return [column.values[start:end].tolist() for start, end in zip(column.offsets, column.offsets[1:])]


@st.composite
def sliced(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[list[int]]]:
    """A block that is a slice of a larger one, and what it holds."""
    kind = draw(kinds)
    values = [[abs(value) for value in row] for row in draw(rows_of_ints)]
    first = draw(st.integers(0, len(values)))
    last = draw(st.integers(first, len(values)))
    return block(a=pa.array(values, kind)).slice(first, last - first), values[first:last]


@given(sliced())
def test_a_list_column_is_seen_without_a_copy(drawn: tuple[pa.RecordBatch, list[list[int]]]) -> None:
    made, values = drawn
    column = ragged(made, "a")
    assert rows(column) == values
    assert column.lengths.tolist() == token_counts(made, ["a"], required=True).tolist() == [len(row) for row in values]
    assert column.lengths.dtype == np.int64
    starts, counts = column.spans(np.arange(len(values)))
    assert rows(gather(column.values, starts, counts)) == values
    if len(column.values):
        memory = np.frombuffer(made.column("a").values.buffers()[1], dtype=np.uint8)
        assert np.shares_memory(column.values, memory)


def test_columns_of_fixed_size_of_booleans_and_of_empty_lists_are_ragged_too() -> None:
    fixed = block(a=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2))).slice(1)
    assert rows(ragged(fixed, "a")) == [[3, 4], [5, 6]]
    assert rows(ragged(block(a=[[True], [False, True]]), "a")) == [[True], [False, True]]
    empty = ragged(block(a=[[], []]), "a")
    assert (rows(empty), empty.values.dtype) == ([[], []], np.dtype("int64"))
    for kind, expected in (
        (pa.list_(pa.string()), False),
        (pa.int64(), False),
        (pa.list_(pa.list_(pa.int64())), False),
        (pa.list_(pa.null()), True),
    ):
        assert is_ragged(kind) is expected


def test_what_is_no_list_of_numbers_is_an_error_with_its_place() -> None:
    made = block(
        text=["x", "y"],
        none=pa.array([[1], None], pa.list_(pa.int64())),
        inner=[[1], [2, None]],
        **{ORIGIN: origins("shard a.jsonl", np.array([7, 9]))},
    )
    for column, message in (
        ("text", "column 'text' must be a list of numbers (got string; shard a.jsonl, line 7)"),
        ("none", "column 'none' is null or missing (shard a.jsonl, line 9); filter it out or fill it"),
        ("inner", "column 'inner' has a null inside a list (near shard a.jsonl, line 7); filter it out or fill it"),
        ("other", "there is no column 'other' (columns: text, none, inner; shard a.jsonl, line 7)"),
    ):
        with pytest.raises(DataError) as error:
            ragged(made, column)
        assert str(error.value) == message
    assert rows(ragged(made.slice(0, 1), "inner")) == [[1]]  # the null is another block's


def test_lengths_of_several_columns_stand_side_by_side() -> None:
    made = block(a=[[1, 2], [3]], b=[[1], []])
    assert token_counts(made, ("a", "b"), required=True).tolist() == [[2, 1], [1, 0]]
    assert token_counts(made, ("a",), required=True).tolist() == [2, 1]
    assert token_counts(made, ("c",), required=False).tolist() == [0, 0]
    with pytest.raises(
        DataError, match=r"^there is no column 'c' \(columns: a, b; row 0 of a block of 2 rows\); a size is "
    ):
        token_counts(made, ("c",), required=True)


@given(sliced(), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_surround_puts_a_value_before_and_after_each_row(
    drawn: tuple[pa.RecordBatch, list[list[int]]], before: int | None, after: int | None
) -> None:
    made, values = drawn
    column = ragged(made, "a")
    expected = [[*([before] * (before is not None)), *row, *([after] * (after is not None))] for row in values]
    assert rows(surround(column, before, after)) == expected
    assert surround(column, before, after).values.dtype == column.values.dtype


@given(sliced(), st.integers(0, 3), st.booleans(), st.sampled_from([np.int64, np.float32]))
def test_pad_makes_one_width_and_a_mask_says_what_is_there(
    drawn: tuple[pa.RecordBatch, list[list[int]]], extra: int, left: bool, dtype: Any
) -> None:
    made, values = drawn
    column = ragged(made, "a")
    width = max(map(len, values), default=0) + extra
    starts, counts = column.spans(np.arange(len(values)))
    padded = pad(column.values, starts, counts, width, -7, dtype, left)
    mask = attention_mask(gaps(counts, width, left), width)
    short = [[-7] * (width - len(row)) for row in values]
    assert padded.tolist() == [fill + row if left else row + fill for fill, row in zip(short, values)]
    assert (padded.shape, padded.dtype) == ((len(values), width), np.dtype(dtype))
    assert (mask == 1).tolist() == (padded != -7).tolist()
    assert (mask.shape, mask.dtype) == (padded.shape, np.dtype("int64"))


@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=5))
def test_a_list_column_is_made_of_flat_values_offsets_and_nulls(values: list[list[int] | None]) -> None:
    flat = np.array([value for row in values for value in row or ()], dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum([len(row or ()) for row in values]))).astype(np.int64)
    made = list_array(flat, offsets, np.array([row is None for row in values], dtype=bool))
    assert made.to_pylist() == values
    assert made.type == pa.list_(pa.int32())
    made.validate(full=True)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int64", "uint8", "uint64", "float16", "float32", "float64", "bool"]
)
def test_numbers_go_to_arrow_and_back(dtype: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(dtype)
    assert numpy_of(array_of(values)).tolist() == values.tolist()
    assert numpy_of(array_of(values)[2:4]).tolist() == values[2:4].tolist()
    assert numpy_of(array_of(values[::2])).tolist() == values[::2].tolist()
    assert numpy_of(array_of(values[:0])).dtype == dtype


@pytest.mark.parametrize(
    "values", [np.array([1, 2], ">i4"), np.arange(6).reshape(2, 3)], ids=["byte order", "two dimensions"]
)
def test_numbers_that_arrow_would_read_otherwise_are_left_to_it_to_refuse(values: Any) -> None:
    with pytest.raises(pa.ArrowException):
        array_of(values)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 70])
@pytest.mark.parametrize("first", [0, 1, 8, 11])
def test_truth_values_go_to_arrow_and_back_by_bits_also_of_slices(count: int, first: int) -> None:
    values = np.random.default_rng(count).random(first + count) < 0.5
    array = array_of(values)
    assert array.equals(pa.array(values.tolist(), pa.bool_()))
    back = numpy_of(array[first:])
    assert back.dtype == np.bool_
    assert back.tolist() == values[first:].tolist()
    assert array_of(values[::-2]).to_pylist() == values[::-2].tolist()


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=40), st.integers(0, 12), st.integers(0, 12))
def test_which_values_are_null_is_known_of_slices_too(values: list[int | None], first: int, last: int) -> None:
    last = max(first, len(values) - last)
    texts = [None if value is None else str(value) for value in values]
    for array in (pa.array(values, pa.int8()), pa.array(texts, pa.string())):
        found = null_in(array[first:last])
        assert found.tolist() == [value is None for value in values[first:last]]
        assert found.dtype == np.bool_


# -- blocks ------------------------------------------------------------------------------------------------------------------

cells = {
    "a": st.none() | st.integers(0, 9),
    "b": st.none() | st.integers(0, 9) | st.sampled_from([0.5, 1.5]),
    "c": st.none() | st.text("xy", max_size=2),
    "d": st.none() | st.lists(st.integers(0, 9), max_size=2) | st.lists(st.just(0.5), max_size=2),
    "e": st.none() | st.fixed_dictionaries({}, optional={"p": st.integers(0, 9), "q": st.just("x")}),
}
tables = st.lists(
    st.lists(st.fixed_dictionaries({}, optional=cells), max_size=3), max_size=4
)  # fmt: skip


@given(tables)
def test_blocks_are_joined_by_the_names_of_their_columns(pieces: list[list[dict[str, Any]]]) -> None:
    blocks = []
    for piece in pieces:
        names = list(dict.fromkeys(name for row in piece for name in row))
        blocks.append(
            pa.record_batch({name: [row.get(name) for row in piece] for name in names} | {"id": [0] * len(piece)})
        )
    joined = concat(blocks)
    expected = [row for piece in pieces for row in piece]
    assert joined.num_rows == len(expected)
    for made, row in zip(joined.to_pylist(), expected):
        assert {name: value for name, value in made.items() if value is not None and name not in ("id", "e")} == {
            name: value for name, value in row.items() if value is not None and name != "e"
        }
        assert {k: v for k, v in (made.get("e") or {}).items() if v is not None} == (row.get("e") or {})


def test_blocks_without_rows_do_not_count_and_none_is_empty() -> None:
    one = block(a=[1])
    assert concat([block(a=["x"]).slice(1), one, EMPTY]) is one
    assert concat([]).num_rows == 0


def test_columns_that_change_their_type_are_an_error_with_the_place() -> None:
    changed = block(a=["x"], **{ORIGIN: origins("shard b.jsonl", np.array([3]))})
    with pytest.raises(DataError) as error:
        concat([block(a=[1]), changed])
    message = str(error.value)
    assert message.startswith("a column changes its type: ")
    assert "int64" in message
    assert "string" in message
    assert message.endswith("(shard b.jsonl, line 3)")


def test_a_column_is_added_or_takes_the_place_of_another() -> None:
    made = with_column(block(a=[1, 2], b=[3, 4]), "a", pa.array(["x", "y"]))
    assert made.schema.names == ["a", "b"]
    assert with_column(made, "c", pa.array([5, 6])).to_pylist()[1] == {"a": "y", "b": 4, "c": 6}
