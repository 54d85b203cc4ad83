"""Files that are one JSON array, or an object around one, are read element by element, as json reads them whole."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources.bytes import LocalFile
from brimful.sources.json_array import JsonArray, elements_of
from brimful.testing import assert_exact_resume
from tests.damage import outcome
from tests.effort import times
from tests.shards import compressed
from tests.strategies import small

ROWS = [{"id": id, "text": f'"{id}",\n[{{\\' * (id % 4)} for id in range(90)]
SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.list_(pa.string())})


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("form", ["auto", "json"])
def test_an_array_is_read_and_resumed_however_it_is_laid_out(
    tmp_path: Path, indent: int | None, ending: str, form: str
) -> None:
    for number in range(2):
        content: Any = ROWS[number::2]
        if form == "json" and number:
            content = {"version": 1, "data": content, "other": [{"x": "]"}]}
        data = b"\xef\xbb\xbf" * number + f" \n{json.dumps(content, indent=indent)}\n".encode()
        (tmp_path / f"{number}.json{ending}").write_bytes(compressed(data, ending))

    def make() -> bf.Dataset:
        return bf.from_files(f"{tmp_path}/*", format=form)

    with small(8, 64):
        assert list(make()) == ROWS
        assert_exact_resume(make, max_resumes=8)


def test_objects_in_elements_stay_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        {"id": 2**63 + id, "meta": {"b": 2.0 if id % 2 else 2, "a": [None, {"\n": '"]},{'}][: id % 3]}}
        for id in range(9)
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a.json", "a.jsonl"):
        seen = bf.from_files(tmp_path / name).map(lambda row: {"text": json.dumps(row)})
        assert [row["text"] for row in seen] == [json.dumps(row) for row in rows]


def test_an_extension_alone_tells_an_array_from_lines_by_its_first_character(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, rows in (
        ('{"a": 1}\n{"a": 2}\n', [1, 2]),
        (' \n[{"a": 3},{"a": 4}]', [3, 4]),
        ("[]", []),
        ("", []),
    ):
        path.write_text(text)
        assert [row["a"] for row in bf.from_files(path)] == rows
    path.write_text('{"a": 1}\n{"a": x}\n')
    with pytest.raises(bf.DataError, match=r"^shard a\.json, line 2: "):
        list(bf.from_files(path))


@pytest.mark.parametrize(
    ("text", "rows", "message"),
    [
        ('[{"a": 1}, 5, {"a": 2}]', 1, "element 2: an element must be an object (got int)"),
        ('[{"a": 1}, {"a": x}]', 1, "element 2: invalid JSON: Expecting value at column 7"),
        ('[{"a": 1}, {"a": "1"}]', 1, "element 2: column 'a' is int64"),
        ('[{"a": 1}, {"a": "\udcff"}]', 1, "element 2: invalid UTF-8: byte 0xff at byte 7 of the element"),
        ('[{"a": 1},]', 1, "element 2: invalid JSON: Expecting value at column 1"),
        ('[{"a": 1} {"a": 2}]', 0, "element 1: invalid JSON: Extra data"),
        ('[{"a": 1}, {"a": 2}', 1, "element 2: the array does not end: the shard ends after byte 19; it was not"),
        ('[{"a": 1}, {"a": 2}} ', 1, "element 2: a } at byte 19 closes what is a [; the shard is damaged"),
        ('[{"a": 1}] [{"a": 1}]', 1, "element 2: more follows after the end of the array, at byte 11; write one"),
        ("", 0, 'element 1: a JSON file holds an array of objects, or {"data": [...]}, but this one is empty'),
        ("7", 0, "element 1: a JSON file holds an array of objects, "),
        ('{"a": 1}\n{"a": 2}', 0, 'element 1: there is no array under "data": the file is one object with "a"'),
        ('{"n": 1, "data": [{"a": 1}]', 1, "element 2: the object around the array does not end as it should"),
        (
            '{"rows": [{"a": 1}], "more": []}',
            0,
            'element 1: there is no array under "data": the file is one object with "rows",',
        ),
        ('{"data": [{"a": 1}], "data": []}', 1, 'element 2: the object has "data" twice; join them in one array'),
        ('{"n": 1', 0, "element 1: the object does not end: the shard ends after byte 7"),
    ],
)
def test_an_error_has_the_file_and_the_number_of_the_element(
    tmp_path: Path, text: str, rows: int, message: str
) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    it = bf.from_files(path, format="json", schema={"a": pa.int64()}).iter()
    assert [row["a"] for row in islice(it, rows)] == [1] * rows
    with pytest.raises(bf.DataError) as error:
        next(it)
    assert str(error.value).startswith(f"shard a.dat, {message}")


def test_an_edited_array_is_refused_by_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS))
    with small(4, 64):
        it = bf.from_files(path).iter()
        list(islice(it, 40))
        path.write_text(json.dumps([{"id": 0, "text": "x" * 60}, *ROWS])[: path.stat().st_size])
        with pytest.raises(
            bf.StateError, match=r"^shard a\.json, element \d+: no element ends at byte [\d,]+, where this"
        ):
            list(bf.from_files(path).iter(it.state_dict()))


def test_a_file_is_not_held_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "x" * 1_000}] * 30_000))
    with LocalFile(str(path)) as file:
        tracemalloc.start()
        try:
            assert sum(len(some.ends) for some in elements_of(file, 0, b"[")) == 30_000
            assert tracemalloc.get_traced_memory()[1] < 12_000_000 < path.stat().st_size
        finally:
            tracemalloc.stop()


def some_text(rng: random.Random) -> str:
    return "".join(rng.choices(['"', "\\", "[", "]", "{", "}", ",", "\n", "é", "x", " ", '":'], k=rng.randint(0, 6)))


def some_json(rng: random.Random, value: Any) -> str:
    separators = rng.choice([None, (",", ":"), (" \n,\t", " :\r\n")])
    return json.dumps(value, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5, separators=separators)


def is_row(value: Any) -> bool:
    kinds = {"a": int, "b": str, "c": list}
    return isinstance(value, dict) and all(
        key in kinds and (one is None or type(one) is kinds[key]) for key, one in value.items()
    )


def test_random_arrays_whole_and_damaged_are_what_json_says(caplog: pytest.LogCaptureFixture) -> None:
    """Of 10^4 others, none was another."""
    rng, form = random.Random(44), JsonArray()
    for _ in range(times(300, 10_000)):
        values = [("a", rng.randint(-9, 9)), ("b", some_text(rng)), ("c", [some_text(rng), some_text(rng)])]
        rows = [dict(rng.sample(values, rng.randint(0, 3))) for _ in range(rng.randint(0, 6))]
        data = some_json(rng, rows).encode()
        place, byte = rng.randrange(len(data)), bytes([rng.choice(b'[]{},:" \\\nx0')])
        head, rest = data[:place], data[place + rng.randint(0, 1) :]
        data = rng.choice([data, data, head, head + byte + rest, data + rng.choice([b"x", b" ]", b"\n"])])
        try:
            whole = json.loads(data)
        except ValueError:
            whole = None
        with small(4, rng.choice([4, 16, 64, 1 << 18])):
            found = outcome(form, data, SCHEMA)
            if isinstance(whole, list):
                good = [{name: row.get(name) for name in SCHEMA.names} for row in whole if is_row(row)]
                assert (found.rows, found.skipped, found.error) == (good, len(whole) - len(good), None), data
            else:
                assert outcome(form, data, SCHEMA, "raise").error is not None, data
            for number, at in enumerate(found.positions):
                again = outcome(form, data, SCHEMA, at=at, forward_only=number % 2 == 0)
                assert again[:2] == (found.rows[number + 1 :], found.positions[number + 1 :]), data
                assert again.error == found.error, data


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_rows_are_under_data_wherever_it_stands(tmp_path: Path, on_error: Any) -> None:
    text = '{"authors": [{"name": "x"}, [2]], "columns": ["a"], "data": [{"a": 1}, {"a": 2}], "errors": []}'
    (tmp_path / "a.json").write_text(text)
    assert list(bf.from_files(tmp_path / "a.json", format="json", on_error=on_error)) == [{"a": 1}, {"a": 2}]
