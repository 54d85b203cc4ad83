from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from tests.samples import counted, tokens


def packed(rows: list[list[int]], length: int, discard: bool) -> list[list[int]]:
    """Sample by sample."""
    packs: list[list[int]] = []
    open_pack: list[int] = []
    for row in rows:
        if len(row) > length and discard:
            continue
        row = row[:length]
        if len(open_pack) + len(row) > length:
            packs.append(open_pack)
            open_pack = []
        open_pack = open_pack + row
    return [pack for pack in [*packs, open_pack] if pack]


@given(st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=8), st.integers(1, 5), st.booleans())
def test_neighbours_are_joined_as_long_as_they_fit(rows: list[list[int]], length: int, discard: bool) -> None:
    columns = ("input_ids", "labels")
    data = tokens(*rows, labels=rows).pack_chunk(length, target_columns=columns, discard_long_samples=discard)
    samples, it = counted(data)
    assert [sample["input_ids"].tolist() for sample in samples] == packed(rows, length, discard)
    assert [sample["labels"].tolist() for sample in samples] == packed(rows, length, discard)
    long = [row for row in rows if len(row) > length]
    cut = sum(len(row) - length for row in long)
    expected = (len(long), 0, sum(map(len, long))) if discard else (0, len(long), cut)
    assert tuple(it.stats[name] for name in ("dropped", "truncated", "dropped_tokens")) == expected


def test_what_is_cut_or_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"input_ids": [1, 2, 3]}] * 1_000
    list(bf.from_iterable(rows).pack_chunk(2))
    list(bf.from_iterable(rows).pack_chunk(2, discard_long_samples=True))
    assert [record.getMessage() for record in caplog.records] == [
        "pack_chunk(2) cuts longer samples",
        "pack_chunk(2) leaves out longer samples",
    ]


def test_packs_go_over_the_ends_of_blocks() -> None:
    rows = [{"input_ids": [number]} for number in range(1_000)]
    packs = [sample["input_ids"].tolist() for sample in bf.from_iterable(rows).pack_chunk(300)]
    assert packs == [list(range(first, min(first + 300, 1_000))) for first in range(0, 1_000, 300)]
