"""Which tokenizers give a text the tokens of its pieces, one piece after the other: lists of what is allowed.

A piece begins with each ASCII space that follows a character which is not white space (`word_cache.cut`). What stands in these
lists was held against whole texts by fuzzing over all of Unicode, and each line is a test; what does not stand there is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Part: TypeAlias = Mapping[str, Any]
"""A part of a tokenizer, as its JSON has it."""

MARK: Final = "\u2581"
"""The mark of a space in the vocabularies of SentencePiece; byte-level ones have another."""
_BYTE_MARK: Final = "\u0120"
_BYTE_SPACE: Final = "\u0120\u0109\u010a\u010b\u010c\u010d"

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K: Final = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
CL100K_SPELT_OUT: Final = CL100K.replace(_CONTRACTIONS, "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
O200K: Final = (
    rf"{_LOWER}{_CONTRACTIONS}?|{_UPPER}{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
QWEN2: Final = CL100K.replace("{1,3}", "")
QWEN3_5: Final = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
DEEPSEEK_V3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
).replace(r"\"", '"') + _REST
TIKTOKEN: Final = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s",
    "o200k": O200K,
}
"""The patterns of tiktoken's own encodings."""

WHOLE: Final = frozenset({GPT2, CL100K, CL100K_SPELT_OUT, O200K, QWEN2, QWEN3_5, *TIKTOKEN.values()})
"""Patterns that leave nothing unmatched, and match no space after a character that is not white space."""
_DEEPSEEK: Final = frozenset((text, "Isolated") for text in (DEEPSEEK_V3, DEEPSEEK_V3.replace(r"\r\n", "\r\n")))
"""It leaves numbers unmatched, which a merge would join to what stands beside them."""
INSIDE: Final = frozenset({r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "[0-9][0-9][0-9]"})
"""Patterns that match no white space: DeepSeek's and Falcon's, beside the ones above."""
_CLIP: Final = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CLIP: Final = frozenset({_CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}"})
"""Patterns that match all but white space, which goes."""
_BEHAVIORS: Final = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext")

_CHARSMAPS: Final = frozenset({"1e2c7b43d3ee9755", "7e46d9e08af4b6a3", "2c03512e62f9ed96"})
"""SentencePiece's maps nmt_nfkc, nfkc and nmt_nfkc_cf, by the beginning of their SHA-256."""
_UNICODE: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_KEEP: Final = _UNICODE | {"mark", "quotes"}
"""They delete no character."""
_NORMALIZERS: Final = {
    "white": _UNICODE
    | {"BertNormalizer", "Nmt", "Strip", "StripAccents", "strip right", "Precompiled", "quotes", "white runs"},
    "bytes": _UNICODE,
    "mark": _UNICODE | {"BertNormalizer", "Nmt", "StripAccents", "Precompiled"},
}
"""By what the pre-tokenizer makes of spaces. (A normaliser that deletes a character, or makes white space of one, has a piece
end in white space: the byte-level patterns then see a run of it where the text has two.)"""


_T5: Final = ["Precompiled", "strip right", "runs"]


def described(tokenizer: Any) -> dict[str, Any]:
    """The parts of a `tokenizers.Tokenizer`, as its JSON has them, but for the vocabulary: `vocab` gives that when it is asked.

    Price: 1 ms; all of the JSON would be .1 s for GPT-2's vocabulary, 1 s for one of 256,000 tokens.
    """
    parts = {name: getattr(tokenizer, name) for name in ("normalizer", "pre_tokenizer", "post_processor")}
    return {name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()} | {
        "added_tokens": [*tokenizer.get_added_tokens_decoder().values()],
        "model": {
            "type": type(tokenizer.model).__name__,
            "vocab": lambda: tokenizer.get_vocab(with_added_tokens=False),
            **{name: getattr(tokenizer.model, name, None) for name in _MODEL},
        },
    }


_MODEL: Final = (
    "dropout", "alpha", "nbest_size", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges",
)  # fmt: skip
"""The settings of a model that matter."""


def why_not(tokenizer: Part, normalized: Callable[[str], str]) -> str | None:
    """Why the tokens of a text may be others than those of its pieces; None where they are the same.

    Args:
        tokenizer: as `described` has it.
        normalized: a text as its normaliser leaves it.

    >>> from tokenizers import Tokenizer, models
    >>> why_not(described(Tokenizer(models.BPE())), str)
    'it has no pre-tokenizer'
    """
    steps, changes = steps_of(tokenizer["pre_tokenizer"]), steps_of(tokenizer["normalizer"])
    if not steps:
        return "it has no pre-tokenizer"
    kind = _kind(steps)
    if kind is None or (steps[0]["type"] == "Split" and kind[0] == "mark" and [*map(name_of, changes)] != ["mark"]):
        types = " + ".join(step["type"] for step in steps)
        return f"its pre-tokenizer {types} is not known to be indifferent to a cut at a space"
    spaces, whole = kind
    return (
        _normalizers(changes, spaces, whole)
        or _model(tokenizer["model"])
        or (whole and _unsplit(tokenizer["model"], _BYTE_MARK if spaces == "bytes" else MARK))
        or _added(tokenizer["added_tokens"], spaces, normalized if changes else str, {*map(name_of, changes)} <= _KEEP)
        or None
    )


def steps_of(part: Part | None) -> list[Part]:
    """The parts of a sequence of parts, or the one that there is."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    (inner,) = (part[name] for name in ("normalizers", "pretokenizers", "processors") if name in part)
    return [step for one in inner for step in steps_of(one)]


def _kind(steps: list[Part]) -> tuple[str, bool] | None:
    """How spaces are treated ("white": they go; "bytes", "mark": they are marked), and whether words stay together; None where
    that is not known."""
    types = [step["type"] for step in steps]
    if types == ["Metaspace"] and steps[0]["replacement"] == MARK:
        return "mark", not steps[0].get("split", True)
    if types == ["ByteLevel"] and not steps[0].get("use_regex", True):
        return "bytes", True
    if types == ["Split"] and split_of(steps[0]) == (" ", "MergedWithPrevious", False):
        return "mark", True
    count = next((place for place, step in enumerate(steps) if not _inside(step)), len(steps))
    before, (first, *rest) = steps[:count], steps[count:] or [{"type": ""}]
    if _removes_white(first):
        few = all(step["type"] != "Split" for step in (*before, *rest))
        marks = types == ["WhitespaceSplit", "Metaspace"]
        return ("white", False) if marks or (few and all(map(_looks_at_each, rest))) else None
    if first["type"] == "ByteLevel":
        whole = first.get("use_regex", True)  # GPT-2's pattern
    elif first["type"] == "Split":
        pattern, behavior, invert = split_of(first)
        whole = ((pattern in WHOLE and behavior in _BEHAVIORS) or (pattern, behavior) in _DEEPSEEK) and not invert
    else:
        whole = False
    return ("bytes", False) if whole and all(map(_looks_at_each, rest)) else None


def _removes_white(step: Part) -> bool:
    match step["type"]:
        case "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit":
            return True
        case "CharDelimiterSplit":
            return bool(step["delimiter"] == " ")
        case "Split":
            pattern, behavior, invert = split_of(step)
            return pattern in CLIP and behavior == "Removed" and invert
    return False


def _inside(step: Part) -> bool:
    """Whether a step cuts words at what is no white space, and leaves the rest as it is."""
    return step["type"] in ("Digits", "Punctuation") or (
        step["type"] == "Split" and split_of(step)[0] in INSIDE and split_of(step)[1:] == ("Isolated", False)
    )


def _looks_at_each(step: Part) -> bool:
    """Whether a step looks at each word alone."""
    return _inside(step) or step["type"] == "ByteLevel"


def split_of(step: Part) -> tuple[str, str, bool]:
    """A step's pattern ("" where it is one text, other than a space), what becomes of its matches, and whether it is inverted."""
    ((kind, pattern),) = step["pattern"].items()
    return pattern if kind == "Regex" or pattern == " " else "", step["behavior"], step["invert"]


def _normalizers(steps: list[Part], spaces: str, whole: bool) -> str | None:
    names = [name_of(step) for step in steps]
    if (spaces, whole, names) in (("mark", False, _T5), ("mark", True, ["mark"])):
        return None
    known = _UNICODE if whole else _NORMALIZERS[spaces]
    if unknown := [name for name in names if name not in known]:
        return f"its normalizer {unknown[0]} may join what a cut at a space would part"
    return None


def name_of(step: Part) -> str:
    """A normaliser's type, or what it does where that says more."""
    if step["type"] == "Precompiled":
        known = hashlib.sha256(base64.b64decode(step["precompiled_charsmap"])).hexdigest()[:16] in _CHARSMAPS
        return "Precompiled" if known else "Precompiled (of another map than SentencePiece's own)"
    if step["type"] == "Strip" and not step["strip_left"] and step["strip_right"]:
        return "strip right"
    if step["type"] == "Replace":
        (pattern,) = step["pattern"].items()
        return _REPLACED.get((*pattern, step["content"]), f"Replace({pattern[1]!r})")
    if step["type"] == "Prepend" and step["prepend"] == MARK:
        return "prepend mark"
    return str(step["type"])


_REPLACED: Final = {
    ("Regex", " {2,}", MARK): "runs",
    ("Regex", r"\s+", " "): "white runs",
    ("String", " ", MARK): "mark",
    ("String", "``", '"'): "quotes",
    ("String", "''", '"'): "quotes",
    ("Regex", "``", '"'): "quotes",
    ("Regex", "''", '"'): "quotes",
}


def _model(model: Part) -> str | None:
    match model["type"]:
        case "WordPiece" | "WordLevel":
            return None
        case "BPE":
            return f"its model drops merges at random (dropout={model['dropout']})" if model.get("dropout") else None
        case "Unigram":
            random = [name for name in ("alpha", "nbest_size") if model.get(name) is not None]
            return f"its model draws tokens at random ({random[0]}={model[random[0]]})" if random else None
    return f"its model {model['type']} is not known to be indifferent to a cut at a space"


def _unsplit(model: Part, mark: str) -> str | None:
    """Words that stay together are parted by a cut alone, which changes nothing where no token lies on both sides of it."""
    if model["type"] != "BPE":  # Unigram: its sums of scores, rounded, order what is as good by what stands before
        return f"its model {model['type']} sees whole texts"
    odd = [name for name in ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]
    if odd:
        return f"its model sees whole texts, with {odd[0]}"
    vocabulary = model["vocab"]()
    if mark not in vocabulary:
        return f"its vocabulary has no {mark!r}"
    space = _BYTE_SPACE if mark == _BYTE_MARK else rf"\s{mark}"
    over = re.compile(f"[^{space}]{mark}")
    found = next(filter(over.search, vocabulary), None)
    return None if found is None else f"its token {found!r} reaches over a space"


def _added(tokens: Sequence[Any], spaces: str, normalized: Callable[[str], str], kept: bool) -> str | None:
    """`kept`: whether the normaliser leaves every character there, in some form."""
    over = _OVER_MARK if kept else _AFTER_ANY
    spaced = any(one[:1].isspace() for token in tokens for one in (token.content, normalized(token.content)))
    for token in tokens:
        content = token.content
        if token.rstrip and (spaces != "white" or spaced):
            return f"its added token {content!r} takes the spaces after it (rstrip)"
        if token.single_word and (content[:1].isspace() or normalized(content)[:1].isspace()):
            return f"its added token {content!r} looks at what stands before its space (single_word)"
        if _OVER.search(content) or (token.normalized and over.search(normalized(content))):
            return f"its added token {content!r} reaches over a space"
    return None


_OVER: Final = re.compile(r"\S ")
_OVER_MARK: Final = re.compile(rf"[^\s{MARK}][ {MARK}]")
_AFTER_ANY: Final = re.compile(rf"(?s).[ {MARK}]")
"""A character between white space and a space, where a text was cut, may have been deleted."""
