"""A format is one class and one entry in a table: position, settings, schema and compression are its own matter."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.counters import OnError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format, Parsed, Piece, ReadRequest, ShardReader
from brimful.sources.formats import FORMATS, format_of
from brimful.sources.json_array import JsonArray
from brimful.testing import assert_exact_resume

GROUP = 300


class Groups(Format):
    """Groups of up to 300 int64 behind a count. Position: [bytes before the group, group, row in it, row]."""

    name = "groups"
    extensions = (".groups",)
    compressed = False
    unit = "row"
    start = (0, 0, 0, 0)
    places = ("byte", "group", "skip", "row")

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None:
            raise ValueError(f"schema= does not apply to groups ({url})")

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        return pa.schema({"n": pa.int64()}) if file.read(1) else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        return GroupReader(file, request)


class GroupReader(ShardReader):
    def pieces(self) -> Iterator[Piece]:
        self._file.seek(self.at[0])
        while head := self._file.read(8):
            offset, group, skip, row = self.at
            (count,) = struct.unpack("<q", head)
            numbers = np.frombuffer(self._file.read(8 * count) or b"", dtype=np.int64)[skip:]
            within = np.arange(skip + 1, count + 1)
            over = within == count
            positions = np.column_stack(
                (
                    np.where(over, offset + 8 + 8 * count, offset),
                    group + over,
                    np.where(over, 0, within),
                    row + 1 + np.arange(len(numbers)),
                )
            )
            block = pa.RecordBatch.from_arrays([pa.array(numbers)], ["n"])
            yield Parsed(block, np.arange(len(numbers)), []), positions


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with patch.dict(FORMATS, {"groups": Groups()}):
        yield


def write(path: Path, first: int, counts: list[int]) -> None:
    with path.open("wb") as file:
        for count in counts:
            file.write(struct.pack("<q", count) + np.arange(first, first + count, dtype=np.int64).tobytes())
            first += count


def test_a_format_is_told_by_its_extension_below_that_of_a_compression() -> None:
    for name, form in (
        ("a.jsonl", "jsonl"),
        ("A.JSONL.GZ", "jsonl"),
        ("https://host/a.csv.gzip?sig=x.y#z", "csv"),
        ("s3://bucket/part-?.txt", "text"),
        ("zip://a.tsv.bz2::s3://bucket/b.zip", "tsv"),
        ("simplecache::https://host/a.parquet?sig=x", "parquet"),
        ("a.ndjson", "jsonl"),
        ("a.txt.gz", "text"),
        ("b/c.parquet", "parquet"),
        ("c.feather", "arrow"),
    ):
        assert format_of(name) is FORMATS[form]
    assert format_of("b/c.json.zst") == JsonArray(or_lines=True, unit="line")
    assert format_of("x.groups") is FORMATS["groups"]
    assert format_of("x.gz") is format_of("x") is None


def test_a_new_format_resumes_at_every_row_by_a_position_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "a.groups", 0, [GROUP, 7, GROUP])
    write(tmp_path / "b.groups", 1_000, [1, 2, 3])

    def make() -> bf.Dataset:
        return bf.from_files(f"{tmp_path}/*.groups", n_active_shards=2)

    assert_exact_resume(make, max_resumes=12)
    assert sorted(sample["n"] for sample in make()) == [*range(607), *range(1_000, 1_006)]
    it = make().iter()
    list(islice(it, 613))
    state: Any = json.loads(json.dumps(it.state_dict()))
    assert [sample["n"] for sample in make().iter(state)] == []


def test_a_format_says_what_applies_to_it(tmp_path: Path) -> None:
    write(tmp_path / "a.groups", 0, [3])
    with pytest.raises(ValueError, match=r"^schema= does not apply to groups \(.*a\.groups\)$"):
        bf.from_files(tmp_path / "a.groups", schema={"n": pa.int64()})
    for url, form in ((tmp_path / "a.groups.gz", "auto"), (tmp_path / "b.gz", "groups")):
        with pytest.raises(
            ValueError, match=r"\.gz: groups files are not compressed as a whole; decompress it, or give"
        ):
            bf.from_files(url, format=form)
    message = (
        r"^format must be one of auto, jsonl, json, text, .*groups, or a function of the open file \(got 'excel'\)$"
    )
    with pytest.raises(ValueError, match=message):
        bf.from_files("a", format="excel")


@pytest.mark.parametrize("name", ["zeros.cbor", "zeros.jsonl", "zeros.csv"])
def test_the_first_error_of_a_shard_without_a_good_record_is_said_at_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = b"\0" if name.endswith("cbor") else b"0\n"
    (tmp_path / name).write_bytes(b"a,b\n" * name.endswith("csv") + record * 50_000)
    with pytest.raises(bf.DataError, match=rf"^shard {name}, (row|line) [12]: "):
        next(bf.from_files(tmp_path / name).iter())
    calls = Counter[str]()
    for module, called in (("cbor", "_sample"), ("jsonl", "decode"), ("csv", "fields")):
        fn = getattr(import_module(f"brimful.sources.{module}"), called)

        def counted(*args: Any, fn: Any = fn, called: str = called) -> Any:
            calls[called] += 1
            return fn(*args)

        monkeypatch.setattr(f"brimful.sources.{module}.{called}", counted)
    with pytest.raises(bf.DataError):
        next(bf.from_files(tmp_path / name).iter())
    assert calls.total() < 5_000  # records that were looked at, of 50,000
    it = bf.from_files(tmp_path / name, on_error="skip").iter()
    assert (list(it), it.stats["skipped"]) == ([], 50_000)
    assert calls.total() < 50_000 * 4


def test_good_records_behind_bad_ones_are_read_where_these_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("0\n" * 3_000 + '{"a": 1}\n')
    assert list(bf.from_files(tmp_path / "a.jsonl", on_error="skip")) == [{"a": 1}]
