"""The order of the data is part of the interface: whatever changes it here stands under "Data order" in CHANGELOG.md."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import brimful as bf
from brimful.tables.blocks import Sample
from tests import strategies as draw

ROWS = [{"id": number, "input_ids": [number] * (1 + number * 7 % 10)} for number in range(12)]
URLS = [draw.shard(draw.json_lines(ROWS[number::4]), ".jsonl") for number in range(4)]
LETTERS = [bf.from_sequence(list(letters)) for letters in ("aaaa", "bbbb", "ccccccccc")]


def ids(data: bf.Dataset, count: int = 24) -> list[int]:
    return [int(sample["id"]) for sample in islice(data, count)]


def batches(data: bf.Batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(data, 12)]


def text(data: bf.Dataset) -> str:
    return "".join(sample["text"] for sample in data)


def drawn(sample: Sample, rng: Any) -> Sample:
    return {"id": rng.bit_generator.random_raw() % 1000}


ORDERS: dict[str, tuple[Any, Any]] = {
    "a sequence, shuffled, two epochs": (
        ids(bf.from_sequence(ROWS, shuffle=True, repeat=True)),
        [7, 3, 4, 0, 5, 10, 6, 8, 1, 2, 11, 9, 11, 10, 6, 5, 8, 3, 7, 2, 4, 0, 9, 1],
    ),
    "a shuffle, two epochs": (
        ids(bf.from_iterable(ROWS, repeat=True).shuffle(5)),
        [0, 4, 2, 3, 1, 10, 6, 9, 5, 11, 8, 7, 3, 2, 4, 0, 1, 7, 10, 6, 5, 9, 8, 11],
    ),
    "the same of a sequence": (
        ids(bf.from_sequence(ROWS, repeat=True).shuffle(5)),
        [0, 4, 2, 3, 1, 10, 6, 9, 5, 11, 8, 7, 3, 2, 4, 0, 1, 7, 10, 6, 5, 9, 8, 11],
    ),
    "shards": (ids(bf.from_files(URLS, n_active_shards=2)), [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]),
    "shards, shuffled, two epochs": (
        ids(bf.from_files(URLS, n_active_shards=2, shuffle_shards=True, repeat=True)),
        [3, 1, 7, 5, 11, 9, 2, 0, 6, 4, 10, 8, 2, 0, 6, 4, 10, 8, 1, 3, 5, 7, 9, 11],
    ),
    "streams of shards, batches in turn": (
        batches(bf.from_files(URLS, streams=2, shuffle_shards=True).batch(2)),
        [[3, 2], [1, 0], [7, 6], [5, 4], [11, 10], [9, 8]],
    ),
    "what a seeded function draws": (
        ids(bf.from_sequence(ROWS[:6]).map(drawn, seed=7)),
        [416, 178, 744, 144, 371, 821],
    ),
    "batches of a budget, two epochs": (
        batches(bf.from_sequence(ROWS, repeat=True).batch_by_tokens(20, window=6)),
        [[4, 1], [0], [5, 2, 3], [8, 9], [7, 11], [6, 10], [0], [4, 1], [5, 2, 3], [6, 10], [8, 9], [7, 11]],
    ),
    "batches of a size, in groups": (
        batches(bf.from_iterable(ROWS).batch(2, window=12, balance_group=2)),
        [[7, 4], [1, 11], [6, 3], [0, 10], [8, 5], [2, 9]],
    ),
    "batches by a key": (
        batches(bf.from_sequence(ROWS).batch_by(3, draw.length, window=12)),
        [[7, 4, 1], [2, 9, 6], [3, 0, 10], [11, 8, 5]],
    ),
    "windows, the last of which joins the one before it": (
        batches(bf.from_iterable(ROWS).batch(2, window=5, shuffle_batches=False)),
        [[4, 1], [2, 3], [0], [7, 11], [8, 5], [9, 6], [10]],
    ),
    "packed rows": (
        [[*dict.fromkeys(row["input_ids"][0].tolist())] for row in bf.from_sequence(ROWS).pack(12, window=12)],
        [[7, 3], [5, 0], [1, 0, 10], [11, 9], [4, 6], [8, 2]],
    ),
    "two to one": (text(bf.interleave_datasets(LETTERS[:2], weights=[1.5, 1])), "ababaab"),
    "the worked example of three to two": (
        text(bf.interleave_datasets([bf.from_sequence(["H"] * 6), bf.from_sequence(["K"] * 4)], weights=[1.5, 1])),
        "HKHKHHKHKH",
    ),
    "a mix that goes on without those that have ended": (
        text(bf.interleave_datasets(LETTERS, weights=[1, 2.5, 3], stop="all")),
        "cbacbcbcbacccacca",
    ),
}


@pytest.mark.parametrize(("found", "expected"), ORDERS.values(), ids=ORDERS)
def test_data_order_is_what_it_was(found: Any, expected: Any) -> None:
    assert found == expected
