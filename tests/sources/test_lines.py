from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import DataError, StateError
from brimful.sources.lines import BUFFER_BYTES, LineReader
from brimful.sources.urls import COMPRESSIONS, Shards
from tests.shards import compressed

BOM = b"\xef\xbb\xbf"


def every(reader: LineReader) -> Iterator[tuple[int, bytes]]:
    """(the offset after it, its bytes) of each line."""
    while (lines := reader.read()) is not None:
        yield from zip((lines.offset + lines.ends).tolist(), lines.split())


def read(data: bytes, offset: int = 0, forward_only: bool = False) -> list[tuple[int, bytes]]:
    return list(every(LineReader(io.BytesIO(data), forward_only, offset)))


@given(st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.booleans())
def test_lines_are_those_of_the_file_and_any_offset_resumes(lines: list[bytes], newline_at_end: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if newline_at_end else b"")
    data = data.removeprefix(BOM)
    found = read(data)
    assert [line for _, line in found] == data.splitlines(keepends=True) if b"\r" not in data else True
    assert b"".join(line for _, line in found) == data
    for number, (offset, _) in enumerate(found):
        assert read(data, offset) == found[number + 1 :]
        assert read(data, offset, forward_only=True) == found[number + 1 :]


@pytest.mark.parametrize("size", [BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 5 * BUFFER_BYTES])
def test_a_line_longer_than_all_buffers_is_one_line(size: int) -> None:
    data = b"first\n" + b"x" * size + b"\nlast"
    assert [len(line) for _, line in read(data)] == [6, size + 1, 4]


def test_a_byte_order_mark_at_the_start_is_passed_over() -> None:
    assert read(BOM + b"a\nb\n") == [(5, b"a\n"), (7, b"b\n")]
    assert read(BOM + b"a\nb\n", 5) == [(7, b"b\n")]
    assert read(BOM) == []
    assert read(b"a\n" + BOM + b"b\n") == [(2, b"a\n"), (7, BOM + b"b\n")]


class Stream(io.BytesIO):
    """What a web server without ranges gives: forward only."""

    def seek(self, *args: Any) -> int:
        raise ValueError("Cannot seek streaming HTTP file")


def test_a_stream_that_cannot_seek_is_read_up_to_the_offset() -> None:
    reader = LineReader(Stream(b"one\ntwo\nthree"), False, 4)
    lines = reader.read()
    assert lines is not None
    assert lines.split() == [b"two\n", b"three"]


@pytest.mark.parametrize("offset", [2, 3, 6, 9, 100])
def test_an_offset_where_no_line_begins_is_refused(offset: int) -> None:
    message = f"^no line begins at byte {offset}, where this state goes on: the shard was edited$"
    for forward_only in (False, True):
        with pytest.raises(StateError, match=message):
            read(b"one\ntwo\n", offset, forward_only)


def test_the_end_of_a_file_without_a_newline_is_an_offset_too() -> None:
    assert read(b"one\ntwo", 7) == []


@pytest.mark.parametrize("extension", sorted(COMPRESSIONS))
def test_a_truncated_archive_is_an_error_after_its_whole_lines_wherever_it_breaks_off(
    tmp_path: Path, extension: str
) -> None:
    text = b"".join(b"line %d %s\n" % (number, str(hash(str(number))).encode()) for number in range(3_000))
    data = compressed(text, extension)
    path = tmp_path / f"a.txt{extension}"
    for size in {1, 2, 9, len(data) // 3, len(data) // 2, len(data) - 5, len(data) - 1}:
        path.write_bytes(data[:size])
        shards = Shards((str(path),))
        file, forward_only = shards.open(shards.listed[0])
        reader = LineReader(file, forward_only, 0)
        pieces: list[bytes] = []
        with pytest.raises(DataError, match=r"^cannot be read on: .*; the shard is damaged$"):
            pieces.extend(line for _, line in every(reader))
        seen = b"".join(pieces)
        assert text.startswith(seen)
        assert not seen or seen.endswith(b"\n")
        reader.close()


def test_a_store_that_fails_is_not_called_a_damaged_shard() -> None:
    class Store(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match=r"^gone$"):
        LineReader(Store(), True, 0).read()


def test_an_archive_that_continues_as_garbage_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n") + b"garbage")
    shards = Shards((str(path),))
    file, forward_only = shards.open(shards.listed[0])
    reader = LineReader(file, forward_only, 0)
    with pytest.raises(DataError, match=r"the shard is damaged$"):
        list(every(reader))
    reader.close()
