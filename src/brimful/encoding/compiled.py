"""A compiled tokenizer, gigatoken, where it is installed: a column of texts in, a column of tokens out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
from brimful.tables.ragged import Ragged, array_of, distinct, gather, offsets_in

_CHINESE: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_PATTERNS: Final = (
    *([pattern] for pattern in (CL100K, O200K, QWEN2, QWEN3_5)),
    [r"\p{N}{1,3}", _CHINESE, DEEPSEEK_V3.replace(r"\r\n", "\r\n")],
)
"""Of Split, isolated, with ByteLevel after it."""
_NEW: Final = """
    558-559 58B-58D 5C8-5CA 7FD-7FE 88F-890 897-8A0 8CA-8D4 9FE-9FF B53-B55 C3C-C3D C5C-C5D CDC-CDD CF3-CF4 D3B-D3D
    EBA-EBB ECE-ECF 1715-1716 1ABF-1AF1 1B4E-1B50 1B7F-1B80 1C89-1C8B 1DF6-1DFB 208F-2090 209D-20A0 20C1-20C5 2427-242A
    2B96-2B97 2E60-2E64 2FFC-3000 31E4-31F0 A7CB-A7D0 A7D2-A7D3 A7D4-A7D5 A7DA-A7F2 A82C-A82D AB6C-AB6E FBC3-FBD3
    FD90-FD92 FDC8-FDCF 105C0-105F4 107BB-107C0 10940-1095A 10D24-10D28 10D40-10D90 10EAB-10EAD 10EC2-10F00 10F46-10F51
    10F82-10F86 11070-11071 1123F-11242 1133B-1133C 11380-113E3 1145E-1145F 116D0-116E4 11839-1183B 11930-11931
    1193D-1193F 11943-11944 119E0-119E1 11A34-11A35 11A47-11A48 11A99-11A9A 11B00-11BFA 11D42-11D43 11D44-11D46
    11D97-11D98 11DB0-11DF2 11F00-11F5B 1246F-12470 12475-12480 12550-12687 1342F-13430 13439-143FB 16100-1613A
    16D40-16D7A 16EA0-16ED4 16FF0-16FF7 187F8-18800 18CD6-18D00 18D09-191D3 1B123-1B133 1B155-1B156 1B168-1B169
    1CC00-1CEFE 1D127-1D129 1D1EB-1D200 1D250-1D2D4 1D6A6-1D6A7 1DB00-1DB1D 1DF1F-1E000 1E030-1E090 1E130-1E137
    1E2AE-1E2AF 1E2EC-1E2F0 1E4D0-1E700 1F1AE-1F1AF 1F6D8-1F6DD 1F774-1F780 1F7D9-1F7DC 1F7F1-1F800 1F8B2-1F8D9
    1FA54-1FA58 1FA75-1FA78 1FA87-1FA90 1FAAD-1FAB0 1FABB-1FAC0 1FAC6-1FAD0 1FADA-1FAE0 1FAE8-1FAF0 1FAF7-1FAFB
    1FBCB-1FBF0 1FBFA-1FBFB 2B739-2B740 2B81E-2B81F 2CEA2-2CEAE 2EBF0-2EE5E 31350-3FC40
"""
"""Where the characters begin and end (one after the last) that came with Unicode 15 to 18, and of the older ones those that
have been put in order, or composed, since Unicode 10. Of which of the new ones are letters, numbers or marks gigatoken (Unicode
17) and tokenizers (16) know different things: 4,657 of them made other tokens, and of the older ones none, when all characters
were tried. NFC of tokenizers is that of Unicode 9: it leaves later marks where they stand."""
_NEW_EDGES: Final = np.array([int(edge, 16) for pair in _NEW.split() for edge in pair.split("-")])
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
    new = leads[np.searchsorted(_NEW_EDGES, points, side="right") % 2 == 1]
    rows: NDArray[np.int64] = distinct(np.searchsorted(offsets, new, side="right") - 1)
    return rows


_FIRST_LEAD: Final = chr(_NEW_EDGES[0]).encode()[0]  # Latin, Greek and Cyrillic letters have smaller ones
_LOW: Final = 0x3F


def _may_be_new() -> NDArray[np.bool_]:
    """By the first two bytes of a character, the first less _FIRST_LEAD and the low six bits of the second."""
    found = np.zeros((0x100 - _FIRST_LEAD, _LOW + 1), dtype=bool)
    for begin, end in _NEW_EDGES.reshape(-1, 2).tolist():
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
