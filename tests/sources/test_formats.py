"""A format is one class and one entry in a table: position, settings, schema and compression are its own matter."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import brimful as bf
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format
from brimful.sources.formats import FORMATS, format_of
from brimful.sources.reader import Parsed, Reader, Wanted
from brimful.testing import assert_exact_resume

GROUP = 300


class Groups(Format):
    """Groups of up to 300 int64 behind a count. Position: [bytes before the group, group, row in it, row]."""

    name = "groups"
    extensions = (".groups",)
    compressed = False
    unit = "row"
    start = (0, 0, 0, 0)
    schema = None

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None:
            raise ValueError(f"schema= does not apply to groups ({url})")

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
        return pa.schema({"n": pa.int64()}) if file.read(1) else None

    def open(self, file: Bytes, wanted: Wanted) -> Reader:
        return GroupReader(file, wanted)


class GroupReader(Reader):
    unit = "row"

    def __init__(self, file: Bytes, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._file = file

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        offset, group, skip, row = self.at
        self._file.seek(offset)
        head = self._file.read(8)
        if not head:
            return None
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
        return Parsed(block, np.arange(len(numbers)), []), positions

    def close(self) -> None:
        self._file.close()


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
        ("b/c.json.zst", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.txt.gz", "text"),
        ("b/c.parquet", "parquet"),
        ("c.feather", "arrow"),
    ):
        assert format_of(name) is FORMATS[form]
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
    message = r"^format must be one of auto, jsonl, text, .*groups, or a function of the open file \(got 'excel'\)$"
    with pytest.raises(ValueError, match=message):
        bf.from_files("a", format="excel")
