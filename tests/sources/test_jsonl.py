from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.plan.errors import DataError
from brimful.sources import jsonl
from brimful.sources.forward import Records
from brimful.sources.jsonl import JsonLines, decode, types_of_lines
from brimful.tables.objects import values_in
from tests.shards import write

ADD = "name it in schema=, or leave the column out with columns="
INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()


def lines(data: bytes) -> Records[bytes]:
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 10) + 1
    ends = ends if data.endswith(b"\n") else np.append(ends, len(data))
    return Records(0, data, ends, np.ones_like(ends))


def parse(data: bytes, schema: pa.Schema, closed: bool = True) -> tuple[list[Any], list[int], list[tuple[int, str]]]:
    parsed = JsonLines(schema, closed).parse(lines(data))
    assert parsed.block.num_rows == len(parsed.records)
    names_and_types = (parsed.block.schema.names, parsed.block.schema.types)
    assert not parsed.block.num_rows or names_and_types == (schema.names, schema.types)
    columns = map(values_in, parsed.block.columns)
    found = [dict(zip(schema.names, row)) for row in zip(*columns)] if schema.names else [{} for _ in parsed.records]
    return found, parsed.records.tolist(), parsed.errors


texts = st.text(st.sampled_from('az"\\{}[]:, \n\x00\ud800é😀'), max_size=4)
numbers = st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, 2**64, 0.5, -0.0, 1e300, math.inf, math.nan])
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
    max_leaves=4,
)
steady = st.fixed_dictionaries(
    {"a": st.integers(0, 9), "b": st.lists(st.integers(0, 9), max_size=2)},
    optional={"c": st.fixed_dictionaries({}, optional={"p": st.just("x"), "q": st.booleans()})},
)
rows = st.lists(steady, max_size=8) | st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=8)
junk = st.sampled_from(
    [
        b"null",
        b"{}",
        b"[]",
        b" ",
        b"\r",
        b"{}{}",
        b'{"a":1}null{"a":2}',
        b'{"a":',
        b"1}",
        b'{"a":"\xff"}',
        b'{"a":1,"a":2}',
    ]
)


@given(rows, st.lists(st.tuples(st.integers(0, 8), junk), max_size=2), st.booleans(), st.sampled_from([None, ("a",)]))
@example([], [(0, b"null")], True, None)  # alone, Arrow crashes on it
@example([{"b": ["\ud800"]}], [], False, ("a",))
@example(
    [{"a": 1}], [(1, b'{"a":'), (2, b"1}"), (0, b"{}{}")], True, None
)  # as many objects as lines, but not one each
def test_what_a_line_gives_does_not_depend_on_the_lines_around_it(
    found: list[dict[str, Any]], odd: list[tuple[int, bytes]], ascii: bool, columns: tuple[str, ...] | None
) -> None:
    encoded = [json.dumps(row, ensure_ascii=ascii).encode("utf-8", "surrogatepass") for row in found]
    for place, line in odd:
        encoded.insert(place, line)
    schema = types_of_lines([{"a": 0}, *found[:4]], columns, "shard x")
    together = parse(b"\n".join(encoded) + b"\n", schema, closed=columns is None)
    alone: tuple[list[Any], list[int], list[tuple[int, str]]] = ([], [], [])
    for number, line in enumerate(encoded):
        parsed, good, errors = parse(line + b"\n", schema, closed=columns is None)
        alone[0].extend(parsed)
        alone[1].extend([number] * len(good))
        alone[2].extend((number, message) for _, message in errors)
        assert len(good) + len(errors) == bool(line.strip())
        assert all(message for _, message in errors)
        for row in parsed:
            same(row, json.loads(line.decode("utf-8", "replace")))  # columns that are not taken may be no UTF-8
    assert repr(together) == repr(alone)


def same(made: Any, given: Any) -> None:
    """What Arrow made of a value is the value: but for a float made of an integer, and keys that are absent."""
    if isinstance(made, float) and not isinstance(given, bool):
        assert made == float(given) or (math.isnan(made) and math.isnan(given))
    elif isinstance(made, dict):
        for name in made:
            same(made[name], (given or {}).get(name))
    elif isinstance(made, list):
        assert len(made) == len(given)
        for one, other in zip(made, given):
            same(one, other)
    else:
        assert type(made) is type(given)
        assert made == given


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "invalid JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"a": "x', "invalid JSON: Unterminated string starting at column 7"),
        (b'{"a": 1}{"a": 2}', "invalid JSON: Extra data at column 9"),
        (b'{"a": 1} {"a": 2}', "invalid JSON: Extra data at column 10"),
        (b'{"a": 1}\r{"a": 2}', "invalid JSON: Extra data at column 10"),
        (b'{"t": "\xff"}', "invalid UTF-8: byte 0xff at byte 7 of the line"),
        (b'{"\xff": 1}', "invalid UTF-8: byte 0xff at byte 2 of the line"),
        (b"null", "a line must hold an object (got NoneType)"),
        (b"[1]", "a line must hold an object (got list)"),
        (b'{"a": 1, "a": 2}', "JSON parse error: Column(/a) was specified twice"),
        (
            b'{"t": "\\ud800"}',
            "column 't' is string by the schema but text with half a surrogate pair here (it was cut within a character; "
            "on_error='skip' leaves such rows out); say its type in schema= ('t': 'json')",
        ),
        (b'{"a": "1"}', "column 'a' is int64 by the schema but string here"),
        (b'{"a": 1.5}', "column 'a' is int64 by the schema but double here"),
        (b'{"a": true}', "column 'a' is int64 by the schema but bool here"),
        (
            b'{"a": 9223372036854775808}',
            "column 'a' is int64 by the schema but an integer here (9,223,372,036,854,775,808 is beyond int64)",
        ),
        (b'{"t": 1}', "column 't' is string by the schema but int64 here"),
        (b'{"s": {"p": 1, "z": 2}}', "key 'z' of column 's' is not in the schema (struct<p: int64>); name it in"),
        (b'{"z": 1}', "key 'z' is not in the schema (a, t, s), which the first 1,000 rows decide"),
        (
            b'{"a": ' + b"9" * 5_000 + b"}",
            "invalid JSON: Exceeds the limit (4300 digits) for integer string conversion",
        ),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid JSON: nested too deeply"),
    ],
)
def test_a_bad_line_is_told_why_and_leaves_its_neighbours(line: bytes, message: str) -> None:
    schema = pa.schema([("a", INT), ("t", TEXT), ("s", pa.struct([("p", INT)]))])
    good = b'{"a": 1, "t": "x", "s": null}'
    parsed, records, errors = parse(b"\n".join([good, line, good]), schema)
    assert parsed == [{"a": 1, "t": "x", "s": None}] * 2
    assert records == [0, 2]
    assert [number for number, _ in errors] == [1]
    assert errors[0][1].startswith(message)


def test_keys_inside_of_a_column_are_never_left_out_silently() -> None:
    schema = pa.schema([("s", pa.list_(pa.struct([("p", INT)])))])
    data = b'{"s": [{"p": 1}], "other": {"x": 1}}\n{"s": [{"p": 1, "q": 2}]}\n'
    parsed, records, errors = parse(data, schema, closed=False)
    assert (parsed, records) == ([{"s": [{"p": 1}]}], [0])
    assert errors == [(1, "key 'q' of column 's[]' is not in the schema (struct<p: int64>); " + ADD)]


def test_blank_lines_give_no_rows_and_keep_their_numbers() -> None:
    data = b'\n\r\n  \t\n{"a": 1}\r\n\n {"a": 2} \n\r'
    assert parse(data, pa.schema([("a", INT)])) == ([{"a": 1}, {"a": 2}], [3, 5], [])
    assert parse(b'\n{"a": 1}\r\n\r\n', pa.schema([("a", INT)])) == ([{"a": 1}], [1], [])


def test_rows_without_any_key_are_rows() -> None:
    parsed = JsonLines(pa.schema([]), closed=True).parse(lines(b"{}\n{}\n \n{}"))
    assert (parsed.block.num_rows, parsed.records.tolist()) == (3, [0, 1, 3])


@pytest.mark.parametrize(
    ("kind", "line", "value"),
    [
        (pa.int32(), b'{"a": 5}', 5),
        (pa.float32(), b'{"a": 0.5}', 0.5),
        (pa.float64(), b'{"a": 1e20}', 1e20),
        (pa.large_string(), b'{"a": "x"}', "x"),
        (pa.binary(), b'{"a": "x"}', b"x"),
        (pa.list_(pa.uint8()), b'{"a": [255]}', [255]),
    ],
)
def test_a_given_type_is_taken(kind: pa.DataType, line: bytes, value: Any) -> None:
    for data in (line, line + b"\n\n ", b"\n".join([line, b"{}"])):
        assert parse(data, pa.schema([("a", kind)]))[0][0] == {"a": value}


def test_a_type_that_json_cannot_give_is_refused_at_construction() -> None:
    message = (
        r"^schema= has a type that JSON lines cannot give: JSON conversion to large_list<item: int32> is not supported"
    )
    with pytest.raises(ValueError, match=message):
        JsonLines(pa.schema([("a", pa.large_list(pa.int32()))]), closed=True)


@pytest.mark.parametrize("line", [b"\xff", b"{", b"1", b"[" * 100_000])
def test_what_is_no_object_is_a_data_error(line: bytes) -> None:
    with pytest.raises(DataError):
        decode(line)


F32 = pa.float32()


@pytest.mark.parametrize(
    ("kind", "fine", "bad"),
    [
        (pa.float64(), ["9007199254740992", "1e300", "-0.5"], "9007199254740993"),
        (F32, ["16777216", "3e38"], "-16777217"),
        (pa.list_(pa.float64()), ["[1, 9007199254740992]"], "[1, 9007199254740993]"),
        (pa.list_(F32), ["[0.5, 16777216]"], "[0.5, 16777217]"),
        (pa.struct({"b": pa.list_(pa.float64())}), ['{"b": [0.5, 1e300]}'], '{"b": [9007199254740993]}'),
    ],
)
def test_an_integer_that_a_float_would_round_is_refused_with_its_line(
    tmp_path: Path, kind: pa.DataType, fine: list[str], bad: str
) -> None:
    values = [*fine, bad, fine[0]]
    url = write(
        tmp_path / "a.jsonl", "".join(f'{{"x": {value}, "id": {id}}}\n' for id, value in enumerate(values)).encode()
    )
    schema = {"x": kind, "id": pa.int64()}
    skipping = bf.from_files(url, schema=schema, on_error="skip")
    assert [row["id"] for row in skipping] == [*range(len(fine)), len(fine) + 1]
    here = f"the integer {bad}, which it would round," if pa.types.is_floating(kind) else ".*"
    message = rf"^shard a.jsonl, line {len(fine) + 1}: column 'x' is {re.escape(str(kind))} by the schema but {here} here; say"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(url, schema=schema))
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(url, schema=schema, columns=["x"]))


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    own = getattr(owner, name)

    def called(*args: Any) -> Any:
        calls.append(args)
        return own(*args)

    monkeypatch.setattr(owner, name, called)
    return calls


def test_objects_are_cut_out_of_lines_without_pythons_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"n": number, "m": {"a": number if number % 3 else "x"}} for number in range(3_000)]
    url = write(tmp_path / "a.jsonl", rows)
    calls = counted(monkeypatch, jsonl, "decode")
    assert list(bf.from_files(url)) == rows
    assert len(calls) == 1_000  # which show the types


BAD_LINES = [
    b'{"n": 1, "t": }',
    b'{"n": "x", "t": "y"}',
    b'{"n": 1, "t": "\\ud83d"}',
    b'{"n": 1, "t": "y", "x": 9007199254740993}',
    b"[1]",
]


@pytest.mark.parametrize("bad", BAD_LINES)
def test_lines_around_bad_ones_are_parsed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes) -> None:
    good = [json.dumps({"n": number, "t": "x", "x": 0.5}).encode() for number in range(4_000)]
    lines = [bad if number % 100 == 99 else line for number, line in enumerate(good)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    calls = counted(monkeypatch, JsonLines, "_read")
    it = bf.from_files(tmp_path / "a.jsonl", on_error="skip").iter()
    assert [sample["n"] for sample in it] == [number for number in range(4_000) if number % 100 != 99]
    assert it.stats.skipped == 40
    assert len(calls) < 8  # a trial, and a parse, for each of the file's two or three buffers


def test_floats_too_long_for_integers_are_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": 10**9 + number, "x": number * 1e20 + 0.5} for number in range(3_000)]
    url = write(tmp_path / "a.jsonl", rows)
    calls = counted(monkeypatch, jsonl, "decode")
    assert list(bf.from_files(url)) == rows
    assert len(calls) == 1_000
    (tmp_path / "b.jsonl").write_text('{"x": 1.5}\n' * 1_100 + '{"x": 9007199254740993}\n')
    with pytest.raises(DataError, match=r"line 1,101: .* the integer 9007199254740993, which it would round"):
        list(bf.from_files(tmp_path / "b.jsonl"))


def test_objects_that_only_python_reads_are_parsed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"n": number, "m": {"a": [number] if number % 10 else "\ud83d"}} for number in range(4_000)]
    url = write(tmp_path / "a.jsonl", rows)
    calls = counted(monkeypatch, JsonLines, "_joined")
    assert list(bf.from_files(url)) == rows
    assert len(calls) < 12


def test_a_rounded_integer_is_told_beside_a_text_that_is_a_time_by_the_schema(tmp_path: Path) -> None:
    lines = ['{"d": "2024-01-01", "x": 0.5}', '{"d": "2024-01-01", "x": 9007199254740993}']
    for some in (lines, lines[1:], [*lines, '{"d": 1}']):
        (tmp_path / "a.jsonl").write_text("\n".join(some))
        with pytest.raises(DataError, match="the integer 9007199254740993, which it would round"):
            list(bf.from_files(tmp_path / "a.jsonl", schema={"d": pa.timestamp("s"), "x": pa.float64()}))


def test_a_rounded_integer_changes_nothing_for_large_floats_beside_it() -> None:
    schema = pa.schema({"x": pa.float32()})
    alone = parse(b'{"x": 1.5e300}', schema)[0]
    assert parse(b'{"x": 1.5e300}\n{"x": 9007199254740993}', schema)[0] == alone


def test_a_bad_line_after_one_that_only_python_reads_is_told_with_its_place(tmp_path: Path) -> None:
    """The line of half a surrogate pair is parsed alone; what follows the bad one is not parsed at all."""
    good = [b'{"x": 0.5, "m": {}}'] * 1_002
    odd = [b'{"x": 0.5, "m": {"a": "\\ud83d"}}', b'{"x": 0.5, "m": {}}', b'{"x": 9007199254740993, "m": {}}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good, *odd, *good]))
    it = bf.from_files(tmp_path / "a.jsonl").iter()
    found = [next(it) for _ in range(1_004)]
    assert [sample["m"] for sample in found[1_001:]] == [{}, {"a": "\ud83d"}, {}]
    with pytest.raises(DataError, match=r"line 1,005: .* the integer 9007199254740993, which it would round"):
        next(it)
