from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.counters import with_counters
from brimful.core.run import Run
from brimful.rows.chunks import ConcatChunk, PackChunk
from brimful.testing import assert_exact_resume
from tests import strategies as draw
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


@pytest.mark.parametrize("verb", ["pack_chunk", "concat_chunk"])
def test_rows_that_put_no_token_into_a_chunk_are_not_held(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of them would be, until a chunk is full, and a resume would read them again."""
    held = 0

    def cut(self: Any, rows: Any, *arguments: Any) -> Any:
        nonlocal held
        held = max(held, rows.num_rows)
        return made(self, rows, *arguments)

    cls = PackChunk if verb == "pack_chunk" else ConcatChunk
    made = cls.cut
    monkeypatch.setattr(cls, "cut", cut)
    empty: list[int] = [1] * 9 if verb == "pack_chunk" else []
    rows = [{"input_ids": [1, 1] if number % 500 == 0 else empty} for number in range(20_000)]
    options = {"discard_long_samples": True} if verb == "pack_chunk" else {}
    chunks = [sample["input_ids"].tolist() for sample in getattr(bf.from_iterable(rows), verb)(8, **options)]
    assert chunks == [[1] * 8] * 10
    assert held <= 24


def test_a_resume_reads_few_of_the_rows_that_were_left_out() -> None:
    read = 0

    def counts(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal read
        read += 1
        return sample

    def run(every: int, at: Any, count: int) -> tuple[list[list[int]], Any]:
        rows = ({"input_ids": [number] if number % every == 0 else [0] * 9} for number in range(60_000))
        data = bf.from_iterable(list(rows)).map(counts).pack_chunk(3, discard_long_samples=True)
        with data.iter(at) as it:
            return [next(it)["input_ids"].tolist() for _ in range(count)], it.state_dict()

    given, state = run(1_000, None, 15)
    assert given == [[3_000 * number, 3_000 * number + 1_000, 3_000 * number + 2_000] for number in range(15)]
    assert read > 40_000
    read = 0
    assert run(1_000, state, 2)[0] == [[45_000, 46_000, 47_000], [48_000, 49_000, 50_000]]
    assert read < 20_000
    # packs of a few rows each are not joined over many blocks
    read = 0
    given, state = run(50, None, 30)
    assert given[-1] == [4_350, 4_400, 4_450]
    assert read > 4_400
    read = 0
    assert run(50, state, 1)[0] == [[4_500, 4_550, 4_600]]
    assert read < 1_200
    # samples that are so far apart are no neighbours
    given, state = run(5_000, None, 5)
    assert given == [[number, number + 5_000] for number in range(0, 50_000, 10_000)]
    read = 0
    assert run(5_000, state, 1)[0] == [[50_000, 55_000]]
    assert read < 30_000
    # and none need come for a pack to be complete
    read = 0
    assert run(60_000, None, 1)[0] == [[0]]
    assert read < 10_000


def test_what_a_resume_reads_again_is_not_counted_again() -> None:
    rows = [{"input_ids": [1] * (1 + 8 * (number % 40 > 0))} for number in range(400)]
    stage = PackChunk(bf.from_iterable(rows).stage, ("input_ids",), 3, True)

    def run(at: Any, count: int | None) -> Any:
        with closing(stage.items(at, Run())) as items:
            return [state for _, state in islice(items, count)][-1]

    for count in (1, 3, 6, 9):
        state, before = with_counters(run, stage.start(0), count)
        _, after = with_counters(run, state, None)
        assert before["dropped"][0] + after["dropped"][0] == 390


@pytest.mark.parametrize("size", [1, 3, 64])
def test_samples_with_too_many_left_out_between_them_share_no_pack_however_blocks_are_cut(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("brimful.rows.chunks", "brimful.rows.chunks"):
        monkeypatch.setattr(f"{module}.MOST_LEFT_OUT", 5)
    lengths = np.where(np.random.default_rng(1).random(200) < 0.6, 9, 1).tolist()
    packs: list[list[int]] = [[]]
    left_out = 0
    for number, length in enumerate(lengths):
        if length > 4:
            left_out += 1
            continue
        if len(packs[-1]) == 4 or left_out >= 5:
            packs.append([])
        left_out = left_out if packs[-1] else 0
        packs[-1].append(number)
    assert {*map(len, packs)} >= {2, 3, 4}

    def made() -> bf.Dataset:
        rows = [{"input_ids": [number] * length} for number, length in enumerate(lengths)]
        return bf.from_iterable(rows).pack_chunk(4, discard_long_samples=True)

    with draw.small(size):
        assert [sample["input_ids"].tolist() for sample in made()] == packs
        assert_exact_resume(made, max_resumes=10)


def test_packs_go_over_the_ends_of_blocks() -> None:
    rows = [{"input_ids": [number]} for number in range(1_000)]
    packs = [sample["input_ids"].tolist() for sample in bf.from_iterable(rows).pack_chunk(300)]
    assert packs == [list(range(first, min(first + 300, 1_000))) for first in range(0, 1_000, 300)]
