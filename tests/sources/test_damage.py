"""Lines and archives that are damaged at random: each row is delivered, skipped and counted, or the error names file and line.

(The other formats have a test of this kind beside their own.)
"""

from __future__ import annotations

import json
import random
from functools import cache

import pyarrow as pa
import pytest

from brimful.sources.compressed import Decompressed
from brimful.sources.jsonl import Jsonl
from brimful.sources.text import SCHEMA, Text
from tests.damage import Outcome, damaged, outcome
from tests.effort import times
from tests.shards import Memory, compressed

AB = pa.schema({"a": pa.int64(), "b": pa.string()})
ROWS = [{"a": number, "b": "é" * (number % 5) + str(number)} for number in range(24)]
LINES = [json.dumps(row).encode() for row in ROWS]
BLANK = b" \t\r"


@cache
def of_line(line: bytes) -> Outcome:
    return outcome(Jsonl(), line, AB)


def test_of_damaged_json_each_line_is_a_row_or_is_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "brimful")
    known, rng, some_bad = dict(zip(LINES, ROWS)), random.Random(3), 0
    for number in range(times(600, 50_000)):
        monkeypatch.setattr("brimful.sources.forward.BUFFER_BYTES", (16, 1 << 20, 200)[number % 3])
        data = damaged(b"\n".join(LINES) + b"\n", rng, b'{}",\n\r:\\')
        if data.startswith(b"\xef\xbb\xbf"):
            continue
        alone = {line: of_line(line) for line in data.split(b"\n") if line.strip(BLANK)}
        assert all(len(one.rows) + one.skipped == 1 and one.error is None for one in alone.values())
        assert all(alone[line].rows == [known[line]] for line in known.keys() & alone.keys())
        ones = [alone[line] for line in data.split(b"\n") if line in alone]
        found = outcome(Jsonl(), data, AB)
        assert found.rows == [row for one in ones for row in one.rows]
        assert (found.skipped, found.error) == (sum(one.skipped for one in ones), None)
        first = outcome(Jsonl(), data, AB, "raise")
        assert (first.error is not None) == (found.skipped > 0)
        assert first.rows == found.rows[: len(first.rows)]
        assert first.error is None or first.error.startswith("shard x, line ")
        some_bad += found.skipped > 0
    assert some_bad > 200


def test_of_damaged_text_each_line_is_a_row_or_is_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "brimful")
    rng = random.Random(4)
    for _ in range(times(300, 50_000)):
        data = damaged("\n".join(row["b"] for row in ROWS).encode(), rng, b"\n\r\xc3")
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        texts = [line.removesuffix(b"\r").decode(errors="replace") for line in lines]
        good = [text for text, line in zip(texts, lines) if text.encode() == line.removesuffix(b"\r")]
        found = outcome(Text(), data, SCHEMA)
        assert ([row["text"] for row in found.rows], found.error) == (good, None)
        assert found.skipped == len(lines) - len(good)


@pytest.mark.parametrize("extension", [".gz", ".bz2", ".xz", ".zst", ".lz4"])
def test_damage_of_an_archive_is_never_taken_for_its_end(extension: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows of a member come before its checksum; zstd and lz4, as Arrow writes them, have none: there other rows may come."""
    caplog.set_level("CRITICAL", "brimful")
    texts = [f"{number} {number * 7919}" for number in range(3_000)]
    half = len(texts) // 2
    members = [
        compressed("".join(f"{text}\n" for text in part).encode(), extension) for part in (texts[:half], texts[half:])
    ]
    rng, whole = random.Random(5), b"".join(members)
    kind = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}[extension]
    some_bad = 0
    for _ in range(times(200, 20_000)):
        data = damaged(whole, rng, whole[:20])
        form = _Compressed(kind)
        found = outcome(form, data, SCHEMA)
        got = [row["text"] for row in found.rows]
        assert found.error is None
        if extension in (".gz", ".bz2", ".xz"):
            assert got == texts or found.skipped
        some_bad += found.skipped > 0
    assert some_bad > 100


class _Compressed(Text):  # type: ignore[misc]
    """Lines of text in an archive."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def open(self, file: Memory, request: object) -> object:  # type: ignore[override]
        return Text().open(Decompressed(file, self._kind), request)  # type: ignore[arg-type]
