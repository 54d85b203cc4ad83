"""The law of formats: what is written comes back, from any position on; a bad record costs itself alone, and has a place.

What a format has of its own (types, quotes, damage) is in the tests of that format.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources.format import Format
from brimful.sources.formats import FORMATS
from brimful.sources.function_format import FunctionFormat
from brimful.testing import assert_exact_resume
from tests.damage import Outcome, outcome
from tests.effort import examples
from tests.shards import compressed, write
from tests.strategies import small

cbor2 = pytest.importorskip("cbor2", reason="shards of CBOR need cbor2")

Row = dict[str, Any] | None
"""None: a bad record."""
AB = pa.schema([("a", pa.int64()), ("b", pa.string())])


class Case(NamedTuple):
    """A format under test: how rows are written, in lines or not."""

    form: Format
    ending: str
    encode: Callable[[list[Row]], bytes]
    schema: pa.Schema = AB

    def place(self, rows: list[Row]) -> int:
        """That of a record behind some others, counted from 1."""
        return 1 + (self.encode(rows).count(b"\n") if self.form.unit == "line" else len(rows))

    def good(self, rows: list[Row]) -> list[dict[str, Any]]:
        names = {"text": "b"} if self.schema.names == ["text"] else {"a": "a", "b": "b"}
        return [{name: row[key] for name, key in names.items()} for row in rows if row is not None]


def in_json(rows: list[Row]) -> bytes:
    return b"".join(b'{"a": "x", "b": 1}\n' if row is None else json.dumps(row).encode() + b"\n" for row in rows)


def in_array(rows: list[Row]) -> bytes:
    return json.dumps([{"a": "x", "b": 1} if row is None else row for row in rows], indent=1).encode()


def in_text(rows: list[Row]) -> bytes:
    return b"".join(b"b\xffd\n" if row is None else row["b"].encode() + b"\n" for row in rows)


def delimited(delimiter: str) -> Callable[[list[Row]], bytes]:
    def encode(rows: list[Row]) -> bytes:
        file = io.StringIO(newline="")
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerows([["a", "b"], *(["x"] if row is None else [row["a"], row["b"]] for row in rows)])
        return file.getvalue().encode()

    return encode


def in_cbor(rows: list[Row]) -> bytes:
    return b"".join(map(cbor2.dumps, ({"a": "x"} if row is None else row for row in rows)))


def by_columns(ending: str) -> Callable[[list[Row]], bytes]:
    def encode(rows: list[Row]) -> bytes:
        texts = pa.array([b"b\xffd" if row is None else row["b"].encode() for row in rows], pa.binary())
        numbers = pa.array([0 if row is None else row["a"] for row in rows], pa.int64())
        table = pa.table({"a": numbers, "b": texts.view(pa.string())})
        sink = io.BytesIO()
        if ending == ".parquet":
            pa.parquet.write_table(table, sink, row_group_size=5)
        else:
            with (pa.ipc.new_stream if ending == ".ipc" else pa.ipc.new_file)(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=5)
        return sink.getvalue()

    return encode


def called(file: BinaryIO) -> Iterator[Any]:
    return map(json.loads, file)


TEXT = pa.schema({"text": pa.string()})
CASES = {
    "jsonl": Case(FORMATS["jsonl"], ".jsonl", in_json),
    "json": Case(FORMATS["json"], ".json", in_array),
    "text": Case(FORMATS["text"], ".txt", in_text, TEXT),
    "csv": Case(FORMATS["csv"], ".csv", delimited(",")),
    "tsv": Case(FORMATS["tsv"], ".tsv", delimited("\t")),
    "cbor": Case(FORMATS["cbor"], ".cbor", in_cbor),
    "parquet": Case(FORMATS["parquet"], ".parquet", by_columns(".parquet")),
    "arrow": Case(FORMATS["arrow"], ".arrow", by_columns(".arrow")),
    "arrow stream": Case(FORMATS["arrow"], ".ipc", by_columns(".ipc")),
    "function": Case(FunctionFormat(called), ".dat", in_json),
}
formats = pytest.mark.parametrize("name", CASES)
forward = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.form.compressed])


@formats
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {"a": st.integers(-9, 9), "b": st.text(st.sampled_from('aé",\t\n '), min_size=1, max_size=6)}
        ),
        max_size=9,
    ),
    st.sampled_from([4, 64, 1 << 20]),
)
@examples(40)
def test_a_format_gives_what_was_written_from_any_position_on(name: str, rows: list[Row], size: int) -> None:
    form, _, encode, schema = case = CASES[name]
    if form.name == "text":
        rows = [row and {**row, "b": row["b"].replace("\n", "")} for row in rows]
    data, good = encode(rows), case.good(rows)
    with small(4, size):
        found = outcome(form, data, schema)
        assert (found.rows, found.skipped, found.error) == (good, rows.count(None), None)
        begun = [number for number, row in enumerate(rows) if row is not None]
        for number, at in enumerate(found.positions):
            again = outcome(form, data, schema, at=at, forward_only=form.compressed and number % 2 == 0)
            bad = rows[begun[number] :].count(None)
            assert again == Outcome(good[number + 1 :], found.positions[number + 1 :], bad, None)
        first = outcome(form, data, schema, "raise")
        count = rows.index(None) if None in rows else len(rows)
        assert first.rows == good[:count]
        assert (first.error or "").startswith(f"shard x, {form.unit} {case.place(rows[:count]):,}: " * (None in rows))
        assert (first.error is None) == (None not in rows)


def read(case: Case, urls: Any, **options: Any) -> bf.Dataset:
    own = {"format": called} if isinstance(case.form, FunctionFormat) else {}
    return bf.from_files(urls, **{**own, **options})


def many(count: int) -> list[Row]:
    return [{"a": number, "b": f"text {number * 7919}"} for number in range(count)]


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        (name, extension)
        for name, case in CASES.items()
        for extension in ("", ".gz", ".zst", ".bz2", ".lz4", ".xz")
        if case.form.compressed or not extension
    ],
)
def test_shards_of_a_format_are_read_and_resumed(tmp_path: Path, name: str, compression: str) -> None:
    case, rows = CASES[name], many(30)
    for number, some in enumerate((rows[:12], [], rows[12:])):
        write(tmp_path / f"{number}{case.ending}{compression}", case.encode(some))

    def make() -> bf.Dataset:
        return read(case, f"{tmp_path}/*", n_active_shards=1)

    assert list(make()) == case.good(rows)
    assert_exact_resume(make, max_resumes=12)
    some = case.schema.names[-1:]
    for schema in (None, case.schema):
        found = read(case, f"{tmp_path}/*", n_active_shards=1, columns=some, schema=schema)
        assert list(found) == [{some[0]: row["b"]} for row in rows if row]


@forward
@pytest.mark.parametrize("extension", [".gz", ".xz"])
def test_a_truncated_archive_is_an_error_after_its_whole_rows(tmp_path: Path, name: str, extension: str) -> None:
    case, rows = CASES[name], many(6_000)
    path = tmp_path / f"a{case.ending}{extension}"
    data = compressed(case.encode(rows), extension)
    path.write_bytes(data[: len(data) * 2 // 3])
    it = read(case, path).iter()
    seen: list[Any] = []
    with pytest.raises(bf.DataError) as error:
        seen.extend(it)
    assert 1_000 < len(seen) < 6_000
    assert seen == case.good(rows)[: len(seen)]
    place = f"shard {path.name}, {case.form.unit} {case.place(rows[: len(seen)]):,}"
    assert str(error.value) == f"{place}: cannot be read on: Truncated compressed stream; the shard is damaged"
    it = read(case, path, on_error="skip").iter()
    assert (list(it), it.stats["skipped"]) == (seen, 1)


@pytest.mark.parametrize("name", ["jsonl", "json", "csv", "tsv", "cbor", "function"])
def test_a_column_that_must_not_be_null_refuses_a_null(name: str) -> None:
    case, rows = CASES[name], many(3)
    assert rows[1] is not None
    rows[1]["a"] = None
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    found = outcome(case.form, case.encode(rows), schema)
    assert (found.rows, found.skipped, found.error) == ([rows[0], rows[2]], 1, None)
    first = outcome(case.form, case.encode(rows), schema, "raise")
    assert first.rows == rows[:1]
    assert first.error == (
        f"shard x, {case.form.unit} {case.place(rows[:1])}: column 'a' is int64 not null by the schema but null here; "
        "say its type in schema=, or leave the column out with columns="
    )


@formats
def test_a_position_beyond_a_shard_is_refused(name: str) -> None:
    case = CASES[name]
    data = case.encode(many(3))
    at = outcome(case.form, data, case.schema).positions[-1]
    for beyond in ((at[0] + 9, *at[1:-2], at[-2] + 9 * (len(at) > 2), at[-1] + 9),):
        with pytest.raises(bf.StateError, match=rf"^shard x, {case.form.unit} {at[-1] + 10}: .*"):
            outcome(case.form, data, case.schema, at=beyond)


@formats
def test_the_rows_before_an_error_are_handed_out_wherever_it_is_met(tmp_path: Path, name: str) -> None:
    case, rows = CASES[name], many(600)
    rows[450] = None
    path = tmp_path / f"a{case.ending}"
    path.write_bytes(case.encode(rows))
    it = read(case, path).iter()
    assert list(islice(it, 450)) == case.good(rows[:450])
    for taken in (it, read(case, path).iter(it.state_dict())):
        with pytest.raises(bf.DataError, match=rf"^shard {path.name}, {case.form.unit} {case.place(rows[:450])}: "):
            next(taken)
    it = read(case, path, on_error="skip").iter()
    list(islice(it, 450))
    rest = read(case, path, on_error="skip").iter(it.state_dict())
    assert list(rest) == case.good(rows[451:])
    assert it.stats["skipped"] + rest.stats["skipped"] == 1  # by whoever took the block that it lies in
