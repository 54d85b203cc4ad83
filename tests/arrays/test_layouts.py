"""A layout is one class: one that a test makes goes through every batch verb, with shapes, counts and states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.arrays.collated import LaidOut
from brimful.arrays.columns import WindowColumns
from brimful.arrays.layout import Layout
from brimful.batching.batch import Batch
from brimful.tables.blocks import samples
from brimful.testing import assert_exact_resume

ROWS = [{"input_ids": [*range(1, 2 + n * 7 % 11)]} for n in range(40)]
VERBS: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "batch": lambda data: data.batch(4),
    "batch of a window": lambda data: data.batch(4, window=16),
    "batch_by_tokens": lambda data: data.batch_by_tokens(24, window=16),
    "batch_by": lambda data: data.batch_by(4, lambda sample: len(sample["input_ids"])),
    "pack": lambda data: data.pack(16, rows=2, window=16),
}


@dataclass(frozen=True)
class Flat(Layout):
    """All tokens of a batch in one array, and where each sample ends."""

    name = "flat"
    varies = True

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        rows = [row["input_ids"] for row in samples(columns.rows(batch))]
        ends = np.cumsum([len(row) for row in rows])
        return {"input_ids": np.array([token for row in rows for token in row]), "ends": ends}

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        return item["input_ids"].shape, item["input_ids"].size


def flat(batches: bf.Batches) -> bf.Batches:
    assert isinstance(batches.stage, LaidOut)
    return bf.Batches(replace(batches.stage, layout=Flat()))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_a_layout_of_a_test_holds_every_sample_and_is_resumed_and_counted(verb: str, streamed: bool) -> None:
    rows = bf.from_sequence(ROWS)
    batches = flat(VERBS[verb](rows.stream() if streamed else rows))
    with batches.iter() as taken:
        found = [
            part.tolist() for batch in taken for part in torch.tensor_split(batch["input_ids"], batch["ends"][:-1])
        ]
        assert sorted(found) == sorted(row["input_ids"] for row in ROWS)
        assert taken.stats.padding == 0
    assert_exact_resume(lambda: batches)
