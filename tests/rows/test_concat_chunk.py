from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import counted, ids, shard, tokens


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=6), st.integers(1, 5))
def test_samples_are_cut_end_to_end(rows: list[list[int]], length: int) -> None:
    flat = [value for row in rows for value in row]
    whole = len(flat) // length * length
    data = tokens(*rows, labels=rows).concat_chunk(length, target_columns=("input_ids", "labels"))
    samples, it = counted(data)
    expected = [flat[start : start + length] for start in range(0, whole, length)]
    assert [sample["input_ids"].tolist() for sample in samples] == expected
    assert [sample["labels"].tolist() for sample in samples] == expected
    assert it.stats["dropped_tokens"] == len(flat) - whole


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=6), st.integers(1, 5))
def test_a_last_chunk_is_shorter_where_the_remainder_is_kept(rows: list[list[int]], length: int) -> None:
    flat = [value for row in rows for value in row]
    data = tokens(*rows, labels=rows).concat_chunk(length, target_columns=("input_ids", "labels"), drop_remainder=False)
    samples, it = counted(data)
    expected = [flat[start : start + length] for start in range(0, len(flat), length)]
    assert [sample["input_ids"].tolist() for sample in samples] == expected
    assert [sample["labels"].tolist() for sample in samples] == expected
    assert it.stats["dropped_tokens"] == 0


def test_the_remainder_of_data_that_repeat_begins_the_next_epoch_either_way() -> None:
    data = bf.from_sequence([{"input_ids": [1, 2, 3]}], repeat=True)
    for drop in (True, False):
        assert ids(data.concat_chunk(2, drop_remainder=drop).take(3)) == [[1, 2], [3, 1], [2, 3]]
    with pytest.raises(TypeError, match=r"^drop_remainder must be True or False \(got 1\)$"):
        data.concat_chunk(2, drop_remainder=1)  # type: ignore[arg-type]


def test_chunks_go_over_the_ends_of_blocks() -> None:
    rows = [{"input_ids": [number] * 3} for number in range(1_000)]
    chunks = [sample["input_ids"].tolist() for sample in bf.from_iterable(rows).concat_chunk(1_000)]
    assert [value for chunk in chunks for value in chunk] == [number for number in range(1_000) for _ in range(3)]
    assert [len(chunk) for chunk in chunks] == [1_000] * 3


def test_an_epoch_fills_the_chunk_that_the_one_before_began() -> None:
    data = bf.from_sequence([{"input_ids": [1, 2, 3]}], repeat=True).concat_chunk(2)
    assert ids(data.take(4)) == [[1, 2], [3, 1], [2, 3], [1, 2]]
    for size in (2, 4):
        assert sorted(ids(data.shuffle(size).take(4))) == [[1, 2], [1, 2], [2, 3], [3, 1]], "what is shuffled, too"


def test_a_chunk_comes_from_where_it_begins(tmp_path: Path) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        assert sample["input_ids"][0] == 1
        return sample

    rows = [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}, {"input_ids": [5, 6]}]
    with pytest.raises(bf.StageError, match=r"^map\(fails\) failed at shard a\.jsonl, line 2: AssertionError"):
        list(shard(tmp_path, rows).concat_chunk(3).map(fails))


def test_what_is_left_of_a_sample_is_known_however_many_empty_ones_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.rows.chunks.MOST_LEFT_OUT", 5)
    rows = [[1] * 10, *[[]] * 200, [2] * 9]
    assert_exact_resume(lambda: tokens(*rows).concat_chunk(8))
