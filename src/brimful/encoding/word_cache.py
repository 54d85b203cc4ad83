"""Tokens of words that were seen before are looked up; only words never seen are tokenized."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.tables.ragged import Ragged, array_of, gather, numpy_of, offsets_in

MAX_WORDS: Final = 1 << 18
"""Words kept: about 50 MB. More would go on growing for millions of texts, and then be let go of at once."""
MAX_COLUMNS: Final = 1 << 15
"""Words of these that are kept in columns too, the first that came, which are most of any text. Blocks are coded by them: 50 to
80 ns each, and 1 us saved for each that is in the block."""
MAX_BYTES: Final = 64
"""A longer piece is tokenized each time: a sentence of Chinese or Thai, or an address, seldom comes back."""
_ID_BYTES: Final = 4


class _Columns(NamedTuple):
    """Different words, binary with 64-bit offsets, and the tokens of each."""

    words: pa.Array
    tokens: Ragged


_NONE: Final = _Columns(pa.nulls(0, pa.large_binary()), Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)))


class WordCache:
    """The tokens of texts whose tokens are those of their pieces, one piece after the other.

    Whether they are is for the caller to know (`splittable`): where each piece but the last of a text ends in a character that
    is not white space, also when it has been normalised (or where white space is left out); no match of the pre-tokenizer
    holds a space after such a character; every run of white space is matched; it looks behind nowhere, and ahead only by
    `(?!\\S)` or `$`. Then nothing that a tokenizer looks at lies on both sides of a cut.

    Threads share it without a lock: what two of them find new at once, both have tokenized, and keep once.

    At most MAX_WORDS words are kept, in two halves. When the newer half is full it becomes the older one, whose words are
    forgotten, but for those that have come again since: they are in the newer half too.

    Args:
        encode: the tokens of each of some texts, without special tokens, int32, flat.
    Price: 50 to 100 ns a token of words that are known, on one core; the tokenizer's own for new ones, 4 to 10 us each. About
        200 bytes a word kept.

    >>> from brimful.tables.ragged import flat
    >>> asked = []
    >>> def encode(texts):
    ...     asked.extend(texts)
    ...     return flat([[len(text)] for text in texts], len(texts))
    >>> WordCache(encode)(pa.array(["to be", "or not to be"])).values.tolist()
    [2, 3, 2, 4, 3, 3]
    >>> asked
    ['to', ' be', 'or', ' not', ' to']
    """

    def __init__(self, encode: Callable[[list[str]], Ragged]) -> None:
        self._encode = encode
        self._known: dict[bytes, bytes] = {}  # a word's tokens as they lie in memory, int32: joined by one copy
        self._older: dict[bytes, bytes] = {}
        self._columns = _NONE

    def __call__(self, texts: pa.Array) -> Ragged:
        """The tokens of each text, int32, flat.

        Args:
            texts: string or large_string, without nulls.
        """
        pieces = cut(texts)
        known = self._columns if len(pieces.array) > len(self._columns.words) else _NONE
        coded = _coded(known.words, pieces.array)
        found = self._look_up(_bytes_of(coded.dictionary[len(known.words) :]))
        counts = np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // _ID_BYTES
        words = Ragged(
            np.concatenate((known.tokens.values, np.frombuffer(b"".join(found), np.int32))),
            np.concatenate((known.tokens.offsets, known.tokens.offsets[-1] + np.cumsum(counts))),
        )
        if known is self._columns and found:
            self._keep(coded.dictionary, words)
        codes, begins = numpy_of(coded.indices), _narrow(words.offsets)
        tokens = gather(words.values, begins.take(codes), np.diff(begins).take(codes))
        return Ragged(tokens.values, tokens.offsets.take(pieces.firsts))

    def _look_up(self, words: list[bytes]) -> list[bytes]:
        """The tokens of each word, as they lie in memory; what is not known is learnt."""
        known, older, most = self._known, self._older, MAX_WORDS // 2
        found = [*map(known.get, words)]
        missing = [place for place, tokens in enumerate(found) if tokens is None]
        kept: dict[bytes, bytes] = {}
        new = []
        for place in missing:
            if (tokens := older.get(words[place])) is None:
                new.append(place)
            else:
                found[place] = kept[words[place]] = tokens
        for place, tokens in zip(new, self._tokens([words[place].decode() for place in new])):
            found[place] = tokens
            if len(words[place]) <= MAX_BYTES:
                kept[words[place]] = tokens
        if len(known) + len(kept) > most:
            self._older, known, self._columns = known, {}, _NONE  # whose words are in the older half
            self._known = known
        known.update(itertools.islice(kept.items(), most))
        return cast("list[bytes]", found)

    def _keep(self, words: pa.Array, tokens: Ragged) -> None:
        """Keeps words in columns, the first ones; those that are there already are the first."""
        kept = np.flatnonzero(np.diff(offsets_in(words)) <= MAX_BYTES)[:MAX_COLUMNS]
        if len(kept) > len(self._columns.words):
            starts, counts = tokens.spans(kept)
            self._columns = _Columns(words.take(array_of(kept)), gather(tokens.values, starts, counts))

    def _tokens(self, words: list[str]) -> list[bytes]:
        if not words:
            return []
        tokens = self._encode(words)
        memory = tokens.values.tobytes()
        return [memory[first:last] for first, last in itertools.pairwise((_ID_BYTES * tokens.offsets).tolist())]


def _coded(known: pa.Array, pieces: pa.Array) -> pa.DictionaryArray:
    """Pieces by their numbers among the words that are known, which are the first of the dictionary, and others."""
    if not len(known):
        return pieces.dictionary_encode()
    return pa.chunked_array([known, pieces]).dictionary_encode().chunk(1)


def _narrow(offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Where tokens begin, as int32 where that is enough: half of the memory to go through."""
    return offsets.astype(np.int32) if offsets[-1] <= np.iinfo(np.int32).max else offsets


def _bytes_of(array: pa.Array) -> list[bytes]:
    """The values of a binary column."""
    offsets, memory = offsets_in(array), array.buffers()[2]
    data = b"" if memory is None else memory[int(offsets[0]) : int(offsets[-1])].to_pybytes()
    return [data[first:last] for first, last in itertools.pairwise((offsets - offsets[0]).tolist())]


# -- texts cut at their spaces ------------------------------------------------------------------------------------------

_SPACE: Final = ord(" ")
_FIRST_BLACK, _FIRST_WIDE = ord("!"), 0x80
_NOT_WHITE, _WHITE, _PERHAPS = 0, 1, 2
_LAST_BYTES: Final = {0xC2: (0x85, 0xA0), 0xE19A: (0x80,), 0xE281: (0x9F,), 0xE296: (0x81,), 0xE380: (0x80,)} | {
    0xE280: (*range(0x80, 0x8B), 0xA8, 0xA9, 0xAF)
}
"""White space of several bytes: the last one, by those before. U+0085, 00A0, 1680, 205F, 3000, 2000 to 200A, 2028, 2029, 202F.
And U+2581, which stands for a space in the vocabularies of SentencePiece: with the space after it it makes one token."""
_WIDE: Final = np.array(sorted(lead << 8 | last for lead, lasts in _LAST_BYTES.items() for last in lasts))
_KIND: Final = np.zeros(256, dtype=np.uint8)
_KIND[_WIDE & 0xFF] = _PERHAPS
_KIND[[*range(0x09, 0x0E), *range(0x1C, 0x20)]] = _WHITE  # the separators are so to some: not to cut is never wrong


class SplitTexts(NamedTuple):
    """Texts in pieces: `array`, binary with 64-bit offsets, has those of all, end to end; those of text i are
    `array[firsts[i]:firsts[i + 1]]`, int64 (n + 1,)."""

    array: pa.Array
    firsts: NDArray[np.int64]


def cut(texts: pa.Array) -> SplitTexts:
    """Texts cut before each ASCII space that follows a character which is not white space: nothing is lost, and a text's
    pieces but the first begin with one space, or with a run of them.

    It goes by the character before, not by its last byte: those of white space, 0x80 or 0xA0, also end letters (53 % of
    Arabic words, 25 % of Korean ones). SentencePiece's mark, U+2581, is white space here.

    Args:
        texts: a column of text, string or large_string, without nulls.
    Price: 5 to 10 ns a piece; of the texts nothing is copied.

    >>> cut(pa.array(["to be  or", "", "\\u3000 no"])).array.to_pylist()
    [b'to', b' be', b'  or', b'\\xe3\\x80\\x80 no']
    """
    offsets = offsets_in(texts)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[first:last]
    begins = _begins(data)
    begins[offsets - first] = True
    starts = np.flatnonzero(begins)
    memory = [None, array_of(starts).buffers()[1], pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, memory)
    return SplitTexts(array, np.searchsorted(starts, offsets - first))


def _begins(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether a byte is a space that follows a character which is not white space, (n + 1,).

    Of visible ASCII by comparing bytes; what else a space follows, but for spaces, is looked at one by one.
    """
    begins = np.zeros(len(data) + 1, dtype=bool)
    before, after = data[:-1], begins[1:-1]
    np.equal(data[1:], _SPACE, out=after)
    visible = before - np.uint8(_FIRST_BLACK) < _FIRST_WIDE - _FIRST_BLACK  # what is less wraps round
    others = np.flatnonzero(after & ~visible & (before != _SPACE))
    after &= visible
    if len(others):
        kinds = _KIND[before[others]]
        after[others[kinds == _NOT_WHITE]] = True
        doubtful = others[kinds == _PERHAPS]
        last, second, third = (data[doubtful - back].astype(np.int64) for back in (0, 1, 2))
        after[doubtful[~(_is_wide(second << 8 | last) | _is_wide(third << 16 | second << 8 | last))]] = True
    return begins


def _is_wide(characters: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of them are white space, by their bytes. (`np.isin` imports `numpy.ma`, 25 ms.)"""
    found: NDArray[np.bool_] = _WIDE.take(np.searchsorted(_WIDE, characters), mode="clip") == characters
    return found
