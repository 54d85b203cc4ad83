"""Packing leaves out what an attention_mask hides, as if it had never been there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.shards import write

ROWS = st.lists(st.lists(st.sampled_from([0, 1, 1]), max_size=9), min_size=1, max_size=30)
COLUMNS = ("input_ids", "labels", "shift_labels", "token_type_ids")


def masked(masks: list[list[int]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Each value says where it stands; some labels are not trained on."""
    return [
        {"attention_mask": mask, "id": row, "tags": [row] * (row % 3)}
        | {
            name: [-100 if name != "input_ids" and (at + row) % 4 == 0 else 100 * row + at for at in range(len(mask))]
            for name in columns
        }
        for row, mask in enumerate(masks)
    ]


def by_hand(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is hidden."""
    out = []
    for row in rows:
        seen = [at for at, shown in enumerate(row["attention_mask"]) if shown]
        out.append({name: [row[name][at] for at in seen] if name in COLUMNS else row[name] for name in row})
        out[-1]["attention_mask"] = [1] * len(seen)
    return out


def batches_of(data: bf.Dataset, make: Callable[[bf.Dataset], bf.Batches]) -> list[Any]:
    return [
        {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        for batch in make(data)
    ]


MAKES: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "auto": lambda data: data.pack(12, rows=2),
    "split": lambda data: data.pack(4, rows=2, window=7, overlong="split", micro_batches=2),
    "truncated": lambda data: data.pack(5, window=5, overlong="truncate").shard(0, 1),
    "of a function": lambda data: data.pack(
        9, window=9, collate_fn=lambda rows: {"rows": [list(row["input_ids"]) for row in rows]}
    ),
}


@pytest.mark.parametrize("make", MAKES)
@examples(20)
@given(masks=ROWS, labelled=st.booleans())
def test_what_is_hidden_is_not_there(make: str, masks: list[list[int]], labelled: bool) -> None:
    rows = masked(
        [[1, 1, 1], *masks], COLUMNS if labelled else COLUMNS[:1]
    )  # of lists that are all empty the type is not known
    expected = batches_of(bf.from_sequence(by_hand(rows)), MAKES[make])
    for data in (bf.from_sequence(rows), bf.from_sequence(rows).map(dict).cache()):
        assert batches_of(data, MAKES[make]) == expected
        assert len(MAKES[make](data)) == len(expected)
    streamed = batches_of(bf.from_sequence(by_hand(rows)).map(dict), MAKES[make])
    assert batches_of(bf.from_sequence(rows).map(dict), MAKES[make]) == streamed


@pytest.mark.parametrize("labelled", [True, False])
def test_of_a_store_and_of_a_table_too(tmp_path: Path, labelled: bool) -> None:
    generator = np.random.default_rng(0)
    masks = [(generator.random(count) < 0.7).astype(int).tolist() for count in generator.integers(1, 20, 200)]
    rows = masked(masks, COLUMNS if labelled else COLUMNS[:1])
    len(bf.from_sequence(rows).cache(tmp_path / "hidden"))
    made: Any = lambda data: data.pack(20, rows=2, window=50, micro_batches=2, shuffle_batches=False)  # noqa: E731
    expected = batches_of(bf.from_sequence(by_hand(rows)), made)
    kept = [bf.from_store(tmp_path / "hidden"), bf.from_store(tmp_path / "hidden").rename({"id": "id"})]
    datasets = pytest.importorskip("datasets")
    for data in (*kept, bf.from_sequence(datasets.Dataset.from_list(rows))):
        assert batches_of(data, made) == expected
    for rank in range(2):
        ours, theirs = (
            batches_of(data, lambda data, rank=rank: made(data).shard(rank, 2))  # type: ignore[misc]
            for data in (kept[0], bf.from_sequence(by_hand(rows)))
        )
        assert ours == theirs
        assert "num_items_in_batch" in ours[0]


def test_rows_that_are_padded_are_packed_without_their_padding() -> None:
    data = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]).map(dict)
    (batch,) = data.pad({"input_ids": 0}, 6).causal_labels().pack(6)
    assert batch["input_ids"].tolist() == [[7, 8, 9, 5, 6, 0]]
    assert batch["labels"].tolist() == [[-100, 8, 9, -100, 6, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]


def test_a_resume_sees_the_same(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    masks = [(generator.random(count) < 0.7).astype(int).tolist() for count in generator.integers(1, 20, 100)]
    path = write(tmp_path / "a.jsonl", masked(masks, COLUMNS))
    assert_exact_resume(lambda: bf.from_files(path).pack(20, window=30).stage)


def test_a_mask_of_another_length_is_an_error(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2], "attention_mask": [1, 0]}, {"input_ids": [1, 2, 3], "attention_mask": [1, 0]}]
    path = write(tmp_path / "a.jsonl", rows)
    message = r"columns 'input_ids' and 'attention_mask' must be equally long \(got 3 and 2; .*line 2\)"
    for data in (bf.from_files(path), bf.from_files(path).cache()):
        with pytest.raises(bf.DataError, match=message):
            list(data.pack(4))


def test_a_mask_that_is_no_token_column_hides_nothing() -> None:
    data = bf.from_sequence([{"input_ids": [5, 6], "attention_mask": [1, 0]}])
    (batch,) = data.pack(4, token_columns=())
    assert batch["input_ids"].tolist() == [[5, 6, 0, 0]]
