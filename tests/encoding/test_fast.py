"""A tokenizer a second time, and its tokens of many short texts: for tokenizers of every make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from brimful.encoding.encoder_kinds import _mark_of, batched, twin
from brimful.encoding.encoders import encoder_for
from tests import tokenizers as make
from tests.effort import times
from tests.encoding.test_compiled import llama2
from tests.encoding.test_encoders import rows_of
from tests.encoding.test_splittable import HOLD
from tests.texts import ADDED, texts

KINDS: dict[str, Callable[[], Tokenizer]] = {**HOLD, "Llama-2": llama2, "with a template": make.wordpiece}


def one_by_one(tokenizer: Any, given: list[str]) -> list[list[int]]:
    return [one.ids for one in tokenizer.encode_batch_fast(given, add_special_tokens=False)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_go_to_a_twin_together_have_the_tokens_of_each_alone(kind: str) -> None:
    tokenizer = KINDS[kind]()
    given = texts(times(1_000, 100_000), seed=11, most=5)
    assert rows_of(batched(twin(tokenizer), given)) == one_by_one(tokenizer, given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_is_all_that_the_tokenizer_is(kind: str) -> None:
    tokenizer = KINDS[kind]()
    tokenizer.add_tokens(["one more"])
    tokenizer.add_special_tokens(["<one more>"])
    read = Tokenizer.from_str(tokenizer.to_str())
    assert twin(read).to_str() == read.to_str()


def test_texts_that_hold_the_mark_go_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make.bpe()
    (mark, _) = _mark_of(tokenizer) or ("", 0)
    assert mark == "[PAD]"
    given = [f"{text}{mark}{text}" if number % 7 == 0 else text for number, text in enumerate(texts(300, seed=2))]
    for some in (given, [mark] * 300, [*given[1:7], "", *texts(200, seed=3)], ["[", "PAD", "]"] * 50):
        assert rows_of(batched(tokenizer, some)) == one_by_one(tokenizer, some)


def test_a_tokenizer_without_such_a_mark_takes_texts_one_by_one() -> None:
    splitting, none = make.bpe(), Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    splitting.encode_special_tokens = True
    given = ["ab" * number for number in range(100)] + list(ADDED)
    for tokenizer in (splitting, none):
        assert _mark_of(tokenizer) is None
        assert rows_of(batched(tokenizer, given)) == one_by_one(tokenizer, given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"max_length": 9}], ids=str)
def test_an_encoder_is_known_by_the_tokenizer_as_it_is_read_again(kind: str, settings: dict[str, Any]) -> None:
    """So that states and stores of before know it."""
    tokenizer = KINDS[kind]()
    again = Tokenizer.from_str(tokenizer.to_str())
    again.no_padding()
    if settings:
        again.enable_truncation(**settings)
    tokenizer.enable_padding(pad_token=',"added_tokens":')
    tokenizer.enable_truncation(3)
    if not settings:
        settings = {"truncation": False}
    assert encoder_for(tokenizer, settings).depends_on()[0] == again.to_str()
