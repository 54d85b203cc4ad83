from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brimful.plan.errors import DataError, StateError
from brimful.sources.csv import Dialect, ends_of, fields, header_of, records_of
from brimful.sources.forward import Forward, split
from tests.effort import examples
from tests.shards import Memory
from tests.strategies import small

COMMAS = Dialect(",")
texts = st.text(st.sampled_from('a,"\n\r"\n'), max_size=24).map(str.encode)


def record_end(data: bytes, start: int) -> tuple[int, list[bytes]] | None:
    """Where a record ends, and its fields, byte by byte; None where a quoted field does not end."""
    found, field, place, quoted, begun = [], b"", start, False, False
    while True:
        byte = data[place : place + 1]
        if quoted:
            if not byte:
                return None
            if byte != b'"':
                field += byte
            elif data[place + 1 : place + 2] == b'"':
                field += byte
                place += 1
            else:
                quoted = False
        elif byte == b'"' and not begun:
            quoted = begun = True
        elif byte == b",":
            found.append(field)
            field, begun = b"", False
        elif byte in (b"", b"\n", b"\r"):
            crlf = data[place : place + 2] == b"\r\n"
            return place + (2 if crlf else len(byte)), [*found, field]
        else:
            field, begun = field + byte, True
        place += 1


def line_end(data: bytes, start: int) -> int:
    ends = [place for place in range(start, len(data)) if data[place : place + 1] in (b"\n", b"\r")]
    end = ends[0] + 1 if ends else len(data)
    return end + (data[end - 1 : end + 1] == b"\r\n")


def expected(data: bytes, longest: int = 1 << 24, start: int = 0) -> Iterator[tuple[int, bytes, list[bytes] | None]]:
    """(where it ends, its bytes, its fields) of each record; None for the fields of a line on which a field is left open."""
    while start < len(data):
        found, line = record_end(data, start), line_end(data, start)
        if found is None or (found[0] - start > longest and found[0] != line):
            found = None
        end = line if found is None else found[0]
        yield end, data[start:end], None if found is None else found[1]
        start = end


@given(texts)
@example(b'"a"b\n"')
@example(b'a"\n"\n"\n')
@example(b'""""\n"""')
@example(b"a\r\n\rb")
@examples(600)
def test_records_end_where_quotes_that_begin_fields_say(data: bytes) -> None:
    whole = []
    for end, text, found in expected(data):
        if found is None:
            break
        whole.append(end)
        assert fields(text, COMMAS) == found
    assert ends_of(data, COMMAS, last=True).tolist() == whole
    for size in range(len(data)):  # what follows may go on with the last one
        certain = ends_of(data[:size], COMMAS, last=False).tolist()
        assert certain == whole[: len(certain)]
        assert len(certain) >= sum(end < size for end in whole) - 1


def every(data: bytes, offset: int = 0, forward_only: bool = False) -> list[tuple[int, bytes, bool]]:
    ahead = Forward(Memory(data, forward_only))
    assert header_of(ahead, COMMAS)[0]
    ahead.pass_newline(offset or ahead.offset, b"\n", b"\r")
    found = []
    for records in records_of(ahead, COMMAS):
        for end, text in zip(records.ends.tolist(), split(records.data.text, records.ends)):
            found.append((records.offset + end, text, records.data.unclosed is not None))
    return found


@given(texts, st.sampled_from([4, 8, 1 << 20]), st.sampled_from([3, 8, 1 << 24]))
@example(b'"a\nb"\r\n"c\r\nd\n"', 4, 3)
@examples(150)
def test_records_are_the_same_whatever_the_buffers_and_wherever_reading_goes_on(
    data: bytes, size: int, longest: int
) -> None:
    data = b"h,h\n" + data
    want = [(end, text, found is None) for end, text, found in expected(data, longest, start=4)]
    with small(4, size), patch("brimful.sources.csv.RECORD_BYTES", longest):
        assert every(data) == want
        for number, (end, _, _) in enumerate(want):
            assert every(data, end, forward_only=number % 2 == 1) == want[number + 1 :]


def test_one_line_may_be_longer_than_any_record_of_several() -> None:
    data = b"h\n" + b'"' + b"x" * 300 + b'"\n' + b'"' + b"x" * 300 + b'\n"\nb\n'
    with small(4, 16), patch("brimful.sources.csv.RECORD_BYTES", 100):
        assert [(len(text), unclosed) for _, text, unclosed in every(data)] == [
            (303, False),
            (302, True),
            (2, True),
            (2, False),
        ]


def test_a_field_that_is_never_closed_is_not_held_in_memory() -> None:
    data = b'h\n"x\n' + b"y\n" * (1 << 20)
    largest = 0
    with patch("brimful.sources.csv.RECORD_BYTES", 1 << 16):
        ahead = Forward(Memory(data))
        header_of(ahead, COMMAS)
        lines = 0
        for records in records_of(ahead, COMMAS):
            largest = max(largest, len(ahead.data) + len(records.data.text))
            lines += len(records.ends)
    assert lines == (1 << 20) + 1
    assert largest < 1 << 21


@pytest.mark.parametrize("offset", [1, 6, 8, 100])
def test_an_offset_where_no_line_begins_is_refused(offset: int) -> None:
    message = f"^no line begins at byte {offset}, where this state goes on: the shard was edited, or another stands in its place$"
    for forward_only in (False, True):
        with pytest.raises(StateError, match=message):
            every(b"h,h\none\r\ntwo\n", offset, forward_only)


def test_blank_lines_and_a_byte_order_mark_lie_before_a_header() -> None:
    ahead = Forward(Memory(b'\xef\xbb\xbf\r\n\n"a\nb"\nrow\n'))
    assert header_of(ahead, COMMAS) == (b'"a\nb"\n', 4)
    for nothing in (b"", b"\xef\xbb\xbf", b"\n\r\n"):
        assert header_of(Forward(Memory(nothing)), COMMAS) == (b"", nothing.count(b"\n"))
    message = (
        r"^this shard has no header: a quoted field begins here and does not end before the shard ends; close it, or"
    )
    with pytest.raises(DataError, match=message):
        header_of(Forward(Memory(b'"a\nb\n')), COMMAS)
