from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from brimful.encoding.word_cache import MAX_BYTES, MAX_COLUMNS, MAX_WORDS, WordCache
from brimful.tables.ragged import Ragged, flat
from tests import tokenizers as make
from tests.encoding.test_encoders import rows_of
from tests.texts import texts


class Asked:
    """A tokenizer that remembers what it was asked for."""

    def __init__(self) -> None:
        self.tokenizer, self.texts = make.bpe(), Counter[str]()

    def __call__(self, given: list[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch_fast(given, add_special_tokens=False)]

    def flat(self, given: list[str]) -> Ragged:
        self.texts.update(given)
        return flat(self(given), len(given))


def kept(cache: WordCache) -> int:
    return len(cache._known) + len(cache._older)


def test_only_words_never_seen_are_tokenised() -> None:
    asked = Asked()
    cache = WordCache(asked.flat)
    for _ in range(2):  # another block, another epoch
        assert rows_of(cache(make.column(["to be or", "or not to be", ""]))) == Asked()(
            ["to be or", "or not to be", ""]
        )
    assert asked.texts == Counter(["to", " be", " or", "or", " not", " to"])
    assert kept(cache) == 6


def test_long_pieces_pass_it_by() -> None:
    asked = Asked()
    cache = WordCache(asked.flat)
    short, long = "x" * MAX_BYTES, "x" * (MAX_BYTES + 1)
    for _ in range(2):
        assert rows_of(cache(pa.array([short, long]))) == Asked()([short, long])
    assert asked.texts == Counter({short: 1, long: 2})


def test_it_never_keeps_more_words_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_COLUMNS <= MAX_WORDS, "columns are bounded by what is kept"
    monkeypatch.setattr("brimful.encoding.word_cache.MAX_WORDS", 50)
    asked = Asked()
    cache = WordCache(asked.flat)
    for block in range(40):
        given = [f"w{block}{row} again w{block}" for row in range(20)]
        assert rows_of(cache(pa.array(given))) == Asked()(given)
        assert kept(cache) <= 50
    assert asked.texts[" again"] < 40  # not each time
    large = [f"{row} b{row}" for row in range(100)]
    assert rows_of(cache(pa.array(large))) == Asked()(large)
    assert kept(cache) <= 50


def test_words_that_come_again_outlive_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.encoding.word_cache.MAX_WORDS", 50)
    asked = Asked()
    cache = WordCache(asked.flat)
    for block in range(200):
        given = [f"often again w{block}{row}" for row in range(9)]
        assert rows_of(cache(pa.array(given))) == Asked()(given)
    assert (asked.texts["often"], asked.texts[" again"]) == (1, 1)
    assert 25 < kept(cache) <= 50


def test_blocks_of_many_words_are_coded_by_the_first_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.encoding.word_cache.MAX_COLUMNS", 40)
    asked = Asked()
    cache, longest = WordCache(asked.flat), "y" * (MAX_BYTES + 1)
    draw = random.Random(4)
    blocks = [
        [" ".join(f"w{draw.randrange(99)}" for _ in range(draw.randrange(size))) for _ in range(9)] + [longest]
        for size in (9, 2, 30, 1, 30, 50, 3, 50)
    ]
    for block in blocks:
        assert rows_of(cache(make.column(block))) == Asked()(block)
    again = {text: count for text, count in asked.texts.items() if count > 1}
    assert again == {longest: len(blocks)}, "known words are asked for again, in columns or not"
    assert len(cache._columns.words) == len(cache._columns.tokens.lengths) == 40
    large, last = [f"{row} b{row}" for row in range(100)], WordCache(asked.flat)
    monkeypatch.setattr("brimful.encoding.word_cache.MAX_WORDS", 60)
    for _ in range(2):
        assert rows_of(last(pa.array(large))) == Asked()(large)
        assert len(last._columns.words) <= 40


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.encoding.word_cache.MAX_WORDS", 300)
    tokenizer = make.bpe()

    def encode(given: list[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch_fast(given, add_special_tokens=False)]

    cache = WordCache(lambda given: flat(encode(given), len(given)))
    blocks = [texts(200, seed=seed) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda block: rows_of(cache(pa.array(block))), blocks)]
    assert found == [encode(block) for block in blocks]
