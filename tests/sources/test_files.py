from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources.compressed import MAGIC_BYTES
from brimful.sources.format import Parsed
from brimful.sources.formats import FORMATS
from brimful.sources.forward import Records
from brimful.sources.jsonl import JsonLines
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.shards import compressed, threads_left, watched, write, write_table

BOM = b"\xef\xbb\xbf"
ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst"]


def ids(dataset: bf.Dataset) -> list[int]:
    return [sample["id"] for sample in dataset]


def numbered(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"text {number}"} for number in range(first, first + count)]


# -- formats and names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [*ENDINGS, ".ndjson", ".json", ".jsonl.bz2", ".jsonl.lz4", ".jsonl.xz"])
def test_json_lines_are_read_by_their_extension(tmp_path: Path, ending: str) -> None:
    rows = [{"id": 1, "text": "é\u2028😀", "tokens": [1, 2], "nested": {"a": [1.5]}, "none": None}]
    write(tmp_path / f"a{ending}", rows)
    sample = next(bf.from_files(f"{tmp_path}/*").iter())
    assert {**sample, "tokens": sample["tokens"].tolist()} == rows[0]
    assert sample["tokens"].dtype == "int64"


def test_text_gives_a_row_a_line_blank_ones_too(tmp_path: Path) -> None:
    url = write(tmp_path / "a.txt", BOM + "one\r\n\n  two \nthrée\r\r\n\ud7ff".encode())
    assert [sample["text"] for sample in bf.from_files(url)] == ["one", "", "  two ", "thrée\r", "\ud7ff"]
    assert_exact_resume(lambda: bf.from_files(url))


def test_invalid_utf8_in_text_is_an_error_with_file_and_line_or_is_skipped(tmp_path: Path) -> None:
    url = write(tmp_path / "a.txt", b"one\ntw\xff\nthree\n")
    it = bf.from_files(url).iter()
    assert next(it) == {"text": "one"}
    with pytest.raises(bf.DataError, match=r"^shard a\.txt, line 2: invalid UTF-8: byte 0xff at byte 2$"):
        next(it)
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["text"] for sample in it] == ["one", "three"]
    assert it.stats["skipped"] == 1


def test_a_format_that_is_given_goes_before_the_extension(tmp_path: Path) -> None:
    url = write(tmp_path / "a.data", b'{"id": 1}\n')
    assert list(bf.from_files(url, format="jsonl")) == [{"id": 1}]
    assert list(bf.from_files(url, format="text")) == [{"text": '{"id": 1}'}]


def test_types_of_python_are_no_schema(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"^schema takes pyarrow's types by column, as \{'id': pa\.int64\(\), 'meta': 'json'\}: "
    ):
        bf.from_files(tmp_path / "a.jsonl", schema={"id": int})  # type: ignore[dict-item]


def test_an_extension_that_says_nothing_is_refused_before_the_first_row(tmp_path: Path) -> None:
    urls = [write(tmp_path / "a.jsonl", numbered(0, 5)), write(tmp_path / "b.data.gz", b"")]
    message = r"^the name of .*/b\.data\.gz does not show its format. Give format= \(jsonl, json, text, "
    with pytest.raises(ValueError, match=message):
        next(bf.from_files(urls, n_active_shards=1, n_standby_shards=0).iter())


def test_files_are_named_by_paths_braces_and_globs(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", numbered(number, 1))
    assert ids(bf.from_files(tmp_path / "1.jsonl")) == [1]
    assert ids(bf.from_files([f"{tmp_path}/{{1..2}}.jsonl", tmp_path / "0.jsonl"], n_active_shards=1)) == [1, 2, 0]
    assert ids(bf.from_files(f"{tmp_path}/*.jsonl", n_active_shards=1)) == [0, 1, 2]


def test_settings_are_checked_at_construction() -> None:
    for wrong, message in (
        ({"n_active_shards": 0}, "^n_active_shards must be at least 1 shard (got 0)$"),
        ({"n_standby_shards": -1}, "^n_standby_shards must be at least 0 shards (got -1)$"),
        ({"on_error": "ignore"}, "^on_error must be one of raise, skip (got 'ignore')$"),
        (
            {"format": "excel"},
            f"^format must be one of auto, {', '.join(FORMATS)}, or a function of the open file (got 'excel')$",
        ),
        ({"columns": ["b"], "schema": {"a": pa.int64()}}, "^columns= names 'b', but schema= has a$"),
        (
            {"schema": {"a": pa.float16()}},
            "^schema= has a type that JSON lines cannot give: JSON conversion to halffloat",
        ),
    ):
        with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
            bf.from_files("a.jsonl", **wrong)
    with pytest.raises(ValueError, match=r"^urls must name at least one file \(got none\)$"):
        bf.from_files([])


def test_a_missing_file_is_named_when_the_stream_is_made() -> None:
    with pytest.raises(FileNotFoundError, match=r"^there is no file '/nowhere/a\.jsonl'$"):
        bf.from_files("/nowhere/a.jsonl").iter()


# -- data as they come -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_data_end_and_are_an_error_where_they_repeat(tmp_path: Path, ending: str) -> None:
    urls = [write(tmp_path / f"blank{ending}", b"\n\n \n")]
    (tmp_path / "zero.jsonl").write_bytes(b"")
    urls += [str(tmp_path / "zero.jsonl"), write(tmp_path / f"nothing{ending}", b"")]
    assert list(bf.from_files(urls)) == []
    assert list(bf.from_files(urls, columns=["a"]).shuffle(10).batch(2)) == []
    with pytest.raises(
        bf.DataError, match=r"^1,000 epochs of from_files > repeat .*went by without a sample\. The data are"
    ):
        list(bf.from_files(urls, repeat=True))
    with_one = [*urls, write(tmp_path / f"one{ending}", numbered(7, 1)), *urls]
    for active in (1, 3, 10):
        assert ids(bf.from_files(with_one, n_active_shards=active)) == [7]
        assert list(islice(ids(bf.from_files(with_one, n_active_shards=active, repeat=True).take(5)), 5)) == [7] * 5


def test_a_sample_of_a_million_tokens_is_a_sample(tmp_path: Path) -> None:
    rows = [{"input_ids": [1]}, {"input_ids": list(range(1_000_000))}, {"input_ids": [2]}]
    urls = [write(tmp_path / f"a{ending}", rows) for ending in (".jsonl", ".jsonl.gz")]
    samples = list(bf.from_files(urls))
    assert [len(sample["input_ids"]) for sample in samples] == [1, 1, 1_000_000, 1_000_000, 1, 1]
    assert samples[2]["input_ids"][-1] == 999_999
    it = bf.from_files(urls).iter()
    list(islice(it, 3))
    assert len(next(bf.from_files(urls).iter(it.state_dict()))["input_ids"]) == 1_000_000


def test_two_thousand_empty_documents_in_a_row_are_read_and_filtered(tmp_path: Path) -> None:
    rows = [*numbered(0, 3), *({"id": -1, "text": ""} for _ in range(2_000)), *numbered(3, 3)]
    dataset = bf.from_files(write(tmp_path / "a.jsonl", rows))
    assert len(ids(dataset)) == 2_006
    assert ids(dataset.filter(lambda sample: sample["text"] != "")) == list(range(6))
    assert ids(
        dataset.tokenize(lambda texts: [[1] * len(text) for text in texts]).concat_chunk(6).enumerate(count_column="id")
    ) == list(range(6))


def test_a_filter_that_drops_everything_ends_and_is_an_error_where_it_repeats(tmp_path: Path) -> None:
    url = write(tmp_path / "0.jsonl", numbered(0, 50))
    assert list(bf.from_files(url).filter(lambda sample: False).shuffle(100).batch(10)) == []
    with pytest.raises(bf.DataError, match=r"1,000 epochs of from_files > filter .*went by without a sample"):
        list(bf.from_files(url, repeat=True).filter(lambda sample: False).shuffle(100).batch(10))


def test_newlines_of_every_kind_byte_order_marks_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    data = BOM + b'{"id": 0}\r\n\r\n\n  \n{"id": 1}  \r\n \t{"id": 2}'
    for ending in ENDINGS:
        url = write(tmp_path / f"a{ending}", data)
        assert ids(bf.from_files(url)) == [0, 1, 2]
        assert_exact_resume(lambda url=url: bf.from_files(url))  # type: ignore[misc]


BAD = [
    (b"\xff\xfe", "invalid UTF-8: byte 0xff at byte 0 of the line"),
    (b'{"id": 2, "text"', "invalid JSON: Expecting ':' delimiter at column 17"),
    (b'{"id": 2}{"id": 3}', "invalid JSON: Extra data at column 10"),
    (b"null", "a line must hold an object (got NoneType)"),
    (b'{"id": "2"}', "column 'id' is int64 by the schema but string here; say its type in schema=, or"),
    (
        b'{"id": 2, "text": "\\ud800"}',
        "column 'text' is string by the schema but text with half a surrogate pair here",
    ),
    (
        b'{"id": 2, "new": 1}',
        "key 'new' is not in the schema (id, text), which the first 1,000 rows decide where none is",
    ),
]


@pytest.mark.parametrize(
    ("before", "line", "message"),
    [
        *((2, *bad) for bad in BAD[:-1]),
        *((1_500, *bad) for bad in BAD),
    ],  # a new key among the first 1,000 rows is known
)
def test_a_bad_line_is_an_error_after_the_rows_before_it_or_is_skipped_and_counted(
    tmp_path: Path, before: int, line: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [json.dumps(row).encode() for row in numbered(0, before + 1)]
    lines.insert(before, line)
    url = write(tmp_path / "a.jsonl.gz", b"\n".join(lines))
    it = bf.from_files(url).iter()
    assert [next(it)["id"] for _ in range(before)] == list(range(before))
    with pytest.raises(bf.DataError) as error:
        next(it)
    assert str(error.value).startswith(f"shard a.jsonl.gz, line {before + 1:,}: {message}")
    with pytest.raises(bf.BrokenError, match=r"^this iterator failed earlier: shard a\.jsonl\.gz, line "):
        next(it)
    with pytest.raises(bf.DataError, match=rf"^shard a\.jsonl\.gz, line {before + 1:,}: "):
        next(bf.from_files(url).iter(it.state_dict()))
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["id"] for sample in it] == list(range(before + 1))
    assert it.stats["skipped"] == 1
    assert f"skipped: shard a.jsonl.gz, line {before + 1:,}: {message}" in caplog.text


def test_the_rows_of_the_state_before_a_bad_line_resume_to_the_same_error(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", b'{"id": 0}\n{"id": 1}\nbad\n{"id": 2}\n')
    it = bf.from_files(url).iter()
    next(it)
    state = it.state_dict()
    resumed = bf.from_files(url).iter(state)
    assert next(resumed)["id"] == 1
    with pytest.raises(bf.DataError, match=r"^shard a\.jsonl, line 3: invalid JSON: Expecting value at column 1$"):
        next(resumed)


def test_a_column_that_changes_type_keeps_its_first_type(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", [{"a": 1}, {"a": "x"}, {"a": 2.5}, {"a": 3}])
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1.0, 2.5, 3.0]
    with pytest.raises(
        bf.DataError, match=r"^shard a\.jsonl, line 2: column 'a' is double by the schema but string here"
    ):
        list(bf.from_files(url))
    given = bf.from_files(url, schema={"a": pa.string()}, on_error="skip")
    assert list(given) == [{"a": "x"}]


def test_numbers_are_never_cut_off(tmp_path: Path) -> None:
    rows = [*({"a": 1} for _ in range(1_000)), {"a": 1.5}]
    with pytest.raises(
        bf.DataError, match=r"^shard a\.jsonl, line 1,001: column 'a' is int64 by the schema but double here"
    ):
        list(bf.from_files(write(tmp_path / "a.jsonl", rows)))


def test_a_key_that_the_first_rows_lack_is_left_out_by_columns_or_taken_by_a_schema(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", [*numbered(0, 1_000), {"id": 1_000, "text": "x", "late": [1]}])
    assert len(list(bf.from_files(url, columns=["id"]))) == 1_001
    schema = {"id": pa.int32(), "text": pa.string(), "late": pa.list_(pa.int8())}
    samples = list(bf.from_files(url, schema=schema))
    assert samples[0]["late"] is None
    assert samples[-1]["late"].tolist() == [1]


def test_columns_that_never_occur_are_refused_and_a_row_may_lack_one(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", [{"text": "a"}, {"id": 1}, {"text": "c"}])
    message = r"^there is no column 'txt' in the first 3 rows \(shard a\.jsonl; keys: text, id\); correct columns=, or"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(url, columns=["txt"]))
    texts = bf.from_files(url, columns=["text"])
    assert list(texts) == [{"text": "a"}, {"text": None}, {"text": "c"}]
    tokens = texts.tokenize(lambda texts: [[1] for _ in texts])
    message = r"^tokenize: column 'text' is null or missing \(shard a\.jsonl, line 2\); filter it out or fill it$"
    with pytest.raises(bf.DataError, match=message):
        list(tokens)


def test_the_schema_is_that_of_the_first_rows_in_list_order_in_every_epoch_and_resume(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{number}.jsonl", [{"a": number + half} for half in (0, 0.5)]) for number in range(4)]
    whole = write(tmp_path / "int.jsonl", [{"a": 7}])

    def make() -> bf.Dataset:
        return bf.from_files([*urls, whole], shuffle_shards=True, repeat=True, n_active_shards=2).take(40)

    assert {type(sample["a"]) for sample in make()} == {float}
    assert_exact_resume(make)


def test_lines_of_text_have_one_column(tmp_path: Path) -> None:
    url = write(tmp_path / "a.txt", b"x")
    assert list(bf.from_files(url, columns=["text"])) == [{"text": "x"}]
    for wrong in ({"columns": ["id"]}, {"schema": {"text": pa.binary()}}):
        with pytest.raises(
            ValueError, match=r"^columns= and schema= do not apply to lines of text, whose only column is 'text' "
        ):
            list(bf.from_files(url, **wrong))


def test_text_and_json_lines_may_be_mixed(tmp_path: Path) -> None:
    urls = [write(tmp_path / "a.txt", b"one\n"), write(tmp_path / "b.jsonl", [{"text": "two"}])]
    assert list(bf.from_files(urls)) == [{"text": "one"}, {"text": "two"}]


def test_shards_of_several_formats_have_one_schema(tmp_path: Path) -> None:
    urls = [
        write(tmp_path / "0.csv", b"text,id\n"),
        write(tmp_path / "1.txt", b"zero\n"),
        write(tmp_path / "2.jsonl", b'{"text": "one"}\n{"text": "two"}\n'),
        write(tmp_path / "3.csv.gz", b'text\n"three\n"\n007\n'),
        write(tmp_path / "4.cbor.zst", b"\xa1\x64text\x64five"),
        write(tmp_path / "5.tsv", b"text\n6\n"),
    ]

    def make() -> bf.Dataset:
        return bf.from_files(urls[1:], n_active_shards=1)

    whole = ["zero", "one", "two", "three\n", "007", "five", "6"]
    assert [sample["text"] for sample in make()] == whole
    assert_exact_resume(make)
    assert_exact_resume(lambda: bf.from_files(urls[1:], n_active_shards=3, shuffle_shards=True))
    it = bf.from_files(urls[1:], n_active_shards=1, columns=["text"]).iter()
    assert len(list(it)) == 7
    typed = [*urls[2:4], write(tmp_path / "6.cbor", b"\xa2\x64text\x61x\x62id\x01")]
    with pytest.raises(
        bf.DataError, match=r"^shard 6\.cbor, row 1: key 'id' is not in the schema \(text\), which the first"
    ):
        list(bf.from_files(typed))
    message = (
        r"^shard 1\.txt has the columns text \(string\), but the others have text \(string\), x \(int64\). Read them "
        r"separately and join them \(concat_datasets, interleave_datasets\), or leave columns out with columns=$"
    )
    mixed = [urls[1], write(tmp_path / "9.csv", b"text,x\nnine,9\n")]
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(mixed))
    assert [sample["text"] for sample in bf.from_files(mixed, columns=["text"])] == ["zero", "nine"]
    assert sorted(sample["text"] for sample in bf.from_files(urls[1:], streams=2)) == sorted(whole)
    assert list(bf.from_files([urls[1], write(tmp_path / "a.csv", b"n\n")])) == [{"text": "zero"}]
    numbers = [write(tmp_path / "7.csv", b"n\n1\n"), write(tmp_path / "8.jsonl", b'{"n": 2}\n{"n": "3"}\n')]
    with pytest.raises(
        bf.DataError, match=r"^shard 8\.jsonl, line 2: column 'n' is int64 by the schema but string here; say"
    ):
        list(bf.from_files(numbers))


# -- damage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_truncated_archive_is_an_error_after_its_rows_or_is_skipped_from_there(
    tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": number, "text": str(hash(str(number)))} for number in range(20_000)]
    data = compressed(b"".join(json.dumps(row).encode() + b"\n" for row in rows), ending)
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(data[: len(data) // 2])
    good = write(tmp_path / "b.jsonl", [{"id": -1, "text": ""}] * 3)
    it = bf.from_files([str(path), good], n_active_shards=1).iter()
    seen: list[int] = []
    with pytest.raises(bf.DataError) as error:
        seen.extend(sample["id"] for sample in it)
    assert 1_000 < len(seen) < 15_000
    assert seen == list(range(len(seen)))
    place = f"shard a.jsonl{ending}, line {len(seen) + 1:,}"
    assert str(error.value).startswith(f"{place}: cannot be read on: Truncated compressed stream; the shard is damaged")
    it = bf.from_files([str(path), good], n_active_shards=1, on_error="skip").iter()
    assert [sample["id"] for sample in it] == [*seen, -1, -1, -1]
    assert it.stats["skipped"] == 1
    assert f"skipped: {place}: cannot be read on" in caplog.text


def test_a_file_that_is_no_archive_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b'\0{"id": 1}\n')  # text would be read as what it is
    with pytest.raises(
        bf.DataError, match=r"^shard a\.jsonl\.gz, line 1: cannot be read on: .*; the shard is damaged$"
    ):
        list(bf.from_files(str(path)))
    assert list(bf.from_files(str(path), on_error="skip")) == []


def rows_before_an_error(url: str, error: type[Exception], message: str, **options: Any) -> int:
    """How many rows, 0, 1, 2 ..., come before the error."""
    it = bf.from_files(url, schema={"id": pa.int64(), "text": pa.string()}, on_error="skip", **options).iter()
    seen: list[int] = []
    with pytest.raises(error, match=message):
        seen.extend(sample["id"] for sample in it)
    assert seen == list(range(len(seen)))
    return len(seen)


def test_a_store_that_refuses_is_an_error_with_the_place_and_never_skipped(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", numbered(0, 20_000))
    reads = iter(range(100))

    def fail(name: str) -> None:
        if next(reads) >= 10:
            raise PermissionError("not yours")

    with watched(on_read=fail):
        message = r"^shard a\.jsonl, line [\d,]+: cannot be read on: OSError: watched://.*/a\.jsonl cannot be read: PermissionEr"
        assert rows_before_an_error(f"watched://{url}", OSError, message) > 5_000
    assert threads_left() == []


def test_a_store_that_fails_is_asked_again_and_in_the_end_is_a_timeout_that_is_never_skipped(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", numbered(0, 20_000))
    reads, gone = iter(range(1_000)), False

    def fail(name: str) -> None:
        number = next(reads)
        if number % 4 == 3 or (gone and number >= 10):
            raise ConnectionResetError("gone")

    with watched(on_read=fail) as files:
        assert len(list(bf.from_files(f"watched://{url}"))) == 20_000
        assert len(files.opened) > 4
        reads, gone = iter(range(1_000)), True
        message = r"nothing came from (shard )?watched://.*/a\.jsonl within 1 seconds"
        assert rows_before_an_error(f"watched://{url}", TimeoutError, message, timeout_seconds=1) > 5_000
    assert threads_left() == []


# -- the order of rows -----------------------------------------------------------------------------------------------------


def in_turn(shards: list[list[int]], n_active: int) -> Iterator[int]:
    """A row of each in turn; the next shard takes the place of one that has ended. Row by row."""
    waiting = [iter(shard) for shard in shards]
    active, turn = [waiting.pop(0) for _ in range(min(n_active, len(waiting)))], 0
    while active:
        turn %= len(active)
        row = next(active[turn], None)
        if row is not None:
            yield row
            turn += 1
        elif waiting:
            active[turn] = waiting.pop(0)
        else:
            active.pop(turn)


sizes = st.lists(st.integers(0, 5) | st.integers(0, 5) | st.sampled_from([400, 1_500]), min_size=1, max_size=7)


@examples(30)
@given(sizes, st.integers(1, 5), st.integers(0, 3))
def test_shards_are_read_in_turn_and_the_next_takes_the_place_of_one_that_ended(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], n_active: int, n_standby: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    shards, first = [], 0
    for number, size in enumerate(sizes):
        write(folder / f"{number}{ENDINGS[number % 3]}", [{"id": id} for id in range(first, first + size)])
        shards.append(list(range(first, first + size)))
        first += size
    dataset = bf.from_files(f"{folder}/*", n_active_shards=n_active, n_standby_shards=n_standby)
    expected = list(in_turn(shards, n_active))
    assert ids(dataset) == expected
    for taken in {1, first // 2, first} & set(range(first + 1)):
        it = dataset.iter()
        list(islice(it, taken))
        state = json.loads(json.dumps(it.state_dict()))
        it.close()
        assert [sample["id"] for sample in dataset.iter(state)] == expected[taken:]


def test_resume_is_exact_at_every_row(tmp_path: Path) -> None:
    sizes = [3, 0, 7, 1, 5]
    urls = [write(tmp_path / f"{n}{ENDINGS[n % 3]}", numbered(10 * n, size)) for n, size in enumerate(sizes)]
    for shuffle in (False, True):
        assert_exact_resume(lambda: bf.from_files(urls, n_active_shards=2, shuffle_shards=shuffle))  # noqa: B023


def test_shuffled_shards_come_in_another_order_each_epoch_and_seed(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{n}.jsonl", [{"id": n}]) for n in range(20)]

    def orders(seed: int) -> list[list[int]]:
        dataset = bf.from_files(urls, shuffle_shards=True, repeat=True, n_active_shards=1, seed=seed)
        drawn = [sample["id"] for sample in islice(dataset, 60)]
        return [drawn[:20], drawn[20:40], drawn[40:]]

    epochs = [*orders(42), *orders(43)]
    assert all(sorted(order) == list(range(20)) for order in epochs)
    assert len({tuple(order) for order in [*epochs, list(range(20))]}) == 7
    assert orders(42) == epochs[:3]


def test_the_state_is_small_with_a_thousand_shards_and_a_large_shuffle(tmp_path: Path) -> None:
    for number in range(1_000):
        write(tmp_path / f"{number:04}.jsonl", [{"text": "a b", "id": number}] * 150)
    dataset = bf.from_files(f"{tmp_path}/*.jsonl", shuffle_shards=True, repeat=True)
    batches = (
        dataset.tokenize(lambda texts: [[1, 2] for _ in texts]).shuffle(100_000).batch_by_tokens(512, window=1_000)
    )
    it = batches.iter()
    for _ in range(20):
        next(it)
    it.close()
    assert len(json.dumps(it.state_dict())) < 4_096


# -- what is read when -----------------------------------------------------------------------------------------------------


SCHEMA = {"id": pa.int64(), "text": pa.string()}


def test_active_and_standby_shards_are_opened_at_the_same_time(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / f"{number}.jsonl", numbered(10 * number, 3))
    together = threading.Barrier(5, timeout=30)  # breaks, and so raises, where fewer opens are under way at once

    def opening(name: str) -> None:
        if name < "5":
            together.wait()

    with watched(on_open=opening) as files:
        it = bf.from_files(f"watched://{tmp_path}/*.jsonl", schema=SCHEMA, n_active_shards=3, n_standby_shards=2).iter()
        assert next(it)["id"] == 0
        assert sorted(files.opened[:5]) == [f"{number}.jsonl" for number in range(5)]
        assert len(list(it)) == 23
        assert sorted(files.opened) == [f"{number}.jsonl" for number in range(8)]


def test_no_shard_is_opened_ahead_where_none_is_wanted(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", numbered(0, 20_000))
    with watched() as files:
        it = bf.from_files(f"watched://{tmp_path}/*.jsonl", schema=SCHEMA, n_active_shards=2, n_standby_shards=0).iter()
        next(it)
        assert sorted(files.opened) == ["0.jsonl", "1.jsonl"]
        it.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_resume_parses_nothing_that_was_consumed(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write(tmp_path / f"a{ending}", numbered(0, 60_000))
    dataset = bf.from_files(f"watched://{url}", schema=SCHEMA)
    parsed: list[int] = []
    parse = JsonLines.parse

    def counting(self: JsonLines, lines: Records[bytes]) -> Parsed:
        parsed.append(len(lines.ends))
        return parse(self, lines)

    monkeypatch.setattr(JsonLines, "parse", counting)
    with watched() as files:
        it = dataset.iter()
        list(islice(it, 50_000))
        state = it.state_dict()
        it.close()
        position = state["position"]["rows"]["shards"][0]
        at_block = position["line"]
        assert 45_000 < at_block <= 50_000  # the state is that before the block at hand, and rows of it
        parsed.clear()
        files.read_bytes.clear()
        assert [sample["id"] for sample in dataset.iter(state)] == list(range(50_000, 60_000))
        assert sum(parsed) == 60_000 - at_block
        if ending == ".jsonl":
            size = Path(url).stat().st_size
            rest = size - position["byte"] + 1  # and the newline before
            assert sum(files.read_bytes.values()) == MAGIC_BYTES + rest


def test_a_stuck_read_is_a_timeout_that_names_the_shard_and_closing_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.core.run.JOIN_SECONDS", 0.2)
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", numbered(number, 1))
    stuck = threading.Event()

    def reading(name: str) -> None:
        if name == "1.jsonl":
            stuck.wait(60)

    with watched(on_read=reading):
        quick: dict[str, Any] = {"n_active_shards": 1, "schema": SCHEMA, "timeout_seconds": 0.3}
        it = bf.from_files(f"watched://{tmp_path}/*.jsonl", **quick).iter()
        assert next(it)["id"] == 0
        message = (
            rf"^nothing came from shard watched://{tmp_path}/1\.jsonl within 0\.3 seconds \(at line 1\); "
            "raise timeout_seconds or check the store$"
        )
        with pytest.raises(TimeoutError, match=message):
            next(it)
        it.close()
        open_ahead = bf.from_files(f"watched://{tmp_path}/*.jsonl", **quick).iter()
        next(open_ahead)
        open_ahead.close()  # while 1.jsonl, on standby, is stuck
        stuck.set()
    assert threads_left() == []


def test_a_stuck_first_shard_is_a_timeout_also_where_its_schema_is_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbered(0, 1))
    stuck = threading.Event()
    with watched(on_open=lambda name: stuck.wait(60)):
        it = bf.from_files(f"watched://{tmp_path}/a.jsonl", timeout_seconds=0.2).iter()
        with pytest.raises(TimeoutError, match=r"^nothing came from shard watched://.*/a\.jsonl within 0\.2 seconds "):
            next(it)
        stuck.set()
    assert threads_left() == []


def test_a_timeout_of_the_store_itself_is_passed_on(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbered(0, 1))

    def opening(name: str) -> None:
        raise TimeoutError("the store says so")

    message = (
        r"nothing came from watched://.*/a\.jsonl within 2 seconds \(attempts: \d+; the last: TimeoutError the store"
    )
    with watched(on_open=opening):
        it = bf.from_files(f"watched://{tmp_path}/a.jsonl", schema=SCHEMA, timeout_seconds=2).iter()
        with pytest.raises(TimeoutError, match=message):
            next(it)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{number}.jsonl.gz", numbered(0, 3_000)) for number in range(5)]
    it = bf.from_files(urls, repeat=True).tokenize(lambda texts: [[1] for _ in texts]).batch(8).prefetch(3).iter()
    for _ in range(5):
        next(it)
    it.close()
    assert threads_left(0) == []
    with bf.from_files(urls).iter() as opened:
        next(opened)
    assert threads_left(0) == []
    list(bf.from_files(urls))
    assert threads_left(0) == []


# -- states that do not fit ------------------------------------------------------------------------------------------------


def test_a_state_is_held_against_the_shards_by_name_and_size(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{number}.jsonl", numbered(number, 5)) for number in range(3)]
    it = bf.from_files(urls).iter()
    next(it)
    state = it.state_dict()
    it.close()
    message = r"^this state belongs to another pipeline: .*from_files\.urls.* was .* when it was saved and is .* here"
    with pytest.raises(bf.StateError, match=message):
        bf.from_files(urls[:2]).iter(state)
    write(tmp_path / "1.jsonl", numbered(1, 6))
    with pytest.raises(bf.StateError, match=message):
        bf.from_files(urls).iter(state)
    assert next(bf.from_files(urls).iter(state, allow={"urls"}))["id"] == 1


def test_a_shard_that_was_edited_in_place_is_refused_where_no_line_begins(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", numbered(0, 50_000))
    it = bf.from_files(url).iter()
    list(islice(it, 40_000))
    state = it.state_dict()
    it.close()
    path = Path(url)
    path.write_bytes(b" " + path.read_bytes()[:-1])
    message = (
        r"^shard a\.jsonl, line [\d,]+: no line begins at byte [\d,]+, where this state goes on: the shard was edited, or "
        "another stands in its place$"
    )
    with pytest.raises(bf.StateError, match=message):
        list(bf.from_files(url).iter(state))


def test_a_state_of_more_shards_than_there_are_is_refused(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{number}.jsonl", numbered(number, 1)) for number in range(30)]
    it = bf.from_files(urls, n_active_shards=1).iter()
    list(islice(it, 20))
    with pytest.raises(
        bf.StateError, match=r"^this state was saved after \d+ shards, but there are 2: shards were taken away"
    ):
        list(bf.from_files(urls[:2], n_active_shards=1).iter(it.state_dict(), allow={"urls"}))


def test_settings_that_do_not_change_the_order_may_differ(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", numbered(0, 5))
    it = bf.from_files(url).iter()
    next(it)
    other = bf.from_files(
        url, n_standby_shards=0, timeout_seconds=5, schema=SCHEMA, storage_options={"auto_mkdir": False}
    )
    assert ids(other)[1:] == [sample["id"] for sample in other.iter(it.state_dict())]
    with pytest.raises(bf.StateError, match=r"from_files\.n_active_shards was 10 when it was saved and is 3 here"):
        bf.from_files(url, n_active_shards=3).iter(it.state_dict())


def test_skipped_lines_are_logged_with_file_and_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "brimful")
    url = write(tmp_path / "a.jsonl", b'bad\n{"id": 1}\n\nworse\n')
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["id"] for sample in it] == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "skipped: shard a.jsonl, line 1: invalid JSON: Expecting value at column 1",
        "skipped: shard a.jsonl, line 4: invalid JSON: Expecting value at column 1",
    ]
    assert it.stats["skipped"] == 2


def test_a_bad_record_of_a_file_that_was_written_to_is_an_error_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be made of two contents: nobody should look for it in the shard, or go on after it."""
    line, count = '{"id":%7d}\n', 200_000
    path = tmp_path / "a.jsonl"
    message = r"^shard a\.jsonl, line [\d,]+: its [\d,]+ bytes were written to after it had been opened; "
    for on_error in ("raise", "skip"):
        path.write_text("".join(line % id for id in range(count)))
        it = bf.from_files(str(path), on_error=on_error).iter()  # type: ignore[arg-type]
        seen = [sample["id"] for sample in islice(it, 10)]
        with path.open("r+b") as file:
            file.seek(len(line % 0) * 150_000)
            file.write(b"{" * 40)
        os.utime(path, (1e9, 1e9))
        with pytest.raises(bf.DataError, match=message) if on_error == "raise" else nullcontext():
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(150_000))
    assert "were written to after it had been opened" in caplog.text
    assert "invalid JSON" not in caplog.text
    assert it.stats["skipped_shards"] == 1


@pytest.mark.parametrize(
    ("kind", "lists"), [(kind, lists) for kind in ("jsonl", "cbor", "parquet", "arrow") for lists in (False, True)]
)
def test_integers_that_no_64_bits_have_together_come_through_by_the_type_that_the_error_names(
    tmp_path: Path, kind: str, lists: bool
) -> None:
    urls, values = [], []
    for name, numbers in (("a", [-5, 2**62, None]), ("b", [2**64 - 1, 7])):
        own = pa.int64() if name == "a" else pa.uint64()
        some = [[number] for number in numbers] if lists else numbers
        table = pa.table({"n": pa.array(some, pa.list_(own) if lists else own)})
        values += table["n"].to_pylist()
        path, rows = tmp_path / f"{name}.{kind}", table.to_pylist()
        if kind in ("parquet", "arrow"):
            urls.append(write_table(path, table))
        elif kind == "jsonl":
            urls.append(write(path, rows))
        else:
            urls.append(write(path, b"".join(map(pytest.importorskip("cbor2").dumps, rows))))
    asked = "pa.list_(pa.uint64())" if lists else "'uint64'"
    with pytest.raises(bf.DataError, match=rf"^shard b\.{kind}, (row|line) 1: column 'n' is .*int64>? by .*") as error:
        list(bf.from_files(urls, n_active_shards=1))
    assert f"say its type in schema= ('n': {asked}, or 'json' if others are negative)" in str(error.value)

    def make() -> bf.Dataset:
        return bf.from_files(urls, schema={"n": "json"}, n_active_shards=1)

    assert [row["n"] for row in make()] == values
    assert_exact_resume(make)


def test_integers_that_no_64_bits_have_together_are_text_in_csv(tmp_path: Path) -> None:
    urls = [write(tmp_path / "a.csv", b"n,m\n-5,1\n"), write(tmp_path / "b.csv", b"n,m\n18446744073709551615,2\n")]
    asked = r"say its type in schema= \('n': 'uint64', or 'string' if others are negative\)"
    with pytest.raises(bf.DataError, match=rf"^shard b\.csv, line 2: column 'n' is int64 .* here; {asked}"):
        list(bf.from_files(urls, n_active_shards=1))
    found = bf.from_files(urls, schema={"n": pa.string(), "m": pa.int64()}, n_active_shards=1)
    assert [row["n"] for row in found] == ["-5", "18446744073709551615"]
