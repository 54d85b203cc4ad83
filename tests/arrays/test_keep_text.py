"""Text that was tokenised: samples and stores hold it, batches only where they are told to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful import Batches, Dataset

TEXTS = [f"{'word ' * (number % 7)}end{number}" for number in range(200)]
HINT = re.escape("KeyError: 'text' (batches leave out text that was tokenized; keep_text=True keeps it)")
Batched = Callable[..., Batches]
BY: dict[str, Callable[[Dataset], Batched]] = {
    "batch": lambda data: lambda **how: data.batch(8, **how),
    "batch, sorted": lambda data: lambda **how: data.batch(8, window=64, **how),
    "batch_by_tokens": lambda data: lambda **how: data.batch_by_tokens(256, **how),
    "batch_by": lambda data: lambda **how: data.batch_by(8, key=lambda row: len(row["text"]), **how),
    "pack": lambda data: lambda **how: data.pack(128, rows=2, **how),
}


def letters(texts: list[str]) -> list[list[int]]:
    return [[*text.encode()] for text in texts]


def rows() -> Dataset:
    return bf.from_sequence([{"text": text, "title": text[:3]} for text in TEXTS])


def tokenized() -> Dataset:
    return rows().tokenize(letters)


def stored(folder: Path) -> Dataset:
    return tokenized().to_store(folder / "store", version="1")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    return bool(one == other)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("kind", ["stream", "store", "cache"])
def test_batches_leave_it_out_and_are_the_same_with_it(by: str, kind: str, tmp_path: Path) -> None:
    made: dict[str, Callable[[], Dataset]] = {
        "stream": tokenized,
        "cache": lambda: tokenized().cache(),
        "store": lambda: stored(tmp_path),
    }
    data = made[kind]()
    assert next(iter(data))["text"] == TEXTS[0]
    batches = BY[by](data)
    without, kept = [*batches()], [*batches(keep_text=True)]
    assert len(without) == len(kept)
    for one, other in zip(without, kept):
        assert {*other} - {*one} == {"text"}
        assert "title" in one
        assert all(same(one[name], other[name]) for name in one if name != "column_kinds")
    assert sorted(text for batch in kept for text in batch["text"]) == sorted(TEXTS)


@pytest.mark.parametrize("first", [False, True])
def test_a_state_is_the_same_with_it(first: bool) -> None:
    def batches(keep: bool) -> Batches:
        return tokenized().batch_by_tokens(256, window=64, keep_text=keep)

    with batches(first).iter() as it:
        taken = [next(it) for _ in range(7)]
        state = it.state_dict()
        rest = [one["input_ids"].tolist() for one in it]
    assert taken
    with batches(not first).iter(state) as it:
        assert [one["input_ids"].tolist() for one in it] == rest


def test_it_is_known_by_the_name_that_it_has_now() -> None:
    renamed = tokenized().rename({"text": "words", "title": "text"}).batch(4)
    assert {*next(iter(renamed))} == {"input_ids", "attention_mask", "lengths", "text"}
    selected = tokenized().select(["input_ids", "title"]).batch(4)
    assert {*next(iter(selected))} == {"input_ids", "attention_mask", "lengths", "title"}


def test_numbers_that_a_function_puts_in_its_place_stay() -> None:
    counted = tokenized().map(lambda row: row | {"text": len(row["text"])}).batch(4)
    assert next(iter(counted))["text"].tolist() == [len(text) for text in TEXTS[:4]]


def test_text_that_no_tokenizer_of_the_chain_read_stays() -> None:
    made = rows().map(lambda row: row | {"input_ids": [1, 2]}).batch(4)
    assert next(iter(made))["text"] == TEXTS[:4]


def test_both_texts_of_pairs_are_left_out() -> None:
    pairs = rows().tokenize(letters, column=("text", "title"), output_column=("input_ids", "labels"))
    batch = next(iter(pairs.batch(4, length_column=("input_ids", "labels"))))
    assert "text" not in batch
    assert "title" not in batch


def test_mixtures_leave_out_the_text_of_each() -> None:
    mixed = bf.interleave_datasets(
        [tokenized(), rows().rename({"title": "words"}).tokenize(letters, column="words").drop("text")]
    )
    batch = next(iter(mixed.select(["input_ids"]).batch(4)))
    assert {*batch} == {"input_ids", "attention_mask", "lengths"}
    assert "text" not in next(iter(bf.concat_datasets([tokenized(), tokenized()]).batch(4)))


def test_batches_show_the_columns_that_they_have() -> None:
    data = tokenized()
    assert "text: " in repr(data)
    assert "text: " not in repr(data.batch(4))
    assert "text: " in repr(data.batch(4, keep_text=True))


def test_batches_are_explained_without_it() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tests import tokenizers as make

    assert tokenizers
    batches = rows().tokenize(make.bpe()).batch(4)
    texts = [one.text or "" for one in batches.explain(next(iter(batches)))]
    assert [text.replace(" ", "").replace("Ġ", "") for text in texts] == [text.replace(" ", "") for text in TEXTS[:4]]


def collated(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"texts": [sample["text"] for sample in samples]}


def test_functions_that_want_it_are_told_how_to_get_it() -> None:
    data = tokenized()
    with pytest.raises(bf.StageError, match=HINT):
        next(iter(data.batch(4, collate_fn=collated)))
    with pytest.raises(bf.StageError, match=HINT):
        next(iter(data.batch(4, collate_fn=collated, max_workers=1)))
    with pytest.raises(bf.StageError, match=HINT):
        next(iter(data.batch(4).prefetch(2).map(lambda batch: batch["text"])))
    with pytest.raises(bf.StageError, match=r"KeyError: 'other'$"):
        next(iter(data.batch(4).map(lambda batch: batch["other"])))
    assert next(iter(data.batch(4, collate_fn=collated, keep_text=True)))["texts"] == TEXTS[:4]
    assert next(iter(data.batch(4, keep_text=True).map(lambda batch: batch["text"]))) == TEXTS[:4]


def test_results_in_order_get_it() -> None:
    found = bf.map_batches_in_order(lambda batch: batch["text"], tokenized(), 8)
    assert [*found] == TEXTS


def test_conversations_are_left_out_too() -> None:
    transformers = pytest.importorskip("transformers")
    from tests import tokenizers as make

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=make.bpe())
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    chat = bf.from_sequence([{"messages": talk}] * 4).chat(tokenizer, train_on="all")
    assert "messages" in next(iter(chat))
    assert "messages" not in next(iter(chat.batch(2)))
    assert next(iter(chat.batch(2, keep_text=True)))["messages"] == [talk, talk]
