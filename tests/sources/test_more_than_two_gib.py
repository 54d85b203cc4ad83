"""Texts that Arrow's offsets of 32 bits do not hold together. Takes 5 GB of memory: in the soak only."""

from __future__ import annotations

from typing import Any

import pytest

import brimful as bf
from tests.effort import SOAK

pytestmark = pytest.mark.skipif(not SOAK, reason="takes 5 GB of memory")

SIZE = 800 << 20


def rows(key: str = "text") -> list[dict[str, Any]]:
    text = "x" * SIZE
    return [{"n": number, key: text if key == "text" else {"t": text}} for number in range(3)]


@pytest.mark.parametrize(
    "way",
    [
        lambda: bf.from_sequence(rows()),
        lambda: bf.from_iterable(rows()),
        lambda: bf.from_sequence([{"n": 0}]).flat_map(lambda _: rows()),
        lambda: bf.from_iterable(rows()).shuffle(3, seed=1),
        lambda: bf.from_iterable(rows("m")).map(lambda row: {"n": row["n"], "text": row["m"]["t"]}),
        lambda: bf.from_iterable(rows()).map_blocks(lambda block: block),
    ],
    ids=["sequence", "iterable", "flat_map", "shuffle", "objects", "map_blocks"],
)
def test_texts_of_a_block_may_be_longer(way: Any) -> None:
    assert sorted((sample["n"], len(sample["text"])) for sample in way()) == [(number, SIZE) for number in range(3)]


def test_texts_of_a_batch_may_be_longer() -> None:
    (batch,) = bf.from_iterable(rows()).batch(3)
    assert [len(text) for text in batch["text"]] == [SIZE] * 3
