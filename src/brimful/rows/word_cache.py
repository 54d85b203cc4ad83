"""Tokens of words that were seen before are looked up; only words never seen are tokenised."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import numpy as np
import pyarrow as pa

from brimful.core.errors import require
from brimful.rows.pieces import cut
from brimful.rows.ragged import Ragged, flat, gather, numpy_of, offsets_in, offsets_of

MAX_WORDS: Final = 1 << 20
"""Words kept: about 200 MB where so many different ones come."""
MAX_BYTES: Final = 64
"""A longer piece is tokenised each time: a sentence of Chinese or Thai, or an address, seldom comes back."""
_ID_BYTES: Final = 4


class WordCache:
    """The tokens of texts whose tokens are those of their pieces, one piece after the other.

    Whether they are is for the caller to know (`cuttable`): where each piece but the last of a text ends in a character that
    is not white space, also when it has been normalised (or where white space is left out); no match of the pre-tokenizer
    holds a space after such a character; every run of white space is matched; it looks behind nowhere, and ahead only by
    `(?!\\S)` or `$`. Then nothing that a tokenizer looks at lies on both sides of a cut.

    Threads share it without a lock: what two of them find new at once, both have tokenised, and keep once.

    Args:
        encode: the tokens of each of some texts, without special tokens.
        max_words: when more would be kept, all are forgotten, and learnt again as they come.
    Price: 60 to 120 ns a token of words that are known, on one core; the tokenizer's own for new ones, 10 us each. About 200
        bytes a word kept.

    >>> asked = []
    >>> def encode(texts):
    ...     asked.extend(texts)
    ...     return [[len(text)] for text in texts]
    >>> WordCache(encode)(pa.array(["to be", "or not to be"])).values.tolist()
    [2, 3, 2, 4, 3, 3]
    >>> asked
    ['to', ' be', 'or', ' not', ' to']
    """

    def __init__(self, encode: Callable[[list[str]], Iterable[Sequence[int]]], *, max_words: int = MAX_WORDS) -> None:
        require("max_words", max_words, 1, "word")
        self._encode, self._max_words = encode, max_words
        self._known: dict[bytes, bytes] = {}  # a word's tokens as they lie in memory, int32: joined by one copy

    def __call__(self, texts: pa.Array) -> Ragged:
        """The tokens of each text, int32, flat.

        Args:
            texts: string or large_string, without nulls.
        """
        pieces = cut(texts)
        coded = pieces.array.dictionary_encode()
        found = self._look_up(_bytes_of(coded.dictionary))
        counts = np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // _ID_BYTES
        codes = numpy_of(coded.indices)
        tokens = gather(
            np.frombuffer(b"".join(found), np.int32), offsets_of(counts)[:-1].take(codes), counts.take(codes)
        )
        return Ragged(tokens.values, tokens.offsets.take(pieces.firsts))

    def __len__(self) -> int:
        return len(self._known)

    def _look_up(self, words: list[bytes]) -> list[bytes]:
        """The tokens of each word, as they lie in memory; what is not known is learnt."""
        known = self._known
        found = [*map(known.get, words)]
        new = [place for place, tokens in enumerate(found) if tokens is None]
        kept: dict[bytes, bytes] = {}
        for place, tokens in zip(new, self._tokens([words[place].decode() for place in new])):
            found[place] = tokens
            if len(words[place]) <= MAX_BYTES:
                kept[words[place]] = tokens
        if len(known) + len(kept) > self._max_words:
            known = self._known = {}
        known.update(itertools.islice(kept.items(), self._max_words))
        return cast("list[bytes]", found)

    def _tokens(self, words: list[str]) -> list[bytes]:
        if not words:
            return []
        tokens = flat(self._encode(words), len(words))
        memory = tokens.values.tobytes()
        return [memory[first:last] for first, last in itertools.pairwise((_ID_BYTES * tokens.offsets).tolist())]


def _bytes_of(array: pa.Array) -> list[bytes]:
    """The values of a binary column that begins its memory."""
    memory = array.buffers()[2]
    data = b"" if memory is None else memory.to_pybytes()
    return [data[first:last] for first, last in itertools.pairwise(offsets_in(array).tolist())]
