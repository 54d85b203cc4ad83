from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan.errors import StateError
from brimful.sources.bytes import READ_BYTES
from brimful.sources.forward import BUFFER_BYTES, Records, lines_of, split
from tests.shards import Memory

BOM = b"\xef\xbb\xbf"


def every(buffers: Iterator[Records[bytes]]) -> Iterator[tuple[int, bytes]]:
    """(the offset after it, its bytes) of each line."""
    for lines in buffers:
        yield from zip((lines.offset + lines.ends).tolist(), split(lines.data, lines.ends))


def read(data: bytes, offset: int = 0, forward_only: bool = False) -> list[tuple[int, bytes]]:
    return list(every(lines_of(Memory(data, forward_only), offset)))


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


@pytest.mark.parametrize("offset", [2, 3, 6, 9, 100])
def test_an_offset_where_no_line_begins_is_refused(offset: int) -> None:
    message = f"^no line begins at byte {offset}, where this state goes on: the shard was edited, or another stands in its place$"
    for forward_only in (False, True):
        with pytest.raises(StateError, match=message):
            read(b"one\ntwo\n", offset, forward_only)


def test_the_end_of_a_file_without_a_newline_is_an_offset_too() -> None:
    assert read(b"one\ntwo", 7) == []


def test_a_shard_is_read_on_by_larger_buffers_which_many_open_ones_share() -> None:
    data = (b"x" * 99 + b"\n") * 40_000
    sizes = [len(lines.data) for lines in lines_of(Memory(data), 0)]
    assert sizes[0] < BUFFER_BYTES + READ_BYTES
    assert 4 * BUFFER_BYTES - 100 <= max(sizes) < 4 * BUFFER_BYTES + READ_BYTES
    others = [lines_of(Memory(data), 0) for _ in range(64)]
    for one in others:
        next(one)
    assert max(len(lines.data) for lines in others[0]) < BUFFER_BYTES + READ_BYTES
    del one, others
    assert [len(lines.data) for lines in lines_of(Memory(data), 0)] == sizes
