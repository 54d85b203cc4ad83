from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from tests.samples import shard


def room(longest: dict[str, Any]) -> int:
    return 4 - len(longest["input_ids"])


def batches(folder: Path, **options: Any) -> bf.Batches:
    rows = shard(folder, [{"input_ids": [1] * length} for length in (1, 4, 2, 3, 6)])
    return rows.batch_by(room, lambda sample: len(sample["input_ids"]), shuffle_batches=False, **options)


def lengths(batches: bf.Batches) -> list[list[int]]:
    return [batch["lengths"].tolist() for batch in batches]


def test_a_sample_that_no_batch_may_have_is_an_error_with_its_place_and_the_size(tmp_path: Path) -> None:
    message = (
        r"^batch_size must be at least 1 sample \(got -2, shard a\.jsonl, line 5\). Filter such samples out, or set "
        r"overlong='alone' \(a batch of its own\) or 'drop'$"
    )
    with pytest.raises(bf.DataError, match=message):
        lengths(batches(tmp_path))


def test_such_a_sample_is_left_alone_or_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for word, expected in (("alone", [[6], [4], [3], [2, 1]]), ("drop", [[3], [2, 1]])):
            with batches(tmp_path, overlong=word).iter() as it:
                assert [batch["lengths"].tolist() for batch in it] == expected
                assert (it.stats.alone, it.stats.dropped) == ((2, 0) if word == "alone" else (0, 2))
                assert it.stats.dropped_tokens == (0 if word == "alone" else 6 + 4)
    assert [record.message for record in caplog.records] == [
        f"overlong: samples {word}, as batch_size is -2 (shard a.jsonl, line 5)" for word in ("alone", "dropped")
    ]


def test_there_is_no_length_to_cut_it_to(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^overlong must be one of raise, alone, drop \(got 'truncate'\)$"):
        batches(tmp_path, overlong="truncate")


def test_a_sample_that_no_bucket_holds_is_an_error_or_dropped(tmp_path: Path) -> None:
    message = (
        r"^a sample of 6 tokens \(shard a\.jsonl, line 5\) cannot fit buckets of at most 4; truncate or filter it, add a longer "
        r"bucket, or set overlong='drop'$"
    )
    for word in ("raise", "alone"):
        with pytest.raises(bf.DataError, match=message):
            lengths(batches(tmp_path, buckets=[2, 4], overlong=word))
    with batches(tmp_path, buckets=[2, 4], overlong="drop").iter() as it:
        assert [tuple(batch["input_ids"].shape) for batch in it] == [(1, 4), (2, 2)]
        assert (it.stats.dropped, it.stats.dropped_tokens) == (2, 6 + 4)
