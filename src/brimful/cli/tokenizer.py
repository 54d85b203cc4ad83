"""What the commands make of a column of text."""

from __future__ import annotations

from typing import Any

from brimful import Dataset


def tokenized(dataset: Dataset, tokenizer: Any, column: str, max_length: int) -> Dataset:
    """The tokens of a text column, at most `max_length` a sample (0: all), by a tokenizer or the name of one."""
    return dataset.tokenize(tokenizer, column=column, truncation=max_length > 0, max_length=max_length or None)
