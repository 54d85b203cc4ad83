"""A compiled tokenizer, gigatoken, where it is installed: a column of texts in, a column of tokens out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.ragged import Ragged, array_of, gather, offsets_in
from brimful.core.distinct import distinct
from brimful.encoding.splittable import (
    CL100K,
    DEEPSEEK_V3,
    MARK,
    O200K,
    QWEN2,
    QWEN3_5,
    Part,
    name_of,
    split_of,
    steps_of,
)
from brimful.encoding.word_cache import cut

_CHINESE: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_PATTERNS: Final = (
    *([pattern] for pattern in (CL100K, O200K, QWEN2, QWEN3_5)),
    [r"\p{N}{1,3}", _CHINESE, DEEPSEEK_V3.replace(r"\r\n", "\r\n")],
)
"""Of Split, isolated, with ByteLevel after it."""
_NEW: Final = np.array(
    [
        0x558, 0x559, 0x58B, 0x58D, 0x5C8, 0x5CA, 0x7FD, 0x7FE, 0x88F, 0x890, 0x897, 0x8A0, 0x8CA, 0x8D4, 0x9FE, 0x9FF,
        0xB53, 0xB55, 0xC3C, 0xC3D, 0xC5C, 0xC5D, 0xCDC, 0xCDD, 0xCF3, 0xCF4, 0xD3B, 0xD3D, 0xEBA, 0xEBB, 0xECE, 0xECF,
        0x1715, 0x1716, 0x1ABF, 0x1AF1, 0x1B4E, 0x1B50, 0x1B7F, 0x1B80, 0x1C89, 0x1C8B, 0x1DF6, 0x1DFB, 0x208F, 0x2090,
        0x209D, 0x20A0, 0x20C1, 0x20C5, 0x2427, 0x242A, 0x2B96, 0x2B97, 0x2E60, 0x2E64, 0x2FFC, 0x3000, 0x31E4, 0x31F0,
        0xA7CB, 0xA7D0, 0xA7D2, 0xA7D3, 0xA7D4, 0xA7D5, 0xA7DA, 0xA7F2, 0xA82C, 0xA82D, 0xAB6C, 0xAB6E, 0xFBC3, 0xFBD3,
        0xFD90, 0xFD92, 0xFDC8, 0xFDCF, 0x105C0, 0x105F4, 0x107BB, 0x107C0, 0x10940, 0x1095A, 0x10D24, 0x10D28, 0x10D40,
        0x10D90, 0x10EAB, 0x10EAD, 0x10EC2, 0x10F00, 0x10F46, 0x10F51, 0x10F82, 0x10F86, 0x11070, 0x11071, 0x1123F,
        0x11242, 0x1133B, 0x1133C, 0x11380, 0x113E3, 0x1145E, 0x1145F, 0x116D0, 0x116E4, 0x11839, 0x1183B, 0x11930,
        0x11931, 0x1193D, 0x1193F, 0x11943, 0x11944, 0x119E0, 0x119E1, 0x11A34, 0x11A35, 0x11A47, 0x11A48, 0x11A99,
        0x11A9A, 0x11B00, 0x11BFA, 0x11D42, 0x11D43, 0x11D44, 0x11D46, 0x11D97, 0x11D98, 0x11DB0, 0x11DF2, 0x11F00,
        0x11F5B, 0x1246F, 0x12470, 0x12475, 0x12480, 0x12550, 0x12687, 0x1342F, 0x13430, 0x13439, 0x143FB, 0x16100,
        0x1613A, 0x16D40, 0x16D7A, 0x16EA0, 0x16ED4, 0x16FF0, 0x16FF7, 0x187F8, 0x18800, 0x18CD6, 0x18D00, 0x18D09,
        0x191D3, 0x1B123, 0x1B133, 0x1B155, 0x1B156, 0x1B168, 0x1B169, 0x1CC00, 0x1CEFE, 0x1D127, 0x1D129, 0x1D1EB,
        0x1D200, 0x1D250, 0x1D2D4, 0x1D6A6, 0x1D6A7, 0x1DB00, 0x1DB1D, 0x1DF1F, 0x1E000, 0x1E030, 0x1E090, 0x1E130,
        0x1E137, 0x1E2AE, 0x1E2AF, 0x1E2EC, 0x1E2F0, 0x1E4D0, 0x1E700, 0x1F1AE, 0x1F1AF, 0x1F6D8, 0x1F6DD, 0x1F774,
        0x1F780, 0x1F7D9, 0x1F7DC, 0x1F7F1, 0x1F800, 0x1F8B2, 0x1F8D9, 0x1FA54, 0x1FA58, 0x1FA75, 0x1FA78, 0x1FA87,
        0x1FA90, 0x1FAAD, 0x1FAB0, 0x1FABB, 0x1FAC0, 0x1FAC6, 0x1FAD0, 0x1FADA, 0x1FAE0, 0x1FAE8, 0x1FAF0, 0x1FAF7,
        0x1FAFB, 0x1FBCB, 0x1FBF0, 0x1FBFA, 0x1FBFB, 0x2B739, 0x2B740, 0x2B81E, 0x2B81F, 0x2CEA2, 0x2CEAE, 0x2EBF0,
        0x2EE5E, 0x31350, 0x3FC40,
    ]
)  # fmt: skip
"""Where the characters begin and end that came with Unicode 15 to 18, and of the older ones those that have been put in order, or
composed, since Unicode 10. Of which of the new ones are letters, numbers or marks gigatoken (Unicode 17) and tokenizers (16) know
different things: 4,657 of them made other tokens, and of the older ones none, when all characters were tried. NFC of tokenizers
is that of Unicode 9: it leaves later marks where they stand."""
MAX_WORDS: Final = 1 << 20
"""About 100 MB of gigatoken's own caches on two cores: each of its threads has one, which grows by 50 bytes a word."""


def why_not(tokenizer: Part, split_special_tokens: bool) -> str | None:
    """Why gigatoken may make other tokens of a text than this tokenizer, or none; None where it makes the same.

    By fuzzing. What it takes and does in silence otherwise: special tokens that are to be split, dropout, suffixes, matches that
    are removed, a space before words where a pattern splits them, byte-level without a pattern, added tokens that are
    `single_word`, `rstrip`, or `normalized` with a normaliser, or begin with the space that is put before texts.

    Args:
        tokenizer: as `splittable.described` has it.
    """
    model, steps, changes = tokenizer["model"], steps_of(tokenizer["pre_tokenizer"]), steps_of(tokenizer["normalizer"])
    if split_special_tokens:
        return "gigatoken knows no split_special_tokens"
    if model["type"] != "BPE":
        return f"gigatoken does no {model['type']}"
    if unknown := [one for one in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if model.get(one)]:
        return f"gigatoken is not known to do BPE with {unknown[0]}"
    names = [name_of(step) for step in changes]
    known = _by_marks(model, steps, names) if model["byte_fallback"] else _by_bytes(steps, names)
    if not known:
        parts = " + ".join([*names, *(step["type"] for step in steps)])
        return f"gigatoken is not known to do {parts or 'whole texts'}"
    added = tokenizer["added_tokens"]
    alike, prefix = not names and all(one.normalized for one in added), steps and steps[0].get("add_prefix_space")
    for token in added:
        spaced = prefix and token.content.startswith(" ")  # it finds them in the space that it puts before a text
        if token.single_word or token.rstrip or spaced or (token.normalized and not alike):
            return f"gigatoken is not known to do added tokens such as {token.content!r}"
    return None


def _by_bytes(steps: list[Part], names: list[str]) -> bool:
    if not steps or steps[-1]["type"] != "ByteLevel" or names not in ([], ["NFC"]):
        return False
    *splits, last = steps
    if not splits:
        return bool(last.get("use_regex", True))
    if last.get("use_regex", True) or last["add_prefix_space"] or any(step["type"] != "Split" for step in splits):
        return False
    found = [split_of(step) for step in splits]
    return [pattern for pattern, _, _ in found] in _PATTERNS and all(one[1:] == ("Isolated", False) for one in found)


def _by_marks(model: Part, steps: list[Part], names: list[str]) -> bool:
    vocabulary = model["vocab"]()
    if model["ignore_merges"] or any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)):
        return False
    match [step["type"] for step in steps], names:
        case ["Metaspace"], []:
            return bool(steps[0]["replacement"] == MARK)
        case ["Split"], ["mark"]:
            return split_of(steps[0]) == (" ", "MergedWithPrevious", False)
        case [], ["prepend mark", "mark"]:
            return True
    return False


def installed() -> bool:
    return importlib.util.find_spec("gigatoken") is not None


def make(serialized: str) -> Any:
    """A gigatoken.Tokenizer of a tokenizer.json. Price: .1 to .4 s, awkward's import included."""
    import gigatoken

    return gigatoken.Tokenizer.from_json(serialized)


def json_of(tokenizer: Any) -> str | None:
    """The tokenizer.json that a gigatoken.Tokenizer was made of; None where there was none."""
    text = tokenizer._hf_json  # it has no public name for it
    return text.decode() if isinstance(text, bytes) else text


def encode(tokenizer: Any, texts: pa.Array) -> Ragged:
    """The tokens of each text of a column, int32, by a gigatoken.Tokenizer. Price: 20 to 60 ns a token, both cores."""
    import awkward

    offsets = offsets_in(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    letters = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    rows = awkward.contents.ListOffsetArray(awkward.index.Index64(offsets), letters, parameters={"__array__": "string"})
    found = tokenizer.encode_batch(awkward.Array(rows)).layout
    values: NDArray[np.uint32] = np.asarray(found.content.data)
    return Ragged(values.view(np.int32), np.asarray(found.offsets.data))


class Compiled:
    """The tokens of texts by a gigatoken.Tokenizer that is as the user's own; texts with characters that the two may know
    different things of go to that.

    Its memory grows by 50 bytes a distinct word and thread of its own, so it is made anew, which takes .15 s, when there have
    been 10^6 of them as `WordCount` estimates. Threads share it without a lock.

    Args:
        make: makes it.
        own: the tokens of each of some texts by the user's own, without special tokens, int32, flat.
    Raises:
        Exception: what `make` raises, which refuses what it does not know.
    """

    def __init__(self, make: Callable[[], Any], own: Callable[[list[str]], Ragged]) -> None:
        self._make, self._own = make, own
        self._made = make()
        self._words = WordCount()

    def __call__(self, texts: pa.Array) -> Ragged:
        """The tokens of each text, int32, flat.

        Args:
            texts: string or large_string, without nulls.
        """
        tokens = encode(self._made, texts)
        if self._words.add(texts) > MAX_WORDS:
            self._made, self._words = self._make(), WordCount()
        rows = with_new_characters(texts)
        if not len(rows):
            return tokens
        others = self._own(texts.take(array_of(rows)).to_pylist())
        starts, counts = tokens.offsets[:-1].copy(), tokens.lengths
        starts[rows], counts[rows] = len(tokens.values) + others.offsets[:-1], others.lengths
        return gather(np.concatenate((tokens.values, others.values)), starts, counts)


def with_new_characters(texts: pa.Array) -> NDArray[np.int64]:
    """The texts, by number, that have a character of which the two may know different things, as it is new to Unicode.

    Price: nothing to speak of in ASCII; 5 to 10 ns a letter of other scripts.

    >>> with_new_characters(pa.array(["a", "\u088f", "\u20ac"])).tolist()
    [1]
    """
    offsets = offsets_in(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[: offsets[-1]]
    leads = offsets[0] + np.flatnonzero(data[offsets[0] :] >= _FIRST_LEAD)
    leads = leads[_MAY_BE_NEW[data[leads] - _FIRST_LEAD, data[leads + 1] & _LOW]]
    wide, tail = data[leads].astype(np.int64), len(data) - 1
    two, three, four = (data[np.minimum(leads + more, tail)].astype(np.int64) & _LOW for more in (1, 2, 3))
    points = np.where(
        wide < 0xE0,
        (wide & 0x1F) << 6 | two,
        np.where(wide < 0xF0, (wide & 0xF) << 12 | two << 6 | three, (wide & 7) << 18 | two << 12 | three << 6 | four),
    )
    new = leads[np.searchsorted(_NEW, points, side="right") % 2 == 1]
    rows: NDArray[np.int64] = distinct(np.searchsorted(offsets, new, side="right") - 1)
    return rows


_FIRST_LEAD: Final = 0xC2
_LOW: Final = 0x3F


def _may_be_new() -> NDArray[np.bool_]:
    """By the first two bytes of a character, the first less 0xC2 and the low six bits of the second."""
    found = np.zeros((0x100 - _FIRST_LEAD, _LOW + 1), dtype=bool)
    for begin, end in _NEW.reshape(-1, 2).tolist():
        for point in {*range(begin, end, 0x40), end - 1}:
            lead, second, *_ = chr(point).encode()
            found[lead - _FIRST_LEAD, second & _LOW] = True
    return found


_MAY_BE_NEW: Final = _may_be_new()

# -- how many different words there have been, estimated from a sample of the texts ---------------------------------------

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
