"""Objects come out as they were written, whatever lies between."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.tables.objects import JSON, NestedError, decoded, has_objects, is_json, json_of
from tests.shards import write

texts = st.text(st.sampled_from('az"\\{}[]:,/ \n\x00\x7f\u2028é😀'), max_size=5)
halves = st.sampled_from(["\ud83d", "a\udc00b", "\ud800\ud800"])
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30])
scalars = st.none() | st.booleans() | integers | floats | texts | halves
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | halves, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(texts | halves, values, max_size=4)


def alike(one: Any, other: Any) -> bool:
    """Equal, types and the order of keys included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(alike, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other) and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


@given(values)
def test_what_can_be_json_comes_back_as_it_was(value: Any) -> None:
    (text,) = json_of([value]).to_pylist()
    assert alike(None if text is None else decoded(text), value)


@pytest.mark.parametrize(
    "text",
    [
        "-0",
        "-0.0",
        "1e400",
        "NaN",
        "-Infinity",
        "12345678901234567890123",
        '"\\ud83d"',
        '"\\udc00\\u0000"',
        '{"a":1,"a":2}',
        " [1 , 2.50] ",
        "1.7976931348623157e308",
        "[" * 300 + "]" * 300,
        '{"é":"\\u00e9"}',
        "5e-324",
        "0.1e1",
    ],
)
def test_text_is_read_as_python_reads_it(text: str) -> None:
    found, wanted = decoded(text), json.loads(text)
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize("text", ["", "{", "01", "[1,]", '"\t"', "nul", "{'a': 1}", "1 2", '{"a":}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    with pytest.raises(json.JSONDecodeError):
        decoded(text)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": [1, {"b": b"x"}]}, r"a bytes at a\[1\]\.b$"),
        ([{"day": dt.date(2020, 1, 1)}], r"a date at \[0\]\.day$"),
        ({"a": (1, 2)}, "a tuple at a$"),
        ({"a": {1: 2}}, "the key 1 at a$"),
        ({"a": math.nan}, "nan at a$"),
        ({"a": -math.inf}, "-inf at a$"),
        ({"a": np.zeros(2)}, "a ndarray at a$"),
        ({"a": Decimal(1)}, "a Decimal at a$"),
    ],
)
def test_what_json_would_change_is_a_struct_or_told_with_its_path(value: Any, why: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=why):
        json_of([value])


def test_an_object_that_holds_itself_is_refused() -> None:
    around: dict[str, Any] = {}
    around["a"] = around
    with pytest.raises(NestedError, match="holds itself"):
        json_of([around])


@pytest.mark.parametrize("value", [{}, [{}], [[1], [{"a": 1}]], [None, [[{}]]]])
def test_objects_are_found_in_lists(value: Any) -> None:
    assert has_objects([None, value])


@pytest.mark.parametrize("value", [None, 1, "{}", [], [[1], ["x"]], ({},), np.array([{}])])
def test_other_values_are_no_objects(value: Any) -> None:
    assert not has_objects([value])


# -- on every way through ------------------------------------------------------------------------------------------------


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def of_lines(folder: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    return bf.from_files(write(folder / "a.jsonl", rows))


def of_ascii_or_not(folder: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    try:
        data = "".join(json.dumps(row, ensure_ascii=False, indent=None) + "\n" for row in rows).encode()
    except UnicodeEncodeError:  # half a surrogate pair has no bytes
        return of_lines(folder, rows)
    (folder / "b.jsonl").write_bytes(data)
    return bf.from_files(folder / "b.jsonl", n_active_shards=1)


def of_sequence(_: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    return bf.from_sequence(rows)


def of_iterable(_: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    return bf.from_iterable(rows)


def of_function(folder: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    write(folder / "c.txt", "x\n")
    return bf.from_files(folder / "c.txt", format=lambda _: iter(rows))


SOURCES = [of_lines, of_ascii_or_not, of_sequence, of_iterable, of_function]
WAYS: dict[str, Callable[[bf.Dataset, Path], bf.Dataset]] = {
    "plain": lambda data, _: data,
    "mapped": lambda data, _: data.map(same),
    "by threads": lambda data, _: data.map(same, max_workers=2),
    "as blocks": lambda data, _: data.map_blocks(lambda block: block),
    "filtered": lambda data, _: data.filter(
        lambda sample: isinstance(sample["meta"], dict | list | str | int | float | None)
    ),
    "shuffled": lambda data, _: data.enumerate().shuffle(8, seed=3).map(same),
    "mixed": lambda data, _: bf.concat_datasets([data, bf.from_sequence([{"n": -1, "meta": {}}])]).filter(
        lambda sample: sample["n"] >= 0
    ),
    "cached": lambda data, _: data.cache(),
}


def rows_of(found: list[Any]) -> list[dict[str, Any]]:
    return [{"n": number, "meta": value} for number, value in enumerate(found)]


@given(st.lists(objects | values, min_size=1, max_size=6).map(lambda some: rows_of([{"k": 0}, *some])))
@pytest.mark.parametrize("source", SOURCES)
def test_a_users_function_gets_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, source: Any, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("objects")
    data = source(folder, rows)
    before = copy.deepcopy(rows)
    found = [sample["meta"] for sample in data.map(same)]
    assert all(map(alike, found, [row["meta"] for row in before])), found
    assert alike(rows, before)
    one = iter(data.map(same))
    next(one)
    state = json.loads(json.dumps(one.state_dict()))
    rest = [sample["meta"] for sample in source(folder, rows).map(same).iter(state)]
    assert all(map(alike, rest, [row["meta"] for row in before[1:]]))
    assert len(rest) == len(rows) - 1


ODD = rows_of(
    [{"b": 1, "a": None}, {"a": 2.0, "c": [None, None]}, None, {"a": 2, "z": [1, "y", {"k": 2**64 - 1}]}, "x", [1]]
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_way_keeps_them(tmp_path: Path, source: Any, way: str) -> None:
    data = WAYS[way](source(tmp_path, ODD), tmp_path)
    found = sorted(data, key=lambda sample: sample["n"])
    assert all(map(alike, [sample["meta"] for sample in found], [row["meta"] for row in ODD]))
    for served in range(1, len(ODD)):
        it = iter(data)
        for _ in range(served):
            next(it)
        again = list(WAYS[way](source(tmp_path, ODD), tmp_path).iter(json.loads(json.dumps(it.state_dict()))))
        rest = list(it)
        assert repr([sample["meta"] for sample in again]) == repr([sample["meta"] for sample in rest])


def test_processes_stores_and_parquet_keep_them(tmp_path: Path) -> None:
    wanted = [row["meta"] for row in ODD]
    data = bf.from_sequence(ODD)
    found = list(data.map(same, max_workers=1, executor_type="process"))
    assert all(map(alike, [sample["meta"] for sample in found], wanted))
    data.to_store(tmp_path / "store")
    stored = bf.from_store(tmp_path / "store")
    assert all(map(alike, [sample["meta"] for sample in stored], wanted))
    assert alike(stored[3]["meta"], wanted[3])
    table = pa.table({"n": range(len(ODD)), "meta": json_of(wanted)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        found = list(bf.from_files(tmp_path / name))
        assert all(map(alike, [sample["meta"] for sample in found], wanted)), name
    assert all(map(alike, [sample["meta"] for sample in bf.from_sequence(table)], wanted))


def test_batches_have_a_list_of_them() -> None:
    (batch,) = bf.from_sequence([{"input_ids": [1], **row} for row in ODD]).batch(6)
    assert all(map(alike, batch["meta"], [row["meta"] for row in ODD]))


def test_json_of_datasets_stays_json_at_any_depth() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "a": datasets.Json(),
            "b": {"x": datasets.Json(), "y": datasets.Value("int64")},
            "c": datasets.List(datasets.Json()),
        }
    )
    rows = [
        {"a": {"x": 1, "y": None}, "b": {"x": [1, "a"], "y": 1}, "c": [1, {"z": 2.0}]},
        {"a": {"x": "s"}, "b": {"x": None, "y": 2}, "c": []},
    ]
    table = datasets.Dataset.from_list(rows, features=features)
    for data in (bf.from_sequence(table), bf.from_iterable(table.to_iterable_dataset())):
        assert all(map(alike, data, rows))
        it = iter(data.sliding_window(2))
        assert next(it)["a"] == [row["a"] for row in rows]


# -- what asks for other types -------------------------------------------------------------------------------------------


def test_a_schema_asks_for_structs_or_for_json(tmp_path: Path) -> None:
    rows = [{"m": {"a": 1}, "v": [1, "x"]}, {"m": {"a": 2.5, "b": None}, "v": 2**70}]
    url = write(tmp_path / "a.jsonl", rows)
    struct = pa.struct({"a": pa.float64(), "b": pa.string()})
    schema = {"m": struct, "v": "json"}
    wanted = [{"m": {"a": 1.0, "b": None}, "v": [1, "x"]}, {"m": {"a": 2.5, "b": None}, "v": 2**70}]
    assert list(bf.from_files(url, schema=schema)) == wanted
    assert list(bf.from_iterable(rows, schema=schema)) == wanted
    assert list(bf.from_iterable(rows, schema=schema).map(same, schema=schema)) == wanted
    assert list(bf.from_dataset(rows, schema=schema)) == wanted
    assert list(bf.from_iterable(rows, schema=schema).flat_map(lambda row: [row], schema=schema)) == wanted
    assert list(bf.from_iterable(rows, schema=schema).filter_map(same, schema=schema)) == wanted
    scanned = bf.from_iterable(rows, schema=schema).scan(lambda carry, row: (carry, row), 0, schema=schema)
    assert list(scanned) == wanted
    with pytest.raises(TypeError, match="schema takes pyarrow's types"):
        bf.from_iterable(rows, schema={"m": "struct"})
    with pytest.raises(ValueError, match="schema= is for samples that become rows"):
        bf.from_dataset(rows, schema=schema, collate_fn=list)


def test_a_schema_holds_for_a_column_that_is_null_for_long() -> None:
    rows = [{"s": None if number < 1_000 else "a"} for number in range(1_002)]
    with pytest.raises(bf.StageError, match=r"null in the first 1,000 rows.*schema= \('s': pa\.string\(\)\)"):
        list(bf.from_iterable(rows))
    data = bf.from_iterable(rows, schema={"s": pa.string()})
    assert [sample["s"] for sample in data][-3:] == [None, "a", "a"]
    it = iter(data.map(same, schema={"s": pa.string()}))
    for _ in range(1_001):
        next(it)
    again = bf.from_iterable(rows, schema={"s": pa.string()}).map(same, schema={"s": pa.string()})
    assert list(again.iter(it.state_dict())) == [{"s": "a"}]
    with pytest.raises(bf.StageError, match="key 't' is not in the schema"):
        list(bf.from_iterable([{"t": 1}], schema={"s": pa.string()}))


def test_structs_and_json_together_are_json(tmp_path: Path) -> None:
    pq.write_table(pa.table({"m": [{"a": 1, "b": None}]}), tmp_path / "a.parquet")
    structs = bf.from_files(tmp_path / "a.parquet")
    mixed = bf.concat_datasets([structs, bf.from_sequence([{"m": {"a": "x"}}])])
    assert list(mixed) == [{"m": {"a": 1, "b": None}}, {"m": {"a": "x"}}]
    assert list(structs) == [{"m": {"a": 1, "b": None}}]
    times = bf.from_sequence(pa.table({"m": pa.array([{"a": dt.datetime(2020, 1, 1)}])}))
    with pytest.raises(bf.DataError, match="column 'm' is json in data set 1 and struct"):
        list(bf.concat_datasets([times, bf.from_sequence([{"m": {"a": "x"}}])]))


def test_what_json_would_change_is_a_struct_as_a_whole() -> None:
    (one, two) = bf.from_sequence([{"m": {"a": b"x"}}, {"m": {"b": 1}}])
    assert (one, two) == ({"m": {"a": b"x", "b": None}}, {"m": {"a": None, "b": 1}})
    rows = [{"m": {"a": 1}}] * 40 + [{"m": {"a": b"x"}}]
    with pytest.raises(
        bf.StageError, match=r"row 40: column 'm' is json by the schema but .*JSON has no equal for a bytes at a"
    ):
        list(bf.from_iterable(rows))


def test_columns_that_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1, "m": {"a": "\\ud83d"}}\n{"n": 2, "m": [NaN, {"x": 1e999}]}\n')
    assert [sample["n"] for sample in bf.from_files(tmp_path / "a.jsonl", columns=["n"])] == [1, 2]
    one, two = bf.from_files(tmp_path / "a.jsonl")
    assert one["m"] == {"a": "\ud83d"}
    assert repr(two["m"]) == "[nan, {'x': inf}]"


def test_the_type_is_in_words_and_in_states() -> None:
    data = bf.from_sequence([{"m": {"a": 1}}]).map(same)
    it = iter(data)
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    assert "json" in json.dumps(state)
    assert "m: json" in repr(data)
    assert is_json(JSON)


def test_a_column_that_is_null_for_long_has_the_type_of_what_was_read() -> None:
    rows = [{"s": None if number < 1_500 else "a", "n": number} for number in range(1_502)]
    source = bf.from_iterable(rows, schema={"s": pa.string(), "n": pa.int64()})
    assert list(source.map(same))[-1] == {"s": "a", "n": 1_501}
    it = iter(source.map(same).filter_map(same))
    for _ in range(1_200):
        next(it)
    assert list(source.map(same).filter_map(same).iter(it.state_dict())) == rows[1_200:]
    with pytest.raises(
        bf.StageError, match=r"column 't' is null .* say it in this method's own schema= \('t': pa\.string\(\)\)"
    ):
        list(source.map(lambda row: {"t": row["s"]}))


def test_text_of_json_is_asked_for_where_it_is_tokenized() -> None:
    data = bf.from_sequence([{"text": {"a": 1}}])
    with pytest.raises(bf.DataError, match=r"column 'text' must be text \(got json; .*schema=\{'text': 'string'\}"):
        list(data.tokenize(lambda texts: [[1] for _ in texts]))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value", ["itself", nested(20_000), {"b": b"", "a": nested(20_000)}], ids=["itself", "deep", "bytes"]
)
def test_what_arrow_would_die_of_is_an_error(value: Any) -> None:
    if value == "itself":
        value = {}
        value["a"] = value
    rows = [{"id": 1, "meta": value}]
    for data in (bf.from_sequence(rows), bf.from_iterable(rows), bf.from_sequence([{"id": 1}]).map(lambda _: rows[0])):
        with pytest.raises(
            bf.StageError, match=r"nested too deeply, or holds itself|JSON has no equal for a bytes at b"
        ):
            list(data)
    deep = [{"meta": nested(400)}]
    assert list(bf.from_sequence([{"id": 1}]).map(lambda _: deep[0])) == deep


def test_lines_that_python_cannot_read_are_skipped_or_told(tmp_path: Path) -> None:
    bad = [
        b'{"m": {"a": ' + b"1" * 5_000 + b"}}",
        b'{"m": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
        b'{"\\ud800": 1, "m": {}}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([b'{"m": {"a": 1}}'] * 1_100 + [*bad, b'{"m": 2}']))
    it = bf.from_files(tmp_path / "a.jsonl", on_error="skip").iter()
    assert len(list(it)) == 1_101
    assert it.stats.skipped == 3
    for line, words in zip(bad, ("4300 digits", "nested too deeply", "a key has half a surrogate pair")):
        (tmp_path / "b.jsonl").write_bytes(b'{"m": {"a": 1}}\n' + line)
        with pytest.raises(bf.DataError, match=rf"line 2: .*{words}"):
            list(bf.from_files(tmp_path / "b.jsonl"))


@pytest.mark.parametrize("name", ['height (")', "back\\slash", "a\tb", "", "é\u2028"])
def test_columns_may_have_any_name(tmp_path: Path, name: str) -> None:
    rows = [{name: {"a": number}, "n": 0.5} for number in range(3)]
    url = write(tmp_path / "a.jsonl", rows)
    assert list(bf.from_files(url)) == rows
    with open(url, "a") as file:
        file.write('{"n": }\n')
    assert list(bf.from_files(url, on_error="skip")) == rows


def test_what_a_file_gives_a_function_may_give_back(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": {"a": 1}}\n' * 40 + '{"v": {"a": NaN, "b": -Infinity}}\n')
    data = bf.from_files(tmp_path / "a.jsonl")
    assert repr(list(data.map(same))) == repr(list(data))


def test_other_kinds_of_dicts_are_objects_too() -> None:
    rows = [{"m": OrderedDict(count=2)}, {"m": Counter("a")}, {"m": {"x": np.float64(0.5), "k": {}}}]
    assert list(bf.from_sequence(rows)) == [{"m": {"count": 2}}, {"m": {"a": 1}}, {"m": {"x": 0.5, "k": {}}}]
