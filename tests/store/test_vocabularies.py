"""Token ids of two vocabularies do not come into one column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from brimful.encoding.encoders import encoder_for
from brimful.store.manifest import MANIFEST, Manifest
from tests import tokenizers as make
from tests.tokenizers import TEXTS

JOINS: dict[str, Callable[[bf.Dataset, bf.Dataset], bf.Dataset]] = {
    "concat_datasets": lambda one, two: bf.concat_datasets([one, two]),
    "concat_datasets, added": lambda one, two: one + two,
    "concat_datasets, of streams": lambda one, two: bf.concat_datasets([one.stream(), two]),
    "interleave_datasets": lambda one, two: bf.interleave_datasets([one, two], stop="all"),
    "interleave_datasets, of streams": lambda one, two: bf.interleave_datasets(
        [one.stream(), two.stream()], stop="all"
    ),
}


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., bf.IndexedDataset]:
    """Writes a store by a tokenizer."""

    def write(name: str, tokenizer: Any, **settings: Any) -> bf.IndexedDataset:
        return (
            bf.from_sequence(TEXTS).tokenize(tokenizer, **settings).drop("text").to_store(tmp_path / name, version="1")
        )

    return write


def word_lengths(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


@pytest.mark.parametrize("join", JOINS)
def test_stores_of_two_vocabularies_are_not_joined(
    join: str, stored: Callable[..., bf.IndexedDataset], tmp_path: Path
) -> None:
    one, two = stored("one", make.bpe()), stored("two", make.wordpiece())
    sides = [
        rf"data set {number} \(the store {tmp_path}/{name}\): {kind} \([0-9a-f]{{16}}\)"
        for number, name, kind in ((0, "one", "BPE of 300 tokens"), (1, "two", r"WordPiece of \d+ tokens"))
    ]
    message = (
        rf"^{join.partition(',')[0]}: column 'input_ids' would hold the ids of two vocabularies\. {sides[0]}; {sides[1]}\. "
        r"Use one tokenizer for both, or rename one of the columns$"
    )
    with pytest.raises(ValueError, match=message):
        JOINS[join](one, two)
    for other in (two.shuffle(2), two.take(3), two.cache(), two.to_store(tmp_path / "copy")):
        with pytest.raises(ValueError, match="two vocabularies"):
            JOINS[join](one, other)
    with pytest.raises(ValueError, match=r"two vocabularies\. .* data set 1: WordPiece"):
        JOINS[join](one, bf.from_sequence(TEXTS).tokenize(make.wordpiece()).drop("text"))
    assert len(list(JOINS[join](one, two.rename({"input_ids": "other"})))) == 2 * len(TEXTS)


@pytest.mark.parametrize("join", JOINS)
def test_what_has_one_vocabulary_or_none_is_joined(join: str, stored: Callable[..., bf.IndexedDataset]) -> None:
    one = stored("one", make.bpe())
    plain = bf.from_sequence([{"input_ids": [1, 2]}] * 3)
    for other in (one, stored("cut", make.gpt2(), max_length=2), plain, stored("function", word_lengths)):
        assert len(list(JOINS[join](one, other))) == len(one) + len(other)


def test_two_of_three_are_found_around_one_that_has_no_vocabulary(stored: Callable[..., bf.IndexedDataset]) -> None:
    three = [stored("a", make.byt5()), stored("b", make.bpe()), stored("c", make.wordpiece())]
    with pytest.raises(
        ValueError, match=r"data set 1 \(the store .*/b\): BPE .*; data set 2 \(the store .*/c\): WordPiece"
    ):
        bf.concat_datasets(three)


def test_columns_that_are_not_read_are_not_compared(tmp_path: Path) -> None:
    for name, tokenizer in (("one", make.bpe()), ("two", make.wordpiece())):
        bf.from_sequence(TEXTS).tokenize(tokenizer).to_store(tmp_path / name)
    texts = [bf.from_store(tmp_path / name, columns=["text"]) for name in ("one", "two")]
    assert [*bf.concat_datasets(texts)] == [{"text": text} for text in TEXTS] * 2


def test_a_store_gets_no_bos_and_eos_of_another_vocabulary(stored: Callable[..., bf.IndexedDataset]) -> None:
    store = stored("one", make.bpe())
    assert len(list(store.ensure_bos_eos(make.gpt2()))) == len(TEXTS)
    message = (
        r"^ensure_bos_eos: column 'input_ids' would .* data set \(the store .*/one\): BPE .*; tokenizer: WordPiece"
    )
    with pytest.raises(ValueError, match=message):
        store.ensure_bos_eos(make.bert(bos_token="[CLS]"))


def test_a_store_of_an_earlier_release_is_joined_and_a_copy_keeps_its_header(
    stored: Callable[..., bf.IndexedDataset], tmp_path: Path
) -> None:
    one, two = stored("one", make.bpe()), stored("two", make.wordpiece())
    two.to_store(tmp_path / "copy")
    manifest = Manifest.parse((tmp_path / "copy" / MANIFEST).read_bytes(), "copy")
    assert manifest.pipeline["tokenizers"] == {}
    assert manifest.vocabularies == {"input_ids": encoder_for(make.wordpiece()).vocabulary}
    replace(manifest, vocabularies={}).save(tmp_path / "copy")
    assert len(one + bf.from_store(tmp_path / "copy")) == 2 * len(TEXTS)
