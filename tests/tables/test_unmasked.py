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


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:2], COLUMNS[:1]])
def test_of_a_store_and_of_a_table_too(tmp_path: Path, columns: tuple[str, ...]) -> None:
    generator = np.random.default_rng(0)
    masks = [(generator.random(count) < 0.7).astype(int).tolist() for count in generator.integers(1, 20, 200)]
    rows = masked(masks, columns)
    bf.from_sequence(rows).to_store(tmp_path / "hidden")
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
        assert ("num_items_on_rank" if columns == COLUMNS else "num_items_in_batch") in ours[0]


def test_rows_that_are_padded_are_packed_without_their_padding() -> None:
    data = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]).map(dict)
    (batch,) = data.pad(6, {"input_ids": 0}).causal_labels().pack(6)
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


def test_without_its_mask_a_sample_is_packed_whole() -> None:
    data = bf.from_sequence([{"input_ids": [5, 6], "attention_mask": [1, 0]}])
    for batches, tokens in ((data.pack(4, token_columns=()), [5, 0]), (data.drop("attention_mask").pack(4), [5, 6])):
        assert next(iter(batches))["input_ids"].tolist() == [[*tokens, 0, 0]]


def padded_rows(tokens: int = 3) -> list[dict[str, Any]]:
    mask = [1] * tokens + [0] * (5 - tokens)
    return [{"input_ids": [5, 6, 7, 0, 0], "attention_mask": mask, "tags": [1, 2, 3, 0, 0]}] * 2


@pytest.mark.parametrize("make", ["whole", "split"])
@pytest.mark.parametrize("where", ["indexed", "stream", "store"])
def test_a_mask_hides_tokens_whether_or_not_it_is_named(make: str, where: str, tmp_path: Path) -> None:
    data = bf.from_sequence(padded_rows())
    data = {
        "indexed": lambda: data,
        "stream": lambda: data.map(dict),
        "store": lambda: data.to_store(tmp_path / "store"),
    }[where]()
    how: dict[str, Any] = {"overlong": "split", "rows": 2} if make == "split" else {}
    length = 2 if make == "split" else 10
    named = data.pack(length, token_columns=["tags"], micro_batches=1, **how).shard(0, 1)
    everything = data.pack(length, token_columns=["tags", "attention_mask"], **how).shard(0, 1)
    for one, other in zip(named, everything, strict=True):
        assert one.keys() == other.keys()
        kinds = one.pop("column_kinds"), other.pop("column_kinds")
        assert kinds[0] == kinds[1]
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
        assert "attention_mask" not in one
        assert one["tags"].tolist() == (one["input_ids"] - 4 * (one["segment_ids"] > 0)).tolist()
        assert int(one["num_items_in_batch"]) == int((one["labels"] != -100).sum())
    assert sum(int((batch["input_ids"] != 0).sum()) for batch in named) == 6
    with named.iter() as it:
        assert len(list(it)) == len(list(everything))
        assert it.stats.tokens == 6


def test_a_function_gets_a_mask_that_is_cut_with_the_tokens() -> None:
    data = bf.from_sequence(padded_rows(5))
    for batch in data.pack(2, token_columns=["tags"], overlong="split", collate_fn=lambda rows: {"rows": rows}):
        assert all(len(row["attention_mask"]) == len(row["input_ids"]) for row in batch["rows"])


def test_shifted_labels_that_are_not_packed_with_the_tokens_are_refused() -> None:
    """Else the labels would be all tokens."""
    data = bf.from_sequence([{"input_ids": [1, 2, 3], "shift_labels": [-100, 3, -100], "tags": [1, 2, 3]}] * 2)
    with pytest.raises(
        bf.DataError, match=r"a column 'shift_labels', which token_columns=\['tags'\] does not name.*drop it$"
    ):
        next(iter(data.pack(6, token_columns=["tags"])))
    (batch,) = data.pack(6, token_columns=["tags", "shift_labels"])
    assert batch["labels"].tolist() == [[-100, -100, 3] * 2]
