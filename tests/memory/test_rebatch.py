"""Rows that were padded with others: in any other batches they are what the tokenizer makes of their texts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from brimful.memory.dataloader import TextCollator
from brimful.memory.rebatch import Padding, rebatch_padded
from tests import tokenizers

MAKES = {"bert": tokenizers.bert, "gpt2": tokenizers.gpt2, "llama": tokenizers.llama, "byt5": tokenizers.byt5}
TEXTS = [f"{number} " + "word fox dog "[: number * 5 % 13] * (number % 23) + "x" for number in range(100)]


def seen(collator: TextCollator, longest: str, shortest: str) -> Padding | None:
    return Padding.seen(collator([longest, shortest]), [collator([longest]), collator([shortest])], collator.multiple)


def cuts(rng: np.random.Generator, count: int) -> list[slice]:
    """Into parts, most of them small."""
    inside = np.flatnonzero(rng.random(count - 1) < rng.choice([0.1, 0.3, 0.9])) + 1
    return [slice(start, stop) for start, stop in pairwise([0, *inside.tolist(), count])]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"return_special_tokens_mask": True}, {"pad_to_multiple_of": 8}], ids=str)
def test_batches_cut_anew_are_what_the_tokenizer_makes_of_their_texts(
    make: str, side: str, options: dict[str, Any]
) -> None:
    collator = TextCollator(MAKES[make](padding_side=side), 48, options)
    texts = sorted(TEXTS, key=lambda text: -int(collator.lengths([text])[0]))
    padding = seen(collator, texts[0], texts[-1])
    assert padding is not None
    rng, moved = np.random.default_rng(0), 0
    for _ in range(10):
        ahead, due = cuts(rng, len(texts)), cuts(rng, len(texts))
        moved += ahead != due
        found = rebatch_padded((collator(texts[part]) for part in ahead), due, padding)
        for part, batch in zip(due, found, strict=True):
            expected = collator(texts[part])
            assert list(batch) == list(expected)
            assert batch.pop("texts") == expected.pop("texts")
            assert all(batch[name].equal(column) for name, column in expected.items())
    assert moved == 10


def test_each_cut_is_asked_for_when_its_batch_is_due() -> None:
    collator, asked = TextCollator(tokenizers.bert(), 48, {}), []

    def due() -> Any:
        for start in range(0, 20, 4):
            asked.append(start)
            yield slice(start, start + 4)

    padding = seen(collator, "a b c", "a")
    assert padding is not None
    for number, _ in enumerate(rebatch_padded(map(collator, [["a b"] * 9, ["a"] * 11]), due(), padding), 1):
        assert len(asked) == number
    assert len(asked) == 5


def test_columns_of_several_values_a_token_are_cut_too_and_others_are_not() -> None:
    texts = ["word fox", "x"]
    offsets = TextCollator(tokenizers.bert(), 48, {"return_offsets_mapping": True})
    padding = seen(offsets, *texts)
    assert padding is not None
    joined = padding.joined([offsets([text]) for text in texts])
    assert all(joined[name].equal(column) for name, column in offsets(texts).items() if name != "texts")
    assert seen(TextCollator(tokenizers.bert(), 48, {"return_length": True}), *texts) is None


def positions(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"position_ids": torch.arange(ids.shape[1]).expand_as(ids)}


def first_unseen(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"attention_mask": mask * (torch.arange(ids.shape[1]) > 0)}


def end_pads(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"attention_mask": mask * (ids != tokenizers.bert().sep_token_id)}


def pairs(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"pairs": mask[:, :, None] * mask[:, None]}


@pytest.mark.parametrize("more", [positions, first_unseen, end_pads, pairs])
def test_batches_stay_as_they_are_where_rows_alone_do_not_tell_how_they_are_padded_together(more: Any) -> None:
    def tokenizer(texts: list[str], padding: bool, **settings: Any) -> dict[str, Any]:
        made = dict(tokenizers.bert()(texts, padding=padding, **settings))
        return made | (more(made["input_ids"], made["attention_mask"]) if padding else {})

    assert seen(TextCollator(tokenizer, 48, {}), "a b c", "a") is None


def test_texts_of_one_length_need_no_padding() -> None:
    collator = TextCollator(tokenizers.gpt2(), 48, {})
    padding = seen(collator, "fox", "fox")
    assert padding is not None
    (joined,) = rebatch_padded(map(collator, [["fox"], ["fox", "fox"]]), [slice(0, 3)], padding)
    assert joined["input_ids"].equal(collator(["fox"] * 3)["input_ids"])
