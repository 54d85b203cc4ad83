"""Labels of causal models: what is counted is what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from tests.samples import ids, tokens
from tests.shards import write


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=8), st.booleans())
def test_each_sample_by_itself(rows: list[list[int]], shift: bool) -> None:
    table = pa.table({"input_ids": pa.array([[9], *rows], pa.list_(pa.uint16()))}).slice(1)
    found = list(bf.from_sequence(table).causal_labels(shift=shift))
    name = "shift_labels" if shift else "labels"
    for row, sample in zip(rows, found, strict=True):
        expected = [-100, *row[1:]] if row else []
        assert sample[name].tolist() == (expected[1:] + [-100] * bool(row) if shift else expected)
        assert sample[name].dtype == "int32"
        assert sample["input_ids"].tolist() == row


def test_what_a_mask_hides_is_not_trained_on() -> None:
    data = tokens([5, 6, 7], [8]).pad(4, {"input_ids": 0}).causal_labels()
    assert ids(data, "labels") == [[-100, 6, 7, -100], [-100, -100, -100, -100]]
    assert ids(tokens([5, 6, 0]).map(dict).pad(4, {"input_ids": 0}).causal_labels(shift=True), "shift_labels") == [
        [6, 0, -100, -100]
    ]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4))
def test_what_a_hidden_slot_would_predict_is_not_trained_on(masks: list[list[bool]]) -> None:
    rows = [{"input_ids": [*range(1, 1 + len(mask))], "attention_mask": [int(one) for one in mask]} for mask in masks]
    expected = [
        [-100 if not at or not (mask[at] and mask[at - 1]) else at + 1 for at in range(len(mask))] for mask in masks
    ]
    assert ids(bf.from_sequence(rows).causal_labels(), "labels") == expected
    shifted = ids(bf.from_sequence(rows).causal_labels(shift=True), "shift_labels")
    assert shifted == [[*row[1:], -100] for row in expected]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_sample_that_is_cut_has_as_many_shifted_labels_as_are_counted(labelled: bool) -> None:
    rows = [{"input_ids": [*range(1, 1 + count)]} for count in (1, 7, 3, 12, 4, 8)]
    data = bf.from_sequence(rows)
    data = (data.causal_labels() if labelled else data).causal_labels(shift=True)
    makes: list[Any] = [
        lambda one, **more: one.pack(4, rows=2, overlong="split", **more),
        lambda one, **more: one.pack(5, rows=2, overlong="truncate", **more),
        lambda one, **more: one.batch(bf.TokenBudget(10), overlong="truncate", **more),
        lambda one, **more: one.batch(bf.TokenBudget(10), overlong="truncate", pad_side="left", **more),
        lambda one, **more: one.batch(bf.TokenBudget(10), overlong="truncate", layout="nested", **more),
        lambda one, **more: one.batch(bf.TokenBudget(10), overlong="truncate", **more).to_device(
            "cpu", pad_on_device=True
        ),
    ]
    for make in makes:
        made = list(make(data, micro_batches=2))
        for first in range(0, len(made), 2):
            step = made[first : first + 2]
            flat = [
                one["shift_labels"].values() if one["shift_labels"].is_nested else one["shift_labels"] for one in step
            ]
            found = sum(int((values != -100).sum()) for values in flat)
            assert {int(one["num_items_in_batch"]) for one in step} == {found}
            for one in step:
                if "segment_ids" in one:
                    assert (one["labels"] != -100).sum() == (one["shift_labels"] != -100).sum()


def test_a_loss_over_them_is_that_of_a_model_that_shifts() -> None:
    """By hand: logits[t] against labels[t + 1], none for the first token; as many as are counted."""
    logits = torch.rand(2, 3, 10)
    data = tokens([5, 6, 7], [8, 9])
    plain = next(iter(data.causal_labels().batch(2)))
    moved = next(iter(data.causal_labels(shift=True).batch(2)))
    one = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), plain["labels"][:, 1:].flatten(), ignore_index=-100
    )
    other = torch.nn.functional.cross_entropy(logits.flatten(0, 1), moved["shift_labels"].flatten(), ignore_index=-100)
    assert torch.equal(one, other)
    assert (plain["labels"] != -100).sum() == (moved["shift_labels"] != -100).sum() == 3


def test_a_step_counts_what_it_trains_on(tmp_path: Path) -> None:
    data = tokens([5, 6, 7], [8, 9], [4]).causal_labels().to_store(tmp_path / "store")
    (batch,) = data.batch(3, window=3).shard(0, 1)
    assert batch["num_items_in_batch"] == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"input_ids": [1], "labels": [1]}], r"there is a column 'labels' already \(.*line 1\); drop or rename it"),
        (
            [{"input_ids": [1], "attention_mask": [1]}, {"input_ids": [1, 2], "attention_mask": [1]}],
            r"columns 'input_ids' and 'attention_mask' must be equally long \(got 2 and 1; .*line 2\)",
        ),
        ([{"input_ids": [0.5]}], r"column 'input_ids' holds no integers \(.*line 1\)"),
        ([{"input_ids": [1 << 31]}], r"2,147,483,648 in column 'input_ids' is no token id \(.*line 1\)"),
    ],
)
def test_what_cannot_be_labels_is_an_error_with_its_place(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(bf.DataError, match=rf"^causal_labels: {message}$"):
        list(bf.from_files(write(tmp_path / "a.jsonl", rows)).causal_labels())
