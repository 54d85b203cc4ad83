"""What fits a schema, and the words where it does not: one table for all that holds blocks or rows against one."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources.iterable import numbered
from brimful.tables.blocks import concat, samples
from brimful.tables.combine import conformed
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import with_column
from brimful.tables.schema import MisfitError, conform, type_name
from tests.shards import write_table
from tests.store.stores import store_of

Way = Callable[[Path, pa.RecordBatch, pa.RecordBatch], list[dict[str, Any]]]
"""The rows of a block that follows one of other columns."""

FIRST: Final = 1_024


def block_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def plain(rows: Any) -> list[dict[str, Any]]:
    return [{name: getattr(value, "tolist", lambda: value)() for name, value in row.items()} for row in rows]  # noqa: B023


def many(block: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    return block.take(pa.array([0] * rows))


def joined(_: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    block = with_column(later, ORIGIN, origins("shard a", np.arange(len(later)) + 1))
    return samples(conformed(block, first.schema, "interleave_datasets", 1))


def map_blocks(_: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    def made(block: pa.RecordBatch) -> pa.RecordBatch:
        return later if block.column("n")[0].as_py() == 32 else many(first, block.num_rows)

    return list(bf.from_sequence([{"n": number} for number in range(64)]).map_blocks(made))[32:]


def tables(_: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets")

    def made(table: pa.Table) -> pa.Table:
        return pa.Table.from_batches([later if table["n"][0].as_py() == FIRST else many(first, len(table))])

    rows = datasets.Dataset.from_dict({"n": range(FIRST + 1)}).to_iterable_dataset().with_format("arrow")
    return list(bf.from_iterable(rows.map(made, batched=True, batch_size=256, remove_columns=["n"])))[FIRST:]


def store(folder: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    store_of(folder / "store", (first, later), batch_bytes=1)
    return list(bf.from_store(folder / "store"))[len(first) :]


def arrow(folder: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    url = write_table(folder / "a.arrow", pa.Table.from_batches([later]))
    return list(bf.from_files(url, schema=first.schema))


def rows(_: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    return samples(numbered(samples(later), "from_iterable", FIRST, first.schema))


def files(folder: Path, first: pa.RecordBatch, later: pa.RecordBatch) -> list[dict[str, Any]]:
    (folder / "a.rows").touch()
    return list(bf.from_files(folder / "a.rows", format=lambda _: later.to_pylist(), schema=first.schema))


WAYS: Final[dict[str, tuple[Way, str, str]]] = {
    "joined": (
        joined,
        "interleave_datasets: column 'x' is {found} in data set 1 and {wanted} with the others, which has no such value: "
        "{why} (shard a, line {line}); convert it (map), or rename or drop it in one of them",
        "there is a column 'z' (shard a, line 1), and no data set had one in epoch 0, where this one had no row; "
        "begin it with a row, or drop the column",
    ),
    "map_blocks": (
        map_blocks,
        "map_blocks(made) failed in the block from sequence, row 32 on: column 'x' is {wanted} in its first rows but {found} "
        "here; return one type always",
        "map_blocks(made) failed in the block from sequence, row 32 on: it returned a column 'z' that its first rows "
        "have not; return it always",
    ),
    "tables": (
        tables,
        "from_iterable failed at row {count}: column 'x' is {wanted} by the schema but {found} here ({why}); the first 1,000 "
        "rows decide it: cast the data set to one set of features",
        "from_iterable failed at row 1,024: column 'z' is not in the schema (x); the first 1,000 rows decide it: cast the data "
        "set to one set of features",
    ),
    "store": (
        store,
        "column 'x' is {wanted} in the rows before and {found} here, which cannot be cast to it: {why} (given, row {row}); "
        "cast it to one type before it is stored",
        "column 'z' is new (given, row 0): the rows before have x; give all rows the same columns",
    ),
    "arrow": (
        arrow,
        "shard a.arrow, row {line}: column 'x' is {wanted} by the schema but {found} here{why}; say its type in "
        "schema={asked}, or leave the column out with columns=",
        "shard a.arrow, row 1: column 'z' is not in the schema (x). Without schema=, the first shard decides it; "
        "name it in schema=, or leave the column out with columns=",
    ),
    "rows": (
        rows,
        "from_iterable failed at row {count}: column 'x' is {wanted} by the schema but {value} here; return one type in every "
        "sample{own}",
        "from_iterable failed at row 1,024: key 'z' is not in the schema (x), which the first 1,000 rows decide "
        "where none is given; return it in every sample, None where there is nothing to say",
    ),
    "files": (
        files,
        "shard a.rows, row {line}: column 'x' is {wanted} by the schema but {value} here; say its type in schema={asked}, or "
        "leave the column out with columns=",
        "shard a.rows, row 1: key 'z' is not in the schema (x), which the first 1,000 rows decide where none is "
        "given; name it in schema=, or leave the column out with columns=",
    ),
}
ALL: Final = " ".join(WAYS)


class Case(NamedTuple):
    """A column, and one that follows it.

    Args:
        row: the first one that does not fit.
        fits: the ways in which it fits.
        values: those that it has then.
        value: the first one that does not fit, in words.
        told: words of certain ways.
        asked: the type that would hold both, where it is told.
    """

    first: pa.Array
    later: pa.Array
    row: int = 0
    fits: str = ""
    values: list[Any] | None = None
    value: str = ""
    told: Mapping[str, str] = MappingProxyType({})
    asked: str = ""


DAY, NOON = dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 12, 0, 0, 7)
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray
INT, TEXT, FLOAT, INTS = pa.array([1]), pa.array(["a"]), pa.array([0.5]), pa.array([[1]])
KEY = "key 'b' of column 'x' is not in the schema (struct<a: int64>); "
CASES: Final = {
    "the same": Case(INT, pa.array([1, 2]), fits=ALL),
    "null": Case(INT, pa.nulls(2), fits=ALL),
    "a narrower type": Case(pa.array([1], pa.int8()), pa.array([1, 2]), fits=ALL),
    "a number too large": Case(pa.array([1], pa.int8()), pa.array([1, 300]), 1, asked="'int64'"),
    "whole floats": Case(INT, pa.array([1.0, 2.0]), fits="joined map_blocks tables store"),
    "floats": Case(INT, pa.array([1.5, 2.0])),
    "integers above 2^63": Case(INT, pa.array([7, 2**63], pa.uint64()), 1, asked="'uint64', or 'json' if others are negative",
        told=dict.fromkeys(["rows", "files"], "'x' is int64 by the schema but an integer here (9,223,372,036,854,775,808 is")),
    "integers below 0": Case(
        pa.array([1], pa.uint64()), pa.array([7, -7]), 1, asked="'int64', or 'json' if others are beyond it"
    ),
    "lists of integers above 2^63": Case(INTS, pa.array([[7], [2**63]], pa.list_(pa.uint64())), 1,
        asked="pa.list_(pa.uint64()), or 'json' if others are negative"),
    "integers": Case(FLOAT, pa.array([1, 2]), fits=ALL),
    "an integer that is rounded": Case(
        FLOAT, pa.array([1, 2**53 + 1]), 1, value="the integer 9007199254740993, which it would round,", asked="'json'"
    ),
    "a float beyond its type": Case(pa.array([0.5], pa.float32()), pa.array([1.0, 1e300]), 1, asked="'double'"),
    "text for a number": Case(INT, pa.array(["1", "2"])),
    "a number for text": Case(TEXT, pa.array([1, 2])),
    "large text": Case(TEXT, pa.array(["a", "b"], pa.large_string()), fits=ALL),
    "bytes for text": Case(TEXT, pa.array([b"a", b"\xff"])),
    "text for bytes": Case(pa.array([b"a"]), pa.array(["a", "b"])),
    "truth values": Case(INT, pa.array([True, False])),
    "categories": Case(TEXT, pa.array(["a", "b"]).dictionary_encode(), fits=ALL),
    "a day for a time": Case(pa.array([NOON]), pa.array([DAY.date(), DAY.date()])),
    "a time between seconds": Case(pa.array([DAY], pa.timestamp("s")), pa.array([DAY, NOON]), 1),
    "a decimal": Case(pa.array([Decimal("1.5")]), pa.array([Decimal("2.5"), Decimal("1.25")]), 1),
    "a list too large": Case(pa.array([[1]], pa.list_(pa.int8())), pa.array([[1], [300]]), 1, asked="pa.list_(pa.int64())"),
    "lists": Case(pa.array([[1]], pa.list_(pa.int8())), pa.array([[1], None], pa.large_list(pa.int64())), fits=ALL),
    "empty lists": Case(INTS, pa.array([[], None]), fits=ALL),
    "a number for a list": Case(INTS, pa.array([1, 2])),
    "a part of lists": Case(
        pa.array([[1]], pa.list_(pa.int8())), pa.array([[300], [1], [400], [300]]).slice(1, 2), 1,
        asked="pa.list_(pa.int64())"
    ),
    "a key more": Case(
        pa.array([{"a": 1}]),
        pa.array([{"a": 1, "b": 2}] * 2),
        told={
            "rows": KEY + "return it in every sample",
            "files": KEY + "name it in schema=, or leave the column out with columns=",
        },
    ),
    "a key less": Case(pa.array([{"a": 1, "b": 2}]), pa.array([{"a": 1}] * 2), 0, ALL, [{"a": 1, "b": None}] * 2),
    "keys of another type": Case(pa.array([{"a": 1}]), pa.array([{"a": "x"}] * 2)),
    "fixed bytes": Case(pa.array([b"ab"]), pa.array([b"ab", b"cd"], pa.binary(2)), fits=ALL),
    "maps": Case(
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int32())),
        fits="joined map_blocks tables store arrow",
        told={"rows": "list that no column can hold", "files": "list that no column can hold"},
    ),
    "arrays of another type": Case(
        TENSORS(np.zeros((1, 1, 2), np.float32)), TENSORS(np.zeros((2, 1, 2))), fits="joined map_blocks tables store arrow rows",
        values=[[[0.0, 0.0]]] * 2, told={"files": "list<item: double> here"},
    ),
    "arrays of another shape": Case(
        TENSORS(np.zeros((1, 2, 2))), TENSORS(np.zeros((2, 1, 2))), asked="bf.array_type('float64', (None, 2))",
        told={"files": "list<item: double> here", "arrow": "an array of double of shape (1, 2) here; say its type in schema="},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_column_fits_the_type_before_it_or_is_an_error_with_both(name: str, way: str, tmp_path: Path) -> None:
    case, (call, words, _) = CASES[name], WAYS[way]
    blocks = block_of(x=case.first), block_of(x=case.later)
    if way in case.fits.split():
        expected = blocks[1].to_pylist() if case.values is None else [{"x": value} for value in case.values]
        assert plain(call(tmp_path, *blocks)) == expected
        return
    with pytest.raises((bf.DataError, bf.StageError)) as error:
        call(tmp_path, *blocks)
    if way in case.told:
        assert case.told[way] in str(error.value)
        return
    found = type_name(case.later.type)
    facts = {
        "found": found,
        "value": case.value or found,
        "wanted": type_name(case.first.type),
        "row": case.row,
        "line": case.row + 1,
        "asked": f" ('x': {case.asked})" if case.asked else "",
        "own": f", or say it in this method's own schema= ('x': {case.asked})" if case.asked else "",
        "count": f"{FIRST + case.row:,}",
    }
    expected_words = re.escape(words.format(why="WHY", **facts)).replace("WHY", "(.+|)")
    assert re.fullmatch(expected_words, str(error.value))


@pytest.mark.parametrize("way", WAYS)
def test_a_new_column_is_an_error_and_an_absent_one_is_null(way: str, tmp_path: Path) -> None:
    call, _, words = WAYS[way]
    one, two = block_of(x=INT), block_of(x=pa.array([1, 2]), z=pa.array([3, 4]))
    with pytest.raises((bf.DataError, bf.StageError)) as error:
        call(tmp_path, one, two)
    assert str(error.value) == words
    (tmp_path / "absent").mkdir()
    assert plain(call(tmp_path / "absent", two, one)) == [{"x": 1, "z": None}]


def test_values_that_no_row_has_do_not_count() -> None:
    """Beside a slice, and in a list that is null."""
    schema = pa.schema([("x", pa.list_(pa.int8()))])
    large = pa.array([1, 300, 2, 300])
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), large, mask=pa.array([False, True, False]))
    assert conform(block_of(x=hidden), schema).to_pylist() == [{"x": [1]}, {"x": None}, {"x": [2]}]
    lists = pa.ListArray.from_arrays([0, 1, 2, 3, 4], large)
    assert conform(block_of(x=lists.slice(0, 1)), schema).to_pylist() == [{"x": [1]}]
    with pytest.raises(MisfitError) as error:
        conform(block_of(x=lists.slice(2, 2)), schema)
    assert (error.value.column, error.value.row()) == ("x", 1)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (INT, pa.array([1], pa.int8()), pa.int64()),
        (INT, FLOAT, pa.float64()),
        (INT, pa.nulls(1), pa.int64()),
        (INTS, pa.array([[]]), pa.list_(pa.int64())),
        (TEXT, pa.array(["b"], pa.large_string()), pa.large_string()),
        (pa.array([{"a": 1}]), pa.array([{"b": "x"}]), pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ],
)
def test_blocks_of_several_types_are_joined_in_the_wider_one(one: pa.Array, other: pa.Array, kind: pa.DataType) -> None:
    assert concat([block_of(x=one), block_of(x=other)]).schema.field("x").type == kind


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (pa.array([1, 2]), TEXT, "Unable to merge: Field x has incompatible types: int64 vs string (shard b, line 1)"),
        (FLOAT, pa.array([1, 2**53 + 1]), "'x' is double elsewhere and int64 here: Integer value"),
        (pa.array([Decimal("1.5")]), INT, "'x' is decimal128("),
        (pa.array([b"b"]), TEXT, "'x' is binary elsewhere and string here: string is not binary (shard b, line 1)"),
    ],
)  # fmt: skip
def test_blocks_that_have_no_type_in_common_are_an_error_with_the_place(
    one: pa.Array, other: pa.Array, words: str
) -> None:
    place = origins("shard b", np.arange(len(other)) + 1)
    with pytest.raises(bf.DataError) as error:
        concat([block_of(x=one), with_column(block_of(x=other), ORIGIN, place)])
    assert str(error.value).startswith(f"a column changes its type: {words}")
    assert str(error.value).endswith(f"(shard b, line {len(other)})")
