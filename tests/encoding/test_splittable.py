"""Each line of the lists, on generated texts: tokenizers that may be cut at spaces, and those that may not."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p

from brimful.encoding import splittable
from brimful.encoding.splittable import (
    CL100K,
    CL100K_SPELT_OUT,
    CLIP,
    DEEPSEEK_V3,
    GPT2,
    O200K,
    QWEN2,
    QWEN3_5,
    TIKTOKEN,
)
from brimful.encoding.word_cache import WordCache
from brimful.tables.ragged import flat
from tests import tokenizers as make
from tests.effort import times
from tests.encoding.test_encoders import rows_of
from tests.texts import texts

Make = Callable[[], Tokenizer]
BYTES = p.ByteLevel(add_prefix_space=False)
WORDS = p.ByteLevel(add_prefix_space=False, use_regex=False)
RUNS = n.Replace(Regex(" {2,}"), "\u2581")
MARK = n.Replace(" ", "\u2581")
ALBERT = (n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD(), n.StripAccents(), n.Lowercase())


def split(pattern: str, behavior: str = "isolated", *before: Any, invert: bool = False) -> Any:
    return p.Sequence([*before, p.Split(Regex(pattern), behavior, invert), WORDS])


def line(model: str, pre_tokenizer: Any, *changes: Any) -> Make:
    change = None if not changes else changes[0] if len(changes) == 1 else n.Sequence(list(changes))
    return lambda: make.trained(model, pre_tokenizer, change)


def whole(model: str, words: Any, pre_tokenizer: Any, *changes: Any) -> Make:
    """Trained on words, so that no token reaches over a space, and given whole texts."""

    def made() -> Tokenizer:
        tokenizer = make.trained(model, words)
        tokenizer.pre_tokenizer = pre_tokenizer
        if changes:
            tokenizer.normalizer = n.Sequence(list(changes))
        return tokenizer

    return made


def added(content: str, model: str, pre_tokenizer: Any, *changes: Any, beside: str = "", **flags: bool) -> Make:
    def made() -> Tokenizer:
        tokenizer = line(model, pre_tokenizer, *changes)()
        tokenizer.add_tokens([AddedToken(content, **{"normalized": False, **flags})])
        if beside:
            tokenizer.add_tokens([AddedToken(beside, normalized=True)])
        return tokenizer

    return made


@cache
def charsmap(rule: str) -> bytes:
    """What SentencePiece makes of characters by one of its rules."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from transformers.convert_slow_tokenizer import import_protobuf

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d"] * 20), model_writer=model, vocab_size=8, normalization_rule_name=rule,
        minloglevel=2, model_type="bpe",
    )  # fmt: skip
    proto = import_protobuf().ModelProto()  # type: ignore[no-untyped-call]
    proto.ParseFromString(model.getvalue())
    return bytes(proto.normalizer_spec.precompiled_charsmap)


def mapped(
    rule: str, model: str, pre_tokenizer: Any, before: tuple[Any, ...] = (), after: tuple[Any, ...] = ()
) -> Make:
    return lambda: line(model, pre_tokenizer, *before, n.Precompiled(charsmap(rule)), *after)()


META = p.Metaspace()
PARTS = p.Sequence([p.WhitespaceSplit(), META])
INSIDE = [p.Split(Regex(one), "isolated") for one in sorted(splittable.INSIDE)]
THREES = p.Split(Regex("[0-9][0-9][0-9]"), "isolated")
RUNS_OF_MARKS = p.Sequence([p.Metaspace(split=False), p.Split(Regex("\u2581+"), "isolated")])


def clip(pattern: str) -> Any:
    return p.Sequence([p.Split(Regex(pattern), "removed", True), BYTES])


HOLD: dict[str, Make] = {
    "BERT": line("wordpiece", p.BertPreTokenizer(), n.BertNormalizer()),
    "BERT, cased": line("wordpiece", p.BertPreTokenizer(), n.BertNormalizer(lowercase=False, strip_accents=False)),
    "BERT, as it comes": line("wordpiece", p.BertPreTokenizer(), n.BertNormalizer(clean_text=False)),
    "Whitespace, words": line("wordlevel", p.Whitespace(), n.Nmt(), n.Strip()),
    "WhitespaceSplit": line("wordpiece", p.Sequence([p.Punctuation(), p.WhitespaceSplit(), p.Digits(True)])),
    "CharDelimiterSplit": line("wordpiece", p.CharDelimiterSplit(" "), n.NFD(), n.Lowercase(), n.StripAccents()),
    "WhitespaceSplit + Metaspace": line("unigram", PARTS, n.NFKC(), n.Strip(left=False)),
    "ALBERT": mapped("nmt_nfkc", "unigram", PARTS, before=ALBERT),
    "WhitespaceSplit, case folded": mapped("nmt_nfkc_cf", "unigram", PARTS),
    "CLIP": line("bpe", clip(min(CLIP)), n.NFC(), n.Replace(Regex(r"\s+"), " "), n.Lowercase()),
    "CLIP, the other spelling": line("bpe", clip(max(CLIP))),
    "GPT-2": line("bpe", BYTES),
    "GPT-2, space before": line("bpe", p.ByteLevel(add_prefix_space=True), n.NFC()),
    "GPT-2, other normalisers": line("bpe", BYTES, n.NFKD(), n.Lowercase(), n.NFKC()),
    "GPT-2, NFD": line("bpe", BYTES, n.NFD()),
    "GPT-2's pattern": line("unknown", p.Split(Regex(GPT2), "isolated")),
    "cl100k": line("bpe", split(CL100K)),
    "cl100k, spelt out": line("bpe", split(CL100K_SPELT_OUT, "merged_with_previous")),
    "cl100k, removed": line("bpe", split(TIKTOKEN["cl100k"], "removed")),
    "o200k": line("bpe", split(O200K), n.NFC()),
    "Qwen2": line("bpe", split(QWEN2, "merged_with_next"), n.NFC()),
    "Qwen3.5": line("bpe", split(QWEN3_5)),
    "DeepSeek-V3": line("bpe", split(DEEPSEEK_V3.replace(r"\r\n", "\r\n"), "isolated", *INSIDE)),
    "Falcon": line("bpe", p.Sequence([p.Punctuation("contiguous"), BYTES, p.Digits(), THREES])),
    "Punctuation before": line("bpe", p.Sequence([p.Punctuation("merged_with_previous"), BYTES])),
    "Digits before": line("bpe", split(CL100K, "isolated", p.Digits(True))),
    "Metaspace": line("marks", META, n.Nmt()),
    "Metaspace, first": line("unigram", p.Metaspace(prepend_scheme="first"), n.StripAccents()),
    "Metaspace, never": line("unknown", p.Metaspace(prepend_scheme="never"), n.BertNormalizer()),
    "Metaspace, mapped": mapped("nfkc", "unigram", META),
    "T5": mapped("nmt_nfkc", "unigram", META, after=(n.Strip(left=False), RUNS)),
    "Metaspace, whole": whole("marks", META, p.Metaspace(split=False, prepend_scheme="first"), n.NFKC()),
    "Metaspace, whole, runs of marks": whole("marks", RUNS_OF_MARKS, p.Metaspace(split=False)),
    "ByteLevel, whole": whole("bpe", split(r" ?\S+|\s"), WORDS),
    "Gemma": whole("marks", RUNS_OF_MARKS, p.Split(" ", "merged_with_previous"), MARK),
    "added, lstrip": added("zebra", "bpe", BYTES, lstrip=True),
    "added, single_word": added("zebra", "wordpiece", p.Whitespace(), single_word=True),
    "added, normalized": added("Zebra", "unigram", META, normalized=True),
    "added, a space before": added(" the", "bpe", BYTES),
    "added, spaces": added("  ", "marks", META),
    "added, newlines": added("\n\n", "bpe", BYTES),
    "added, rstrip, spaces removed": added("zebra", "wordpiece", p.Whitespace(), rstrip=True),
    "added, spaces, normalized": added("  ", "bpe", BYTES, n.NFKC(), normalized=True),
}  # fmt: skip


def differing(tokenizer: Tokenizer, given: list[str]) -> list[str]:
    def encode(some: list[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch_fast(some, add_special_tokens=False)]

    ours = rows_of(WordCache(lambda some: flat(encode(some), len(some)))(make.column(given)))
    return [text for text, own, expected in zip(given, ours, encode(given)) if own != expected]


def why_not(tokenizer: Tokenizer) -> str | None:
    normalizer: Any = tokenizer.normalizer
    return splittable.why_not(splittable.described(tokenizer), normalizer.normalize_str if normalizer else str)


@pytest.mark.parametrize("kind", HOLD)
def test_the_tokens_of_pieces_are_those_of_the_text(kind: str) -> None:
    tokenizer = HOLD[kind]()
    assert why_not(tokenizer) is None
    assert differing(tokenizer, texts(times(10_000, 100_000), seed=3, most=6)) == []


def test_a_tokenizer_that_splits_special_tokens_may_be_cut() -> None:
    tokenizer = make.trained("bpe", BYTES)
    tokenizer.encode_special_tokens = True
    assert differing(tokenizer, texts(times(10_000, 100_000), seed=3, most=6)) == []


AFTER = [
    f"{text} {rest}"
    for text in ("a\u200b", "a\u0308", "zebra", "a", "\u20dd", "1", "(", "a \u200b")
    for rest in ("b", " b", "zebra", "2", "  b")
]
FAIL: dict[str, tuple[Make, str]] = {
    "Nmt": (line("bpe", BYTES, n.Nmt()), "its normalizer Nmt"),
    "StripAccents": (line("bpe", BYTES, n.StripAccents()), "its normalizer StripAccents"),
    "BertNormalizer": (line("bpe", BYTES, n.BertNormalizer()), "its normalizer BertNormalizer"),
    "Strip left": (line("bpe", BYTES, n.Strip()), "its normalizer Strip"),
    "deletes a letter": (line("bpe", BYTES, n.Replace("1", "")), r"its normalizer Replace\('1'\)"),
    "Metaspace, Strip left": (line("unigram", META, n.Strip()), "its normalizer Strip"),
    "Metaspace, runs of spaces": (line("unigram", META, n.Nmt(), n.Replace(Regex(" {2,}"), " ")), "its normalizer Replace"),
    "Prepend": (line("wordpiece", p.Whitespace(), n.Prepend("_")), "its normalizer Prepend"),
    "Llama-2": (line("marks", p.Metaspace(prepend_scheme="never"), n.Prepend("\u2581"), MARK), "its normalizer prepend mark"),
    "words together, numbers apart": (line("bpe", p.Sequence([THREES, WORDS])), r"its pre-tokenizer Split \+ ByteLevel"),
    "contiguous": (line("bpe", split(GPT2, "contiguous")), "its pre-tokenizer Split"),
    "DeepSeek-V3, merged": (line("bpe", split(DEEPSEEK_V3, "merged_with_previous")), "its pre-tokenizer Split"),
    "added, rstrip": (added("zebra", "bpe", BYTES, rstrip=True), "takes the spaces after it"),
    "added, rstrip, another begins with spaces": (
        added("zebra", "wordpiece", p.Whitespace(), beside="  ", rstrip=True), "takes the spaces after it",
    ),
    "added, spaces, between which a character is deleted": (
        added("  ", "wordpiece", p.Whitespace(), n.Nmt(), normalized=True), "'  ' reaches over a space",
    ),
    "added, over a space": (added("a b", "bpe", BYTES), "'a b' reaches over a space"),
    "added, single_word, a space before": (added(" b", "bpe", BYTES, single_word=True), "looks at what stands before"),
    "Metaspace, whole, over a space": (line("marks", p.Metaspace(split=False)), "its token .* reaches over a space"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAIL)
def test_what_makes_other_tokens_of_pieces_is_left_to_the_tokenizer(kind: str) -> None:
    made, why = FAIL[kind]
    tokenizer = made()
    assert re.search(why, why_not(tokenizer) or "")
    assert differing(tokenizer, [*texts(3_000, seed=3), *AFTER])


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (lambda: Tokenizer(models.BPE()), "it has no pre-tokenizer"),
        (lambda: make.trained("bpe", p.Punctuation()), "its pre-tokenizer Punctuation "),
        (lambda: make.trained("bpe", p.UnicodeScripts()), "its pre-tokenizer UnicodeScripts "),
        (lambda: make.trained("bpe", p.Split(GPT2, "isolated")), "its pre-tokenizer Split "),
        (lambda: make.trained("bpe", split(QWEN2, invert=True)), "its pre-tokenizer Split "),
        (lambda: make.trained("wordpiece", p.Metaspace(split=False)), "its model WordPiece sees whole texts"),
        (lambda: make.trained("unigram", p.Metaspace(split=False)), "its model Unigram sees whole texts"),
        (lambda: with_model(dropout=0.1), "its model drops merges at random (dropout=0.1"),
        (lambda: with_model(ignore_merges=True), "its model sees whole texts, with ignore_merges"),
        (lambda: with_model(end_of_word_suffix="</w>"), "its model sees whole texts, with end_of_word_suffix"),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_in_no_list_is_left_to_the_tokenizer(tokenizer: Make, why: str) -> None:
    assert (why_not(tokenizer()) or "").startswith(why)


def with_model(**settings: Any) -> Tokenizer:
    tokenizer = make.trained("bpe", BYTES)
    tokenizer.pre_tokenizer = WORDS
    for name, value in settings.items():
        setattr(tokenizer.model, name, value)
    return tokenizer


def test_what_is_as_good_in_whole_texts_is_chosen_by_what_stands_before() -> None:
    """Why Unigram is not cut where words stay together: ab + c is as good as a + bc, but for how the sums are rounded."""
    scores = {"<unk>": 0.0, "\u2581": -2.1, "a": -3.14159, "c": -3.14159, "b": -9.0, "ab": -3.72405, "bc": -3.72405}
    tokenizer = Tokenizer(
        models.Unigram([*scores.items(), *((one, -1.7 / (1 + ord(one) % 9)) for one in "xyz")], 0, False)
    )
    tokenizer.pre_tokenizer = p.Metaspace(split=False)
    ends = {tuple(tokenizer.encode(f"{'xyz'[: count % 4]} {'zyx' * count} abc").ids[-2:]) for count in range(60)}
    assert len(ends) == 2
