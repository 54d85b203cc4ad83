from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brimful.sources import text
from brimful.sources.formats import FORMATS
from tests.damage import outcome
from tests.effort import examples
from tests.shards import Memory
from tests.strategies import small

TEXT = FORMATS["text"]


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff", b" "]), max_size=20).map(b"".join))
@example(b"\r")
@example(b"a\r\r\n\r")
@example(b"\r\n\n")
@examples(300)
def test_lines_are_what_stands_between_newlines_from_any_line_on(data: bytes) -> None:
    lines = data.split(b"\n")[: None if data[-1:] not in (b"\n", b"") else -1]
    good = [{"text": line.removesuffix(b"\r").decode()} for line in lines if b"\xff" not in line]
    for size in (4, 1 << 20):
        with small(4, size):
            found = outcome(TEXT, data, text.SCHEMA)
            assert (found.rows, found.skipped, found.error) == (good, len(lines) - len(good), None)
            for number, at in enumerate(found.positions):
                assert outcome(TEXT, data, text.SCHEMA, at=at).rows == good[number + 1 :]


def test_only_buffers_with_bad_lines_are_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    one_by_one = text._one_by_one

    def counting(lines: Any) -> Any:
        seen.append(len(lines.ends))
        return one_by_one(lines)

    monkeypatch.setattr(text, "_one_by_one", counting)
    data = "".join(f"line {number}, é\r\n" for number in range(100_000)).encode()
    assert len(outcome(TEXT, data, text.SCHEMA).rows) == 100_000
    assert seen == []
    with small(100, 1 << 14):
        found = outcome(TEXT, data.replace(b"line 70000,", b"line \xff,"), text.SCHEMA)
    assert (len(found.rows), found.skipped) == (99_999, 1)
    assert len(seen) == 1
    assert seen[0] < 5_000
    assert TEXT.infer(Memory(b""), None, "shard x", "raise") == text.SCHEMA
