"""A small encoder-decoder model with random weights that generates for texts, in a process that may be killed."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

import brimful as bf
from brimful.memory import oom_safe_generate

TEXTS = [
    f"{number} " + "ab cde f"[number % 7 :] * (1 + number * 37 % 11) + chr(97 + number * 17 % 26)
    for number in range(300)
]


def letters(texts: list[str]) -> list[list[int]]:
    return [[2 + ord(letter) % 58 for letter in text] for text in texts]


def generator(**options: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    config = T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, **ids)
    model = T5ForConditionalGeneration(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return oom_safe_generate(model, max_new_tokens=6, do_sample=False, **options)


def run(output: str | None, delay: float = 0.0, texts: list[str] = TEXTS) -> list[Any]:
    """The sequences as text."""
    generate = generator()

    def answer(batch: dict[str, Any]) -> list[dict[str, str]]:
        time.sleep(delay)
        found = generate(batch).tolist()
        return [
            {"text": text, "found": "".join(chr(65 + token) for token in row)}
            for text, row in zip(batch["text"], found, strict=True)
        ]

    data = bf.from_sequence(texts).tokenize(letters)
    policy = bf.TokenBudget(600)
    if output is None:
        return list(bf.map_batches_in_order(answer, data, policy, window=32))
    return list(bf.map_batches_in_order(answer, data, policy, output=output, window=32, version="1"))


def run_and_be_killed(output: str, delay: float) -> None:
    run(output, delay)
