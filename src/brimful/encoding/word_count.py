"""How many different words texts have, estimated from a sample of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from brimful.blocks.ragged import array_of, offsets_in
from brimful.encoding.word_cache import cut

_SAMPLED: Final = 128
_LONG: Final = 16
_TOGETHER: Final = 256
_LEAST: Final = 1 / 8


class WordCount:
    """Estimates how many different words there have been, from every 128th text.

    Words grow as a power of the text (Heaps' law). The exponent is the share of the sample's words that came once: that is the
    rate at which the next text brings new ones (Good and Turing). So words that never come again are counted as they are, and
    a text that comes again adds nothing. An estimate never falls, as texts that come again lower the share. Nor is it less than
    an eighth of what it would be if no word came twice: new texts after such ones are estimated too low, but no lower.

    A long word counts as several. Several threads may add texts: a count is then a little off.

    Price: 1 to 3 ns a token; about 100 bytes for each different word of the sample.

    >>> words = WordCount()
    >>> [round(words.add(pa.array([f"text{number:04}" for number in range(first, first + 1_000)]))) for first in (0, 1_000)]
    [1000, 2000]
    """

    def __init__(self) -> None:
        self._lone: dict[bytes, bool] = {}
        """The words of the sample, and whether each came once. A text counts as one, a long one as one every 256 words: a word
        that a text repeats is no word that the next one has."""
        self._words = self._lone_words = self._texts = self._bytes = self._sampled_bytes = 0
        self._estimate = 0.0

    def add(self, texts: pa.Array) -> float:
        """The estimate for all texts so far, these included.

        Args:
            texts: string or large_string, without nulls.
        """
        sample = texts.take(array_of(np.arange(-self._texts % _SAMPLED, len(texts), _SAMPLED)))
        self._texts += len(texts)
        self._bytes += _bytes_in(texts)
        self._sampled_bytes += _bytes_in(sample)
        pieces = cut(sample)
        words = pieces.array.to_pylist()
        for first, last in pairwise(pieces.firsts.tolist()):
            for start in range(first, last, _TOGETHER):
                self._count({*words[start : min(start + _TOGETHER, last)]})
        if self._words:
            times = self._bytes / self._sampled_bytes
            found = self._words * max(times ** (self._lone_words / self._words), _LEAST * times)
            self._estimate = max(self._estimate, found)
        return self._estimate

    def _count(self, words: set[bytes]) -> None:
        for word in words:
            size = 1 + len(word) // _LONG
            lone = self._lone.get(word)
            self._lone[word] = lone is None
            if lone is None:
                self._words += size
                self._lone_words += size
            elif lone:
                self._lone_words -= size


def _bytes_in(texts: pa.Array) -> int:
    offsets = offsets_in(texts)
    return int(offsets[-1] - offsets[0])
