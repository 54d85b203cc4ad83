"""Digests of batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from brimful.demo.digests import digest

BATCH = {"input_ids": torch.tensor([[1, 2], [3, 0]]), "text": ["one", "two"]}


def test_the_same_batch_has_the_same_digest() -> None:
    assert digest(BATCH) == digest(dict(reversed(BATCH.items()))) == "bdc2738f4984e2ec"
    assert digest({"input_ids": BATCH["input_ids"].t().contiguous().t()}) == digest({"input_ids": BATCH["input_ids"]})


@pytest.mark.parametrize(
    "change",
    [
        {"input_ids": torch.tensor([[1, 2], [3, 4]])},
        {"input_ids": torch.tensor([[1, 2, 3, 0]])},
        {"input_ids": torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)},
        {"text": ["one", "too"]},
        {"more": torch.tensor(1)},
    ],
)
def test_any_change_shows(change: dict[str, Any]) -> None:
    assert digest(BATCH | change) != digest(BATCH)
