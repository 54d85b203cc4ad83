"""How many words texts have, as far as a sample of them tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from brimful.encoding.compiled import WordCount
from brimful.encoding.word_cache import cut

BLOCK = 1_000


def new_words(blocks: int = 20) -> Iterator[list[str]]:
    """No word comes twice."""
    for block in range(blocks):
        yield [f"w{block}-{row} v{block}-{row}" for row in range(BLOCK)]


def zipf(blocks: int = 20, exponent: float = 1.3) -> Iterator[list[str]]:
    """As often as words of languages come."""
    draw = np.random.default_rng(7)
    for _ in range(blocks):
        words = draw.zipf(exponent, (BLOCK, 40)).tolist()
        yield [" ".join(f"w{word}" for word in row) for row in words]


def again() -> Iterator[list[str]]:
    for _ in range(8):
        yield from zipf(8)


def two_kinds() -> Iterator[list[str]]:
    """Known words, and then new ones."""
    yield from zipf(20)
    yield from new_words(60)


@pytest.mark.parametrize("blocks", [new_words, zipf, again, two_kinds])
def test_it_is_near_the_number_that_there_are(blocks: type[Iterator[list[str]]]) -> None:
    words, there = WordCount(), set()
    for block in blocks():
        there |= {*cut(pa.array(block)).array.unique().to_pylist()}
        estimate = words.add(pa.array(block))
        assert 0.4 * len(there) < estimate < 5 * len(there)


def test_texts_that_come_again_add_nothing() -> None:
    words, blocks = WordCount(), [*zipf(5)]  # 5,000 texts: each time others of them are in the sample
    passes = [[words.add(pa.array(block)) for block in blocks][-1] for _ in range(30)]
    assert passes == sorted(passes)
    assert passes[2] < 3 * passes[0]
    assert passes[-1] == passes[16] < 8 * passes[0]


def test_long_words_count_as_several() -> None:
    assert round(WordCount().add(pa.array(["x" * 160]))) == 11


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_no_texts_and_empty_ones(kind: pa.DataType) -> None:
    words = WordCount()
    assert [words.add(pa.array(given, kind)) for given in ([], [""], ["", "a"])] == [0, 0, 0]
    assert round(words.add(pa.array(["b"] * 131, kind).slice(3))) == 129
