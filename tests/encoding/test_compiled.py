"""What gigatoken may stand in for: each line of the list on generated texts, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p

from brimful.encoding import compiled, splittable
from brimful.encoding.compiled import Compiled, with_new_characters
from brimful.encoding.splittable import CL100K, DEEPSEEK_V3, O200K, QWEN2, QWEN3_5
from brimful.tables.ragged import Ragged, flat
from tests import tokenizers as make
from tests.effort import SOAK, times
from tests.encoding.test_encoders import rows_of
from tests.encoding.test_splittable import BYTES, MARK, WORDS, added, line, split, whole
from tests.texts import texts

Make = Callable[[], Tokenizer]
META = p.Metaspace(prepend_scheme="never")


def llama2() -> Tokenizer:
    """No pre-tokenizer: words stay together."""
    tokenizer = make.trained("marks", META)
    text = tokenizer.to_str().replace(f'"pre_tokenizer":{META.__getstate__().decode()}', '"pre_tokenizer":null')
    tokenizer = Tokenizer.from_str(text)
    tokenizer.normalizer = n.Sequence([n.Prepend("\u2581"), MARK])
    return tokenizer


def deepseek() -> Any:
    numbers = p.Split(Regex(r"\p{N}{1,3}"), "isolated")
    chinese = p.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated")
    return split(DEEPSEEK_V3.replace(r"\r\n", "\r\n"), "isolated", numbers, chinese)


SAME: dict[str, Make] = {
    "GPT-2": line("bpe", BYTES),
    "GPT-2, NFC": line("bpe", p.ByteLevel(add_prefix_space=True), n.NFC()),
    "cl100k": line("bpe", split(CL100K)),
    "o200k": line("bpe", split(O200K)),
    "Qwen2": line("bpe", split(QWEN2), n.NFC()),
    "Qwen3.5": line("bpe", split(QWEN3_5), n.NFC()),
    "DeepSeek-V3": line("bpe", deepseek()),
    "Llama-2": llama2,
    "Metaspace": line("marks", p.Metaspace(prepend_scheme="first")),
    "Metaspace, whole": whole("marks", META, p.Metaspace(split=False, prepend_scheme="first")),
    "Gemma": whole("marks", META, p.Split(" ", "merged_with_previous"), MARK),
    "added, lstrip": added("zebra", "bpe", BYTES, lstrip=True),
    "added, spaces": added("  ", "bpe", BYTES),
    "added, over a space": added("a b", "bpe", BYTES),
}


def why_not(tokenizer: Tokenizer) -> str | None:
    return compiled.why_not(splittable.described(tokenizer), tokenizer.encode_special_tokens)


def own(tokenizer: Tokenizer) -> Callable[[list[str]], list[list[int]]]:
    return lambda given: [one.ids for one in tokenizer.encode_batch_fast(given, add_special_tokens=False)]


def columns(tokenizer: Tokenizer) -> Callable[[list[str]], Ragged]:
    return lambda given: flat(own(tokenizer)(given), len(given))


def engine(tokenizer: Tokenizer) -> Compiled:
    pytest.importorskip("gigatoken")
    return Compiled(lambda: compiled.make(tokenizer.to_str()), columns(tokenizer))


@pytest.mark.parametrize("kind", SAME)
def test_its_tokens_are_the_tokenizers_own(kind: str) -> None:
    tokenizer = SAME[kind]()
    assert why_not(tokenizer) is None
    given = texts(times(10_000, 100_000), seed=7)
    assert rows_of(engine(tokenizer)(make.column(given))) == own(tokenizer)(given)


def splitting() -> Tokenizer:
    tokenizer = make.bpe()
    tokenizer.encode_special_tokens = True
    return tokenizer


def with_model(**settings: Any) -> Tokenizer:
    tokenizer = make.trained("bpe", BYTES)
    for name, value in settings.items():
        setattr(tokenizer.model, name, value)
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        splitting,
        lambda: with_model(dropout=0.1),
        lambda: with_model(end_of_word_suffix="</w>"),
        line("bpe", WORDS),
        line("bpe", split(CL100K, "removed")),
        line("bpe", p.Sequence([p.Split(Regex(CL100K), "isolated"), p.ByteLevel(use_regex=False)])),
        line("bpe", BYTES, n.NFKC()),
        line("marks", META, n.NFC()),
        added("zebra", "bpe", BYTES, single_word=True),
        added("zebra", "bpe", BYTES, rstrip=True),
        added(" the", "bpe", p.ByteLevel(add_prefix_space=True)),
        added("zebra", "bpe", BYTES, normalized=True),
        line("unknown", p.Metaspace()),
        line("wordpiece", p.BertPreTokenizer()),
        lambda: Tokenizer(models.BPE()),
    ],
    ids=range(15),
)
def test_what_it_does_otherwise_it_does_not_do(tokenizer: Make) -> None:
    assert "gigatoken" in (why_not(tokenizer()) or "")


def test_texts_with_characters_that_are_new_to_unicode_go_to_the_tokenizer() -> None:
    new = ["\u088f", "\u0c5c", "\ua7ce", "\U00010940", "\U00016ff4", "\U000323b0", "\U00033479"]
    old = ["", "a", "\u0890", "\u0ba3", "\uac00", "\U0001f600", "\U00020000", "\u20ac"]
    assert with_new_characters(pa.array([*old, *new])).tolist() == [*range(len(old), len(old) + len(new))]
    assert with_new_characters(make.column([f"x{new[0]}", "", "y"]).slice(0, 2)).tolist() == [0]
    tokenizer = line("bpe", split(CL100K))()
    given = [f"{text} a{one}{one}" for one in new for text in ("x", "")] + ["x"]
    assert rows_of(engine(tokenizer)(make.column(given))) == own(tokenizer)(given)


def test_marks_that_the_two_put_in_another_order_go_to_the_tokenizer() -> None:
    """U+08D2 has an order since Unicode 14: NFC of tokenizers, which is of Unicode 9, leaves it behind U+0308."""
    tokenizer = line("bpe", BYTES, n.NFC())()
    marks = "\u07fd\u08d2\u09fe\u0c3c\u1abf\u1df6\ua82c\U00010f46\U0001145e\U0001e130"
    given = [*(f"\u0308{mark}\u0323a" for mark in marks), "\U00011935\U00011930", "\u0308\u0323a"]
    assert with_new_characters(make.column(given)).tolist() == [*range(len(given) - 1)]
    assert rows_of(engine(tokenizer)(make.column(given))) == own(tokenizer)(given)


def every_pair() -> Tokenizer:
    """Any two bytes are a token, so that each end of a word shows in the tokens."""
    alphabet = sorted(p.ByteLevel.alphabet())
    pairs = [(one, other) for one in alphabet for other in alphabet]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *map("".join, pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = BYTES
    return tokenizer


@pytest.mark.parametrize(
    ("pattern", "change"),
    [(None, None), (None, n.NFC()), (CL100K, None), (O200K, None), (QWEN3_5, None)],
    ids=["GPT-2", "NFC", "cl100k", "o200k", "Qwen3.5"],
)
def test_all_characters_are_the_same_letters_numbers_and_marks_to_both(pattern: str | None, change: Any) -> None:
    tokenizer = every_pair()
    if pattern is not None:
        tokenizer.pre_tokenizer = split(pattern)
    if change is not None:
        tokenizer.normalizer = change
    made, encode = engine(tokenizer), own(tokenizer)
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    if not SOAK:
        points = np.random.default_rng(1).choice(points[:0x34000], 10_000, replace=False).tolist()
    for first in range(0, len(points), 1 << 14):
        letters = map(chr, points[first : first + (1 << 14)])
        given = [f"a{one} {one}a{one}{one} 1{one}2 !{one}'s {one}\n{one}B \u0308{one}\u0323" for one in letters]
        assert rows_of(made(pa.array(given))) == encode(given)


def test_it_is_made_anew_when_it_has_seen_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_WORDS", 1_500)
    pytest.importorskip("gigatoken")
    tokenizer, made = make.bpe(), []

    def again() -> Any:
        made.append(1)
        return compiled.make(tokenizer.to_str())

    cache = Compiled(again, columns(tokenizer))
    for _ in range(10):
        cache(pa.array(["the same words"] * 1_000))
        assert len(made) == 1
    for block in range(20):
        given = [f"w{block}{row} v{block}{row} {'long' * 20}" for row in range(100)]
        assert rows_of(cache(pa.array(given))) == own(tokenizer)(given)
    assert 2 <= len(made) <= 20


def test_it_is_not_made_anew_for_words_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_WORDS", 60_000)
    pytest.importorskip("gigatoken")
    tokenizer, made = make.bpe(), []

    def again() -> Any:
        made.append(1)
        return compiled.make(tokenizer.to_str())

    cache = Compiled(again, columns(tokenizer))
    draw = np.random.default_rng(3)
    for _ in range(40):
        words = draw.integers(0, 1_000, (500, 30)).tolist()
        cache(pa.array([" ".join(f"w{word}" for word in row) for row in words]))
    assert len(made) == 1


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_WORDS", 500)
    tokenizer = make.bpe()
    cache = engine(tokenizer)
    blocks = [texts(300, seed=seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda block: rows_of(cache(make.column(block))), blocks)]
    assert found == [own(tokenizer)(block) for block in blocks]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_no_texts_and_empty_ones(kind: pa.DataType) -> None:
    cache = engine(make.bpe())
    for given in ([], [""], ["", "", "a", ""]):
        assert rows_of(cache(pa.array(given, kind))) == own(make.bpe())(given)


def test_added_tokens_of_two_kinds_are_left_to_the_tokenizer() -> None:
    tokenizer = make.trained("bpe", BYTES)
    tokenizer.add_tokens([AddedToken("ab", normalized=True), AddedToken("bc", normalized=False)])
    assert "added tokens such as 'ab'" in (why_not(tokenizer) or "")
