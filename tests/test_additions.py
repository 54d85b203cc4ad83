"""What is new is one file: nothing else has to know of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest

import brimful as bf
from brimful.sources.formats import FORMATS
from brimful.testing import assert_exact_resume
from tests.shards import compressed

FORMAT = '''
"""Records of `name: number` fields, one a line, with a "|" between two fields."""

from brimful.sources.format import Format, RecordParser, good_rows
from brimful.sources.formats import register
from brimful.sources.forward import ForwardReader, lines_of, split
from brimful.tables.schema import SAMPLE_ROWS, conform_rows, infer


def decode(line):
    return {name.strip(): int(value) for name, value in (field.split(":") for field in line.decode().split("|"))}


class Fields(RecordParser):
    refused = (ValueError, KeyError)

    def __init__(self, request):
        self.schema, self.on_error = request.schema, request.on_error

    def parse(self, lines):
        return self.rows(dict(enumerate(split(lines.data, lines.ends))))

    def block(self, records):
        rows = [decode(record) for record in records]
        return conform_rows([{name: row[name] for name in self.schema.names} for row in rows], self.schema)

    def reason(self, record, error):
        return f"no fields of numbers: {record!r}"


class Rec(Format):
    name = "rec"
    extensions = (".rec",)
    unit = "line"

    def check(self, columns, schema, url):
        pass

    def infer(self, file, columns, where, on_error):
        def rows():
            for lines in lines_of(file, 0):
                for line in split(lines.data, lines.ends):
                    try:
                        yield decode(line)
                    except ValueError:
                        yield None

        return infer(good_rows(rows(), SAMPLE_ROWS, on_error), columns, where)

    def open(self, file, request):
        return ForwardReader(file, request, lines_of(file, request.at[0]), Fields(request).parse)


register(Rec())
'''


@pytest.fixture
def rec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of shards in a format that a module has added."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "rec_format.py").write_text(FORMAT)
    monkeypatch.syspath_prepend(tmp_path / "code")
    with patch.dict(FORMATS):
        monkeypatch.delitem(sys.modules, "rec_format", raising=False)
        importlib.import_module("rec_format")
        yield tmp_path


@pytest.mark.parametrize("ending", [".rec", ".rec.gz", ".rec.zst"])
def test_a_new_format_is_one_file(rec: Path, ending: str) -> None:
    for shard in range(3):
        lines = [f"id: {number} | shard: {shard}\n" for number in range(200)]
        lines[50] = "id: x\n"
        (rec / f"{shard}{ending}").write_bytes(compressed("".join(lines).encode(), Path(ending).suffix))

    def make() -> bf.Dataset:
        return bf.from_files(f"{rec}/*{ending}", n_active_shards=2, on_error="skip")

    it = make().iter()
    found = sorted((row["shard"], row["id"]) for row in it)
    assert found == [(shard, number) for shard in range(3) for number in range(200) if number != 50]
    assert it.stats["skipped"] == 3
    assert_exact_resume(make, max_resumes=12)
    strict = bf.from_files(rec / f"0{ending}", columns=["id"]).iter()
    assert [row["id"] for row in islice(strict, 50)] == list(range(50))
    with pytest.raises(bf.DataError, match=rf"^shard 0{ending}, line 51: no fields of numbers: b'id: x\\n'$"):
        next(strict)


def test_a_new_format_has_a_name(rec: Path) -> None:
    (rec / "a.dat").write_text("id: 1\nid: 2\n")
    assert [row["id"] for row in bf.from_files(rec / "a.dat", format="rec")] == [1, 2]
    with pytest.raises(ValueError, match=r"^format must be one of auto, jsonl, .*, arrow, rec, or a function"):
        bf.from_files(rec / "a.dat", format="excel")


VERB = '''
from dataclasses import dataclass

import pyarrow.compute as pc

from brimful.rows.columns import Blockwise
from brimful.tables.blocks import Block
from brimful.tables.ragged import column_of, with_column


@dataclass(frozen=True)
class Lowercase(Blockwise):
    """A text column in lower case."""

    column: str

    def apply(self, block: Block) -> Block:
        return with_column(block, self.column, pc.utf8_lower(column_of(block, self.column)))
'''


def test_a_new_verb_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as streams, over epochs and by ranks, resumes, says what it is, and is held against states, as others are."""
    (tmp_path / "lowercase.py").write_text(VERB)
    monkeypatch.syspath_prepend(tmp_path)
    lowercase = importlib.import_module("lowercase")
    for shard in range(4):
        lines = (f'{{"text": "Row {shard} {row}", "other": "B"}}\n' for row in range(30))
        (tmp_path / f"{shard}.jsonl").write_text("".join(lines))

    def data(column: str = "text", streams: int | None = None, repeat: bool = False) -> bf.Dataset:
        files = bf.from_files(str(tmp_path / "*.jsonl"), shuffle_shards=True, streams=streams, repeat=repeat)
        return bf.Dataset(lowercase.Lowercase(files.stage, column), files.repeats)

    texts = sorted(sample["text"] for sample in data())
    assert texts == sorted(f"row {shard} {row}" for shard in range(4) for row in range(30))
    assert repr(data()).startswith("Dataset(from_files(shuffle_shards) > lowercase")
    assert data().kind == "streamed (by from_files)"
    assert_exact_resume(data)
    assert_exact_resume(lambda: data(streams=2))

    def batches(rank: int = 0, world_size: int = 1) -> bf.Batches:
        tokens = data(streams=2, repeat=True).tokenize(lambda texts: [list(text.encode()) for text in texts])
        return tokens.batch_by_tokens(256, window=40).shard(rank, world_size)

    alone = [batch["input_ids"].tolist() for batch in islice(batches().iter(), 8)]
    assert len({str(batch) for batch in alone}) == 8
    with pytest.raises(bf.StateError, match=r"lowercase\.column was 'text' when it was saved and is 'other' here"):
        data("other").iter(data().iter().state_dict())
