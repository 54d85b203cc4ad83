"""Parquet and Arrow, files and streams: what is true of all shards that hold their rows by columns."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources import columnar
from brimful.sources.bytes import LocalFile
from brimful.testing import assert_exact_resume
from tests.effort import examples, times
from tests.shards import threads_left, watched, write, write_table
from tests.strategies import small

ROOT = Path(__file__).parents[2]
KINDS = [".parquet", ".arrow", ".ipc"]
kinds = pytest.mark.parametrize("kind", KINDS)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def rows_of(dataset: bf.Dataset) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in sample.items()} for sample in dataset]


def numbered(count: int, first: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array([f"text {n}" for n in ids], pa.string())})


# -- round trips -----------------------------------------------------------------------------------------------------------

scalars: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)),
    pa.decimal128(9, 2): st.integers(-(10**8), 10**8).map(lambda cents: Decimal(cents) / 100),
}


def nested(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    kind, values = inner
    some = st.none() | values
    return st.sampled_from(
        [
            (pa.list_(kind), st.lists(some, max_size=3)),
            (pa.list_(kind, 2), st.lists(some, min_size=2, max_size=2)),
            (pa.struct([("x", kind), ("y", pa.int32())]), st.fixed_dictionaries({"x": some, "y": st.just(7)})),
        ]
    )


columns = st.recursive(st.sampled_from(list(scalars.items())), lambda inner: inner.flatmap(nested), max_leaves=3)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.sampled_from([0, 1, 2, 7, 20]))
    found = {}
    for number, (kind, values) in enumerate(draw(st.lists(columns, min_size=1, max_size=3))):
        column = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        found[f"column {number}"] = pa.array(column, kind)
    return pa.table(found)


@kinds
@examples(25)
@given(table=tables(), rows=st.sampled_from([1, 2, 5, 50]), data=st.data())
def test_tables_of_many_types_come_back_and_resume_at_every_row(
    tmp_path_factory: pytest.TempPathFactory, kind: str, table: pa.Table, rows: int, data: st.DataObject
) -> None:
    url = write_table(tmp_path_factory.mktemp("table") / f"a{kind}", table, rows)
    chosen = data.draw(st.none() | st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))

    def make() -> bf.Dataset:
        return bf.from_files(url, columns=chosen)

    with small(data.draw(st.integers(1, 5)), 1 << 10):
        if table.num_rows or chosen is None:
            assert rows_of(make()) == table.select(chosen or table.column_names).to_pylist()
        assert_exact_resume(make, epochs=(), max_items=8, max_resumes=4)


@kinds
def test_a_resume_at_every_row_gives_the_rows_after_it(tmp_path: Path, kind: str) -> None:
    table = numbered(24).append_column("kind", pa.array(["a", "b", None] * 8).dictionary_encode())
    url = write_table(tmp_path / f"a{kind}", table, 7)
    with small(4, 2_000):
        assert rows_of(bf.from_files(url)) == table.to_pylist()
        assert_exact_resume(lambda: bf.from_files(url), max_resumes=24)
        assert_exact_resume(lambda: bf.from_files([url, url], n_active_shards=2, columns=["kind"]), max_resumes=4)
    with small(100, 60):  # blocks are cut by bytes
        assert_exact_resume(lambda: bf.from_files(url, n_active_shards=1).stage, max_resumes=8)


@kinds
def test_shards_of_no_rows_and_empty_groups_are_passed_over(tmp_path: Path, kind: str) -> None:
    none = write_table(tmp_path / f"none{kind}", pa.table({"other": pa.array([], pa.float32())}))
    empty = tmp_path / f"empty{kind}"
    table = numbered(4)
    parts = [
        table.slice(0, 0),
        table.slice(0, 3),
        table.slice(0, 0),
        table.slice(0, 0),
        table.slice(3),
        table.slice(0, 0),
    ]
    if kind == ".parquet":
        with pa.parquet.ParquetWriter(empty, table.schema) as writer:
            for part in parts:
                writer.write_table(part)
    else:
        with (pa.ipc.new_stream if kind == ".ipc" else pa.ipc.new_file)(empty, table.schema) as writer:
            for part in parts:
                for batch in part.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
                    writer.write_batch(batch)
    assert rows_of(bf.from_files([none])) == []
    for active in (1, 3):
        found = bf.from_files([none, empty, none], n_active_shards=active)
        assert rows_of(found) == table.to_pylist()
        assert_exact_resume(lambda: bf.from_files([none, empty, none], n_active_shards=active))  # noqa: B023


@kinds
def test_shards_by_columns_and_json_lines_may_be_mixed(tmp_path: Path, kind: str) -> None:
    rows = [{"id": number, "tokens": [number, 1]} for number in range(5)]
    small_ids = pa.table({"tokens": pa.array([[7], []], pa.large_list(pa.int16())), "id": pa.array([8, 9], pa.int8())})
    urls = [write(tmp_path / "a.jsonl", rows), write_table(tmp_path / f"b{kind}", small_ids)]
    expected = [*rows, {"id": 8, "tokens": [7]}, {"id": 9, "tokens": []}]
    for order in (urls, urls[::-1]):
        dataset = bf.from_files(order, n_active_shards=1, schema={"id": pa.int64(), "tokens": pa.list_(pa.int64())})
        assert sorted(rows_of(dataset), key=lambda row: row["id"]) == expected
    assert rows_of(bf.from_files(urls, n_active_shards=1)) == expected  # of the first shard's types


def odd_types() -> dict[str, tuple[pa.Array, Any]]:
    """Arrays whose type the rest of the library does not know, and what becomes of them."""
    texts = pa.array(["a", "b"])
    return {
        "dictionary": (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        "lists of dictionaries": (pa.ListArray.from_arrays([0, 1, 2], texts.dictionary_encode()), [["a"], ["b"]]),
        "large text": (pa.array(["x", "é"], pa.large_string()), ["x", "é"]),
        "large lists": (pa.array([[1], []], pa.large_list(pa.int64())), [[1], []]),
        "uuid": (pa.array([b"0" * 16, None], pa.uuid()), [b"0" * 16, None]),
        "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [[("k", 1)], None]),
        "null": (pa.nulls(2), [None, None]),
    }


ARROW_ONLY = {
    "view": (pa.array(["x", "y"], pa.string_view()), ["x", "y"]),
    "list view": (pa.array([["x"], None], pa.list_view(pa.string_view())), [["x"], None]),
    "runs": (pc.run_end_encode(pa.array([5, 5])), [5, 5]),
}


@kinds
def test_types_that_are_ways_of_storing_become_what_they_store(tmp_path: Path, kind: str) -> None:
    for name, (array, values) in (odd_types() | ({} if kind == ".parquet" else ARROW_ONLY)).items():
        for again in (1, 2):  # columns= is read in another way
            table = pa.table({"x": array, "y": [1, 2]})
            url = write_table(tmp_path / f"{name}{kind}", table)
            found = rows_of(bf.from_files(url, columns=["x", "y"][:again]))
            assert [row["x"] for row in found] == values, name


@kinds
def test_arrays_of_fixed_shape_stay_what_they_are(tmp_path: Path, kind: str) -> None:
    arrays = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    table = pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(arrays)})
    found = [sample["image"] for sample in bf.from_files(write_table(tmp_path / f"a{kind}", table))]
    assert np.array_equal(found, arrays)
    batch = next(bf.from_files(tmp_path / f"a{kind}").batch(2).iter())
    assert batch["image"].shape == (2, 3, 2)


@kinds
def test_what_is_stored_by_polars_is_read(tmp_path: Path, kind: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"text": ["a", "é", None], "ids": [[1], [], [2, 3]], "day": [date(2026, 1, 1)] * 3},
    ).with_columns(kind=polars.Series(["x", "y", "x"], dtype=polars.Categorical))
    names = {".parquet": "parquet", ".arrow": "ipc", ".ipc": "ipc_stream"}
    for compression in ("zstd", "lz4"):
        getattr(frame, f"write_{names[kind]}")(tmp_path / f"a{kind}", compression=compression)
        assert rows_of(bf.from_files(tmp_path / f"a{kind}")) == frame.to_dicts()
        assert rows_of(bf.from_files(tmp_path / f"a{kind}", columns=["ids"])) == frame.select("ids").to_dicts()
        assert_exact_resume(lambda: bf.from_files(tmp_path / f"a{kind}"))


def test_what_hugging_face_writes_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": f"text {number}", "label": number % 2, "ids": [number] * 3} for number in range(2_500)]
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "ids": datasets.List(datasets.Value("int32")),
            "grid": datasets.Array2D((2, 2), "float32"),
        }
    )
    grid = [[1.0, 2.0], [3.0, 4.0]]
    saved = datasets.Dataset.from_list([{**row, "grid": grid} for row in rows], features=features)
    saved.save_to_disk(tmp_path / "saved")
    saved.to_parquet(tmp_path / "a.parquet")
    for url in (f"{tmp_path}/saved/*.arrow", f"{tmp_path}/a.parquet"):
        assert rows_of(bf.from_files(url, columns=["text", "label", "ids"])) == rows
        assert rows_of(bf.from_files(url).take(1)) == [{**rows[0], "grid": grid}]
        assert_exact_resume(lambda: bf.from_files(url), max_items=2_500, max_resumes=4)  # noqa: B023


# -- schemas ---------------------------------------------------------------------------------------------------------------


@kinds
def test_types_are_wide_enough_for_the_first_shards_whatever_is_opened_first(tmp_path: Path, kind: str) -> None:
    empty = pa.array([[]], pa.list_(pa.null()))
    tables = [
        {"i": pa.array([1], pa.int8()), "f": pa.array([1.5], pa.float32()), "n": pa.nulls(1), "l": empty},
        {"i": pa.array([300], pa.uint16()), "f": pa.array([0.1]), "n": pa.array(["x"]), "l": pa.array([[1]])},
        {"i": pa.array([1 << 40], pa.int64()), "l": pa.array([[2]], pa.list_(pa.int8()))},
    ]  # fmt: skip
    urls = [write_table(tmp_path / f"{number}{kind}", pa.table(table)) for number, table in enumerate(tables)]
    want = [
        {"i": 1, "f": 1.5, "n": None, "l": []},
        {"i": 300, "f": 0.1, "n": "x", "l": [1]},
        {"i": 1 << 40, "f": None, "n": None, "l": [2]},
    ]
    types = {"i": pa.int64(), "f": pa.float64(), "n": pa.string(), "l": pa.list_(pa.int64())}
    for order in ([0, 1, 2], [2, 1, 0]):
        names = list(types) if order[0] == 0 else ["i", "l"]
        for options in ({}, {"shuffle_shards": True, "n_active_shards": 1}, {"streams": 3}):
            made = bf.from_files([urls[number] for number in order], columns=names, **options)
            found = sorted(rows_of(made), key=lambda row: row["i"])
            assert found == [{name: row[name] for name in names} for row in want]
            assert made.stage._schema == pa.schema([(name, types[name]) for name in names])  # type: ignore[attr-defined]
    assert_exact_resume(lambda: bf.from_files(urls, n_active_shards=1))


@kinds
def test_a_float_is_never_rounded_to_a_type_that_nobody_asked_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.sources.files.SHARDS_ASKED", 1)
    narrow = pa.table(
        {"x": pa.array([1.5], pa.float32()), "l": pa.array([[{"y": 1.5}]], pa.list_(pa.struct({"y": pa.float16()})))}
    )
    wide = pa.table({"x": [2.5, 0.1, None, float("nan")], "l": [[{"y": 2.5}], None, [{"y": 0.1}], []]})
    urls = [write_table(tmp_path / "a.arrow", narrow), write_table(tmp_path / f"b{kind}", wide)]
    it = bf.from_files(urls, n_active_shards=1).iter()
    assert [next(it)["x"] for _ in range(2)] == [1.5, 2.5]
    message = (
        rf"^shard b\{kind}, row 2: column 'x' is float by the schema but double here \(0\.1 would be rounded to 0\.1\d*\); "
        r"say its type in schema= \('x': 'double'\), or leave the column out with columns=$"
    )
    with pytest.raises(bf.DataError, match=message):
        next(it)
    it = bf.from_files(urls, n_active_shards=1, on_error="skip").iter()
    assert repr([sample["x"] for sample in it]) == "[1.5, 2.5, nan]"
    assert it.stats["skipped"] == 2  # the other one in a list
    asked = bf.from_files(
        urls, columns=["x"], n_active_shards=1, schema={"x": pa.float32(), "l": wide.schema.field("l").type}
    )
    assert [sample["x"] for sample in asked][2] == np.float32(0.1)


@kinds
def test_large_unsigned_integers_and_nested_lists_of_nothing_come_through(tmp_path: Path, kind: str) -> None:
    table = pa.table(
        {
            "u": pa.array([2**64 - 1, 2**63, None], pa.uint64()),
            "n": pa.array([[None], [], None], pa.list_(pa.null())),
            "nn": pa.array([[[None, None]], [[]], []], pa.list_(pa.list_(pa.null()))),
            "e": pa.array([[], [], []], pa.list_(pa.int64())),
        }
    )
    if kind != ".parquet":  # which has no such type
        table = table.append_column("s", pa.array([{}, None, {}], pa.struct([])))
    url = write_table(tmp_path / f"a{kind}", table, 2)
    assert rows_of(bf.from_files(url)) == table.to_pylist()
    assert (
        rows_of(bf.from_files([url, url], columns=["nn", "u"], n_active_shards=1))[3:]
        == table.select(["nn", "u"]).to_pylist()
    )
    assert_exact_resume(lambda: bf.from_files(url))


@kinds
def test_shards_behind_the_first_are_cast_to_their_types_or_say_what_does_not_fit(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.sources.files.SHARDS_ASKED", 1)
    first = write_table(tmp_path / f"a{kind}", pa.table({"x": pa.array([1, 2], pa.int32())}))
    second = write_table(tmp_path / f"b{kind}", pa.table({"x": pa.array([3, 1 << 40, 5, None], pa.int64())}))
    it = bf.from_files([first, second], n_active_shards=1).iter()
    assert [next(it)["x"] for _ in range(3)] == [1, 2, 3]
    message = (
        rf"^shard b\{kind}, row 2: column 'x' is int32 by the schema but int64 here \(Integer value 1099511627776 not in "
        r"range: .*\); say its type in schema= \('x': 'int64'\), or leave the column out with columns=$"
    )
    with pytest.raises(bf.DataError, match=message):
        next(it)
    it = bf.from_files([first, second], n_active_shards=1, on_error="skip").iter()
    assert [sample["x"] for sample in it] == [1, 2, 3, 5, None]
    assert it.stats["skipped"] == 1
    wide = bf.from_files([first, second], n_active_shards=1, schema={"x": pa.int64()})
    assert [sample["x"] for sample in wide] == [1, 2, 3, 1 << 40, 5, None]


@kinds
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array(["1"]), "int64 by the schema but string here"),
        (pa.array([1.0]), "int64 by the schema but double here"),
        (pa.array([{"a": 1}]), "int64 by the schema but struct<a: int64> here"),
    ],
)
def test_a_shard_of_other_types_is_an_error_at_its_first_row_or_is_skipped(
    tmp_path: Path, kind: str, values: pa.Array, words: str
) -> None:
    urls = [write_table(tmp_path / f"a{kind}", pa.table({"x": [1]})), write(tmp_path / "c.jsonl", [{"x": 3}])]
    urls.insert(1, write_table(tmp_path / f"b{kind}", pa.table({"x": values})))
    message = rf"^shard b\{kind}, row 1: column 'x' is {words}; say its type in schema=, or leave the column out"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(urls, n_active_shards=1))
    it = bf.from_files(urls, n_active_shards=1, on_error="skip").iter()
    assert [sample["x"] for sample in it] == [1, 3]
    assert it.stats["skipped"] == 1


@kinds
def test_no_key_inside_of_a_column_is_lost(tmp_path: Path, kind: str) -> None:
    urls = [
        write_table(tmp_path / f"{number}{kind}", pa.table({"x": [row]}))
        for number, row in enumerate([{"a": 1}, {"a": 2, "new": 3}])
    ]
    message = (
        rf"^shard 1\{kind}, row 1: column 'x' is struct<a: int64> by the schema but struct<a: int64, new: int64> here"
    )
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(urls))


@kinds
def test_a_column_that_the_first_shard_lacks_is_an_error_and_one_that_a_later_one_lacks_is_null(
    tmp_path: Path, kind: str
) -> None:
    first = write_table(tmp_path / f"a{kind}", pa.table({"id": [1], "text": ["a"]}))
    more = write_table(tmp_path / f"b{kind}", pa.table({"id": [2], "text": ["b"], "new": [1]}))
    less = write_table(tmp_path / f"c{kind}", pa.table({"id": [3]}))
    message = (
        rf"^shard b\{kind}, row 1: column 'new' is not in the schema \(id, text\). Without schema=, the first shard "
        "decides it; name it in schema=, or leave the column out with columns=$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files([first, more]))
    whole = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}, {"id": 3, "text": None}]
    assert rows_of(bf.from_files([first, more, less], columns=["id", "text"])) == whole
    assert rows_of(bf.from_files([first, less])) == [whole[0], whole[2]]
    assert rows_of(bf.from_files([first, less], columns=["text"])) == [{"text": "a"}, {"text": None}]
    message = rf"^there is no column 'new' \(shard a\{kind}; columns: id, text\); correct columns=, or say its type in"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files([first, more], columns=["new"]))


@kinds
def test_two_columns_of_a_name_are_refused_unless_left_out(tmp_path: Path, kind: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "b"])
    url = write_table(tmp_path / f"a{kind}", table)
    message = (
        rf"^shard a\{kind}, row 1: there are two columns 'a'; rename one when the shard is written, or leave it out by"
    )
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(url))
    assert rows_of(bf.from_files(url, columns=["b"])) == [{"b": 3}]


def test_a_type_that_nothing_is_made_of_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
        raise pa.ArrowNotImplementedError("a type of a later Arrow")

    for module in ("plain", "schema"):
        monkeypatch.setattr(f"brimful.tables.{module}.as_plain", as_plain)
    odd = pa.array(["x", "y"], pa.string_view())
    url = write_table(tmp_path / "a.arrow", pa.table({"odd": odd, "id": [1, 2]}))
    message = r"^shard a\.arrow, row 1: column 'odd' is string_view, which cannot be read; leave it out by columns=$"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(url))
    assert rows_of(bf.from_files(url, columns=["id"])) == [{"id": 1}, {"id": 2}]


# -- what is read ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read gave."""
    counts: list[int] = []
    fill = LocalFile.fill

    def counting(self: LocalFile, buffer: memoryview) -> int:
        counts.append(fill(self, buffer))
        return counts[-1]

    monkeypatch.setattr(LocalFile, "fill", counting)
    return counts


@kinds
def test_no_byte_of_other_columns_is_read(tmp_path: Path, kind: str, read_bytes: list[int]) -> None:
    draw = np.random.default_rng(0)
    large = pa.array([draw.bytes(10_000) for _ in range(400)])
    table = pa.table({"one": large, "id": range(400), "other": large})
    url = write_table(tmp_path / f"a{kind}", table, 100)
    assert [sample["id"] for sample in bf.from_files(url, columns=["id"])] == list(range(400))
    assert Path(url).stat().st_size > 8_000_000
    assert sum(read_bytes) < 200_000  # a footer is looked for in the last 64 KB, twice
    read_bytes.clear()
    assert len(list(bf.from_files(url, schema=table.schema))) == 400
    assert 8_000_000 < sum(read_bytes) < 8_400_000


@kinds
@pytest.mark.parametrize("columns", [None, ["id"]])
def test_a_resume_reads_nothing_before_the_group_in_which_it_lies(
    tmp_path: Path, kind: str, columns: list[str] | None, read_bytes: list[int]
) -> None:
    draw = np.random.default_rng(0)
    table = pa.table({"id": range(1_000), "data": [draw.bytes(4_000) for _ in range(1_000)]})
    options = {"write_statistics": False} if kind == ".parquet" else {}  # which would be in the footer
    url = write_table(tmp_path / f"a{kind}", table, 50, **options)
    dataset = bf.from_files(url, columns=columns, n_active_shards=1)
    with small(10), dataset.iter() as it:
        list(islice(it, 925))
        state = it.state_dict()
    read_bytes.clear()
    with small(10):
        assert [sample["id"] for sample in dataset.iter(state)] == list(range(925, 1_000))
    whole = Path(url).stat().st_size
    assert sum(read_bytes) < (0.1 * whole + 150_000 if columns is None else 150_000)


@kinds
def test_a_slow_store_is_waited_for_as_long_as_it_goes_on(tmp_path: Path, kind: str) -> None:
    table = pa.table({"data": [np.random.default_rng(0).bytes(100_000) for _ in range(40)]})
    url = write_table(tmp_path / f"a{kind}", table, 40)
    pause = threading.Event()
    with watched(on_read=lambda name: pause.wait(0.1)), small(4_096, 1 << 20):
        dataset = bf.from_files(f"watched://{url}", schema=table.schema, timeout_seconds=1.5)
        assert len(list(dataset)) == 40


@kinds
def test_a_stuck_read_is_a_timeout(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.core.run.JOIN_SECONDS", 0.2)
    url = write_table(tmp_path / f"a{kind}", numbered(10))
    stuck = threading.Event()
    with watched(on_read=lambda name: stuck.wait(60)):
        it = bf.from_files(f"watched://{url}", schema=numbered(0).schema, timeout_seconds=0.3).iter()
        with pytest.raises(
            TimeoutError, match=rf"^nothing came from shard watched://.*a\{kind} within 0\.3 seconds \(at row 1\)"
        ):
            next(it)
        stuck.set()
    assert threads_left() == []


@kinds
def test_a_store_that_refuses_is_no_damage_and_never_skipped(tmp_path: Path, kind: str) -> None:
    url = write_table(tmp_path / f"a{kind}", numbered(20_000), 500)
    for schema in (None, numbered(0).schema):
        reads = iter(range(1_000))

        def fail(name: str) -> None:
            if next(reads) >= (0 if schema is None else 12):  # noqa: B023
                raise PermissionError("not yours")

        with watched(on_read=fail), small(100, 1 << 12):
            it = bf.from_files(f"watched://{url}", schema=schema, on_error="skip").iter()
            with pytest.raises(OSError, match=r"PermissionError not yours") as error:
                list(it)
            assert not isinstance(error.value, bf.DataError)
    assert threads_left() == []


# -- damage ----------------------------------------------------------------------------------------------------------------


def many_types(count: int) -> pa.Table:
    draw = np.random.default_rng(0)
    return pa.table(
        {
            "id": range(count),
            "text": [f"é{draw.bytes(draw.integers(30)).hex()}" for _ in range(count)],
            "ids": pa.array(
                [draw.integers(0, 1_000, draw.integers(6)).tolist() for _ in range(count)], pa.list_(pa.int32())
            ),
            "nested": [{"x": [["a", "b"]] * (n % 3), "y": 1.5} if n % 5 else None for n in range(count)],
            "pair": pa.array([[1.0, 2.0]] * count, pa.list_(pa.float32(), 2)),
            "kind": pa.array(["p", "q", None] * (count // 3)).dictionary_encode(),
            "at": [datetime(2026, 1, 1)] * count,
        }
    )


def whole_shards(folder: Path, form: str) -> Iterator[str]:
    table = many_types(120)
    without = table.drop("kind")
    if form == "parquet":
        yield write_table(folder / "plain.parquet", table, 40, compression="none")
        sums: dict[str, Any] = {"write_page_checksum": True, "data_page_version": "2.0", "compression": "zstd"}
        yield write_table(folder / "sums.parquet", table, 70, **sums)
        encodings = {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
        options: dict[str, Any] = {"use_dictionary": False, "column_encoding": encodings, "data_page_size": 500}
        yield write_table(folder / "delta.parquet", without.drop("pair"), 40, **options)
    else:
        yield write_table(folder / "file.arrow", without, 40)
        yield write_table(folder / "dictionary.arrow", table, 40, compression="zstd")
        yield write_table(folder / "stream.ipc", without, 40, compression="lz4")
        yield write_table(folder / "dictionary.ipc", table, 40)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_damage_is_told_or_skipped_and_counted_and_never_ends_the_process(tmp_path: Path, form: str) -> None:
    first = 0 if times(1, 2) == 1 else int.from_bytes(os.urandom(4), "little")
    command = [sys.executable, "-m", "tests.damage_child", form, str(first), str(times(800, 100_000))]
    child = subprocess.run(
        [*command, *whole_shards(tmp_path, form)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=times(250, 7_000),
    )
    assert child.returncode == 0, f"crashed at {child.stderr[-2_000:]}"
    assert not child.stdout, child.stdout[:2_000]


@kinds
def test_a_shard_that_is_cut_off_anywhere_gives_rows_and_then_an_error(tmp_path: Path, kind: str) -> None:
    whole = Path(write_table(tmp_path / f"whole{kind}", numbered(120), 20)).read_bytes()
    path, schema = tmp_path / f"a{kind}", numbered(0).schema
    for size in [0, 1, 7, 8, 12, *range(20, len(whole), len(whole) // times(25, 300)), len(whole) - 1]:
        path.write_bytes(whole[:size])
        it = bf.from_files(path, schema=schema, n_standby_shards=0).iter()
        seen: list[int] = []
        with pytest.raises(bf.DataError) as error:
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(len(seen)))
        assert str(error.value).startswith(f"shard a{kind}, row {len(seen) + 1:,}: "), size
        it = bf.from_files(path, schema=schema, on_error="skip").iter()
        assert [sample["id"] for sample in it] == seen
        assert it.stats["skipped"] == 1


@kinds
def test_text_that_is_no_utf8_is_an_error_at_its_row_alone(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "brimful")
    texts = [b"good"] * 2_000
    texts[700] = texts[1_500] = b"b\xffd"
    flat = pa.array(texts).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array(np.arange(2_001, dtype=np.int32)), flat)
    for name, column in (("flat", flat), ("lists", lists)):
        path = tmp_path / f"{name}{kind}"
        write_table(path, pa.table({"id": range(2_000), "text": column}), 1_100)
        it = bf.from_files(path).iter()
        assert [next(it)["id"] for _ in range(700)] == list(range(700))
        with pytest.raises(bf.DataError, match=rf"^shard {name}\{kind}, row 701: .*Invalid UTF8 sequence"):
            next(it)
        it = bf.from_files(path, on_error="skip").iter()
        assert [sample["id"] for sample in it] == [*range(700), *range(701, 1_500), *range(1_501, 2_000)]
        assert it.stats["skipped"] == 2
        assert f"skipped: shard {name}{kind}, row 1,501: " in caplog.text
        assert len(list(bf.from_files(path, columns=["id"]))) == 2_000


@kinds
@pytest.mark.parametrize("how", ["cut", "written to", "replaced by damage"])
def test_a_shard_that_changes_is_told_as_such_and_not_as_damage(tmp_path: Path, kind: str, how: str) -> None:
    path = Path(write_table(tmp_path / f"a{kind}", pa.table({"id": range(40_000), "text": ["x" * 50] * 40_000}), 400))
    size = path.stat().st_size
    with small(100, 1 << 12):
        it = bf.from_files(path, n_standby_shards=0).iter()
        seen = [sample["id"] for sample in islice(it, 10)]
        if how == "cut":
            os.truncate(path, size // 2)
        else:
            with path.open("r+b") as file:
                file.seek(size // 2 if how != "written to" else 4)
                file.write(b"\xaa" * (size // 4 if how != "written to" else 1))
        with pytest.raises(bf.DataError, match=rf"^shard a\{kind}, row [\d,]+: (it had|its) {size:,} bytes") as error:
            seen.extend(sample["id"] for sample in it)
    assert seen == list(range(len(seen)))
    assert f"row {len(seen) + 1:,}: " in str(error.value)
    assert 10 < len(seen) < 40_000 or how == "written to"


@kinds
def test_a_state_of_more_rows_than_the_shard_has_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}"
    dataset = bf.from_files(write_table(path, numbered(100), 50), schema=numbered(0).schema)
    with small(10):
        it = dataset.iter()
        list(islice(it, 40))
        state = it.state_dict()
        it.close()
        write_table(path, numbered(20), 50)
        with pytest.raises(bf.StateError, match=rf"^shard a\{kind}, row \d+: .*edited$"):
            list(dataset.iter(state, allow={"urls"}))


def test_what_is_too_much_for_any_machine_is_damage_and_what_is_too_much_for_this_one_is_not() -> None:
    asked = "malloc of size {} failed"
    assert columnar.absurd(MemoryError(asked.format(1 << 50)))
    assert not columnar.absurd(MemoryError(asked.format(1 << 40)))
    assert not columnar.absurd(MemoryError())


def test_a_pipe_cannot_be_read_from_anywhere(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    opened = threading.Thread(target=lambda: open(tmp_path / "a.parquet", "wb").close())
    opened.start()
    it = bf.from_files(tmp_path / "a.parquet", schema={"id": pa.int64()}, on_error="skip").iter()
    with pytest.raises(OSError, match=r"^shard a\.parquet, row 1: cannot be read on: OSError: .*[Ii]llegal seek$"):
        next(it)
    opened.join()


def test_a_shard_that_is_skipped_is_counted_as_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables = {"a.parquet": pa.table({"id": ["1"]}), "b.parquet": pa.table({"id": range(9)})}
    urls = [write_table(tmp_path / name, table) for name, table in tables.items()]
    it = bf.from_files(urls, on_error="skip").iter()
    assert [row["id"] for row in it] == ["1"]
    assert (it.stats["skipped"], it.stats["skipped_shards"]) == (1, 1)
    assert caplog.messages[-1].endswith("; all that follows in this shard is left out with it")


@kinds
def test_rows_far_larger_than_most_are_handed_on_in_pieces_of_their_own(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "PIECE_BYTES", 1 << 16)
    texts = pa.array(["x"] * 2_000 + ["y" * 30_000] * 8 + ["z"] * 100, pa.large_string())
    kinds_of = pa.DictionaryArray.from_arrays(pa.array([0] * len(texts), pa.int32()), pa.array(["k" * 5_000]))
    for name, column in (("large", texts), ("dictionary", kinds_of)):
        table = pa.table({"id": range(len(texts)), "text": column})
        (batch,) = table.to_batches()
        pieces = list(columnar._cut(batch, 3, 4_096))
        assert [row for first, count in pieces for row in range(first, first + count)] == list(range(3, len(texts)))
        parts = [pa.table([batch.column(1).slice(*piece)], ["x"]) for piece in pieces]
        assert max(part.cast(pa.schema({"x": pa.string()})).nbytes for part in parts) < 1 << 17
        url = write_table(tmp_path / f"{name}{kind}", table, 5_000, compression="zstd")
        assert rows_of(bf.from_files(url)) == table.to_pylist()
    assert_exact_resume(
        lambda: bf.from_files(tmp_path / f"large{kind}", columns=["text"]), max_items=2_050, max_resumes=3
    )


@pytest.mark.skipif(times(0, 1) == 0, reason="takes 8 GB of memory")
@pytest.mark.parametrize("kind", [".parquet", ".arrow"])
def test_more_than_2_gib_of_text_in_a_column_are_cut_into_pieces(tmp_path: Path, kind: str) -> None:
    texts = pa.array(["x"] * 1_000 + ["y" * (450 << 20)] * 5 + ["z"], pa.large_string())
    url = write_table(tmp_path / f"a{kind}", pa.table({"text": texts}), 2_000, compression="zstd")
    assert [len(row["text"]) for row in bf.from_files(url)] == [1] * 1_000 + [450 << 20] * 5 + [1]
