"""Columns by name and type: a batch has the same keys, types and numbers of dimensions, whatever else there is."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.facts import facts_of
from brimful.grouping import Collection
from brimful.plan.errors import warn_once
from brimful.testing import assert_exact_resume
from tests.effort import examples

Rows: TypeAlias = list[dict[str, Any]]
Kinds: TypeAlias = dict[str, tuple[Any, ...]]


def rows_of(lengths: list[int], seed: int) -> Rows:
    """Samples with a column of every kind, of which those without a length to keep have any."""
    draw = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        rows.append(
            {
                "id": number,
                "input_ids": list(range(length)),
                "labels": [-100 if draw.random() < 0.5 else 1 for _ in range(length)],
                "token_type_ids": [0] * length,
                "tags": [1.5] * int(draw.integers(0, 4) if number else 1),
                "spans": [1] * int(draw.choice([length, 1, 0])),
                "words": ["w"] * (1 + length),
                "image": np.zeros((2, 3), np.float32),
                "vector": [0.5, 1.0],
                "score": float(number),
                "good": number % 2 == 0,
                "text": None if draw.random() < 0.3 else "text",
            }
        )
    return rows


def kinds(batch: dict[str, Any]) -> Kinds:
    def kind(value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.dim(), value.is_nested
        if isinstance(value, Collection):
            return tuple(kinds(value.groups[0]).items())
        return (type(value),)

    return {name: kind(value) for name, value in batch.items()}


KINDS_OF_DATA: dict[str, Any] = {
    "in memory": bf.from_sequence,
    "mapped": lambda rows: bf.from_sequence(rows).map(dict),
    "mapped by blocks": lambda rows: bf.from_sequence(rows).map_blocks(lambda block: block),
    "an iterable": bf.from_iterable,
    "cached": lambda rows: bf.from_iterable(rows).cache(),
    "concatenated": lambda rows: bf.from_sequence(rows[: len(rows) // 2]) + bf.from_sequence(rows[len(rows) // 2 :]),
    "mixed": lambda rows: bf.interleave_datasets([bf.from_iterable(rows), bf.from_iterable(rows[:1])], stop="all"),
    "some columns": lambda rows: bf.from_sequence(rows).select([*rows[0]]).drop("words").rename({"good": "fine"}),
}
WAYS: dict[str, Any] = {
    "tokens": lambda data, window: data.batch_by_tokens(24, window=window),
    "tokens, left, rounded": lambda data, window: data.batch_by_tokens(
        24, window=window, pad_side="left", pad_to_multiple_of=4
    ),
    "truncated": lambda data, window: data.batch_by_tokens(4, window=window, overlong="truncate"),
    "a size": lambda data, window: data.batch(3, window=window, buckets=(4, 16)),
    "arrival": lambda data, window: data.batch(window),
    "static": lambda data, window: data.batch(bf.StaticShapes((4, 16), 32), window=window),
    "by key": lambda data, window: data.batch_by(
        window, lambda sample: len(sample["input_ids"]), window=9, pad_to_multiple_of=4
    ),
    "nested": lambda data, window: data.batch_by_tokens(24, window=window, layout="nested"),
    "grouped": lambda data, window: data.batch_by_tokens(24, window=window, layout="grouped", num_groups=2),
    "packed": lambda data, window: data.pack(16, rows=2, window=window),
    "packed, split": lambda data, window: data.pack(4, rows=3, window=window, overlong="split"),
    "two lengths": lambda data, window: data.batch_by_tokens(64, window=window, length_column=("input_ids", "spans")),
}


@pytest.mark.parametrize("way", WAYS)
@examples(12)
@given(
    name=st.sampled_from(sorted(KINDS_OF_DATA)),
    lengths=st.lists(st.lists(st.sampled_from([0, 1, 3, 8, 12]), min_size=2, max_size=12), min_size=2, max_size=2),
    windows=st.lists(st.integers(1, 12), min_size=2, max_size=2),
    world_size=st.integers(1, 3),
)
def test_kinds_are_the_same_whatever_the_window_the_world_and_the_other_rows(
    way: str, name: str, lengths: list[list[int]], windows: list[int], world_size: int
) -> None:
    """Every batch, of either of two data sets with the same columns, of either window, on any rank."""
    seen: Kinds | None = None
    for seed, (one, window) in enumerate(zip(lengths, windows, strict=True)):
        batches = WAYS[way](KINDS_OF_DATA[name](rows_of(one, seed)), window)
        ranks = range(world_size) if not facts_of(batches.stage).streamed_by or world_size == 1 else range(1)
        for rank in ranks:
            for batch in batches.shard(rank, len(ranks)):
                known = {key: kind for key, kind in kinds(batch).items() if not key.startswith("num_")}
                seen = seen or known
                assert known == seen


def test_ranks_hold_what_one_process_holds_with_columns_of_every_kind() -> None:
    data = bf.from_sequence(rows_of([3, 1, 8, 0, 5, 3, 2, 9, 1], 0))
    expected = [batch["tags"].tolist() for batch in data.batch(3, window=9)]
    ranks = [list(data.batch(3, window=9).shard(rank, 3)) for rank in range(3)]
    assert [batch["tags"].tolist() for step in zip(*ranks, strict=True) for batch in step] == expected


# -- padding as the tokenizer says ---------------------------------------------------------------------------------------


def letters_tokenizer(**special: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<pad>": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", **special)


TEXTS = ["a b", "a"]


@pytest.mark.parametrize("stored", [False, True])
def test_padding_is_that_of_the_tokenizer_unless_the_user_says_else(stored: bool, tmp_path: Any) -> None:
    """A RoBERTa padded with 0 computes something else, a left-padded decoder generates nonsense."""
    data = bf.from_sequence(TEXTS).tokenize(letters_tokenizer(pad_token="<pad>", padding_side="left")).drop("text")
    if stored:
        assert len(data.to_store(tmp_path / "store")) == 2
        data = bf.from_store(tmp_path / "store")
    (batch,) = data.batch(2)
    assert batch["input_ids"].tolist() == [[0, 1], [2, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 1]]
    (batch,) = data.batch(2, pad_side="right", pad_values={"input_ids": 3})
    assert batch["input_ids"].tolist() == [[0, 1], [0, 3]]
    (batch,) = data.rename({"input_ids": "tokens"}).batch(2, length_column="tokens")
    assert batch["tokens"].tolist() == [[0, 1], [2, 0]]
    (batch,) = data.pack(4)
    assert batch["input_ids"].tolist() == [[0, 1, 0, 2]]


def test_groups_of_a_tokenizer_that_pads_on_the_left_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    data = bf.from_sequence(TEXTS).tokenize(letters_tokenizer(pad_token="<pad>", padding_side="left")).drop("text")
    data.batch(2, layout="grouped", pad_side="right")
    data.batch(2)
    assert not caplog.records
    for _ in range(2):
        (batch,) = data.batch(2, layout="grouped", num_groups=1)
        assert [group["input_ids"].tolist() for group in batch["groups"].groups] == [[[0, 1], [0, 2]]]
    assert [record.getMessage() for record in caplog.records] == [
        "layout='grouped' pads on the right, but the tokenizer pads on the left. Give pad_side='right' if this is meant, or "
        "choose layout='padded'"
    ]


def test_a_tokenizer_that_does_not_pad_leaves_padding_at_zero() -> None:
    (batch,) = bf.from_sequence(TEXTS).tokenize(letters_tokenizer()).batch(2)
    assert batch["input_ids"].tolist() == [[0, 1], [0, 0]]
    (batch,) = bf.from_sequence(TEXTS).tokenize(lambda texts: [[7] * len(text) for text in texts]).batch(2)
    assert batch["input_ids"].tolist() == [[7, 7, 7], [7, 0, 0]]


def test_padding_that_a_tokenizer_of_tokenizers_was_told_is_kept() -> None:
    tokenizer = letters_tokenizer().backend_tokenizer
    tokenizer.enable_padding(direction="left", pad_id=3)
    (batch,) = bf.from_sequence(TEXTS).tokenize(tokenizer).batch(2)
    assert batch["input_ids"].tolist() == [[0, 1], [3, 0]]


def test_two_tokenizers_of_one_column_that_pad_differently_are_refused() -> None:
    one, two = (
        bf.from_sequence(TEXTS).tokenize(letters_tokenizer(pad_token=token, padding_side="right"))
        for token in ("<pad>", "[UNK]")
    )
    message = (
        r"the tokenizers of column 'input_ids' pad by Padding\(id=2, side='right'\) and by Padding\(id=3, side='right'\): "
        "say pad_values and pad_side"
    )
    for settings in ({}, {"pad_values": {"input_ids": 0}}, {"pad_side": "left"}):
        with pytest.raises(ValueError, match=message):
            (one + two).batch(2, **settings)
    (batch,) = (one + two).drop("text").batch(4, pad_values={"input_ids": 9}, pad_side="left")
    assert batch["input_ids"].tolist() == [[0, 1], [9, 0]] * 2


def test_rows_that_were_padded_have_the_mask_of_what_was_there() -> None:
    rows = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3], "labels": [3]}]
    data = bf.from_sequence(rows).pad(4, {"input_ids": 9, "labels": -100})
    for batches in (data.batch(2), data.cache().batch(2), data.batch_by_tokens(64), data.map(dict).batch(2)):
        (batch,) = batches
        order = [0, 1] if batch["input_ids"][0, 0] == 1 else [1, 0]
        assert batch["input_ids"][order].tolist() == [[1, 2, 9, 9], [3, 9, 9, 9]]
        assert batch["attention_mask"][order].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
        assert batch["lengths"][order].tolist() == [2, 1]


# -- which columns there are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_columns_are_chosen_dropped_and_renamed(streamed: bool, tmp_path: Any) -> None:
    rows = [{"id": number, "text": "a", "input_ids": [number] * number} for number in range(4)]
    data = bf.from_sequence(rows)
    data = data.map(dict) if streamed else data
    assert [*next(iter(data.select(["text", "id"])))] == ["text", "id"]
    assert [*next(iter(data.drop("text")))] == ["id", "input_ids"]
    assert [*next(iter(data.rename({"id": "number", "text": "id"})))] == ["number", "id", "input_ids"]
    assert data.drop("text").kind.startswith("streamed" if streamed else "indexed")
    store = data.to_store(tmp_path / "store", version="1").select("input_ids")
    assert (store.kind, store.lengths().tolist()) == ("indexed", [0, 1, 2, 3])
    assert [batch["input_ids"].shape for batch in store.batch(2).shard(1, 2)] == [(2, 3)]
    for method, names, message in (
        ("select", ["id", "no"], r"select: there is no column 'no' \(columns: id, text, input_ids; "),
        ("drop", "no", r"drop: there is no column 'no' \(columns: id, text, input_ids; "),
        ("rename", {"id": "text"}, r"rename: there is a column 'text' already \(.*\); drop or rename it first"),
    ):
        with pytest.raises(bf.DataError, match=message):
            list(getattr(data, method)(names))
    with pytest.raises(ValueError, match="select names 'id' twice"):
        data.select(["id", "id"])
    with pytest.raises(ValueError, match=r"select must name at least one column \(got none\)"):
        data.select([])


def test_chosen_columns_of_a_store_are_the_only_ones_that_are_read(tmp_path: Any) -> None:
    path = tmp_path / "store"
    bf.from_sequence([{"input_ids": [1, 2], "text": "a"}] * 3).to_store(path)
    chosen = bf.from_store(path).drop("text")
    assert chosen.stage.index.source.columns == ("input_ids",)  # type: ignore[attr-defined]


def test_a_filter_after_a_choice_stays_indexed_and_resume_is_exact() -> None:
    rows = [{"id": number, "text": "a", "input_ids": [number] * (number % 4)} for number in range(20)]

    def make() -> bf.Dataset:
        data = bf.from_sequence(rows, shuffle=True).shuffle(7).rename({"id": "number"}).drop("text")
        return data.filter(lambda sample: sample["number"] % 3 > 0)

    assert make().kind == "indexed"
    assert sorted(sample["number"] for sample in make()) == [number for number in range(20) if number % 3]
    assert_exact_resume(make, max_resumes=5)
    assert_exact_resume(lambda: make().batch_by_tokens(8, window=6), max_resumes=5)


# -- rounding ------------------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    policy=st.sampled_from([bf.FixedSize(3), bf.FixedSize(2, sort=False), bf.TokenBudget(64), bf.CostBudget(max, 64)]),
    rounding=st.sampled_from([{"pad_to_multiple_of": 8}, {"buckets": (5, 12, 32)}, {"buckets": (8, 32)}]),
)
def test_any_policy_pads_to_multiples_and_buckets_within_its_limits(
    lengths: list[int], policy: bf.Policy, rounding: Any
) -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in lengths])
    batches = data.batch(policy, window=len(lengths), **rounding)
    seen = 0
    for plan, batch in zip(batches.plans(), batches, strict=True):
        width = batch["input_ids"].shape[1]
        longest = int(batch["lengths"].max())
        assert width == plan.padded_length >= longest
        if "buckets" in rounding:
            assert width == min(bucket for bucket in rounding["buckets"] if bucket >= longest)
        else:
            assert width == max(8, -(-longest // 8) * 8)
        assert not isinstance(policy, bf.TokenBudget) or len(plan) * width <= 64
        seen += len(plan)
    assert seen == len(lengths)


def test_a_sample_beyond_every_bucket_is_named() -> None:
    data = bf.from_sequence([{"input_ids": [1] * 9}])
    message = (
        r"a sample of 9 tokens \(sequence, row 0\) cannot fit FixedSize\(n=2, sort=True\) in Rounding\(.*buckets=\(4, 8\)\); "
        "truncate or filter it, or add a longer bucket"
    )
    with pytest.raises(bf.DataError, match=message):
        list(data.batch(2, window=4, buckets=(8, 4)))
    (batch,) = data.batch(2, window=4, buckets=(4, 8), overlong="truncate")
    assert batch["input_ids"].shape == (1, 8)


def test_labels_that_a_tokenizer_made_are_padded_as_labels() -> None:
    tokenizer = letters_tokenizer(pad_token="<pad>")
    rows = [{"text": "a b", "target": "b"}, {"text": "a", "target": "a b"}]
    data = bf.from_sequence(rows).tokenize(tokenizer).tokenize(tokenizer, column="target", output_column="labels")
    (batch,) = data.batch(2, length_column=("input_ids", "labels"))
    assert (batch["input_ids"].tolist(), batch["labels"].tolist()) == ([[0, 1], [0, 2]], [[1, -100], [0, 1]])


@pytest.mark.parametrize("stored", [False, True])
def test_every_column_of_labels_is_padded_with_minus_100(stored: bool, tmp_path: Any) -> None:
    """Pairs of DPO were padded with 0, a token that was then trained on; what a tokenizer made of them, with its own padding."""
    rows = [{"chosen": "a b", "chosen_labels": [4, 5], "no_labels_here": [7, 8]}]
    rows += [{"chosen": "a", "chosen_labels": [6], "no_labels_here": [9]}]
    tokenizer = letters_tokenizer(pad_token="<pad>", padding_side="right")
    data = bf.from_sequence(rows).tokenize(tokenizer, column="chosen", output_column="rejected_labels")
    if stored:
        data = data.to_store(tmp_path)
    padded = {
        "chosen_labels": [[4, 5], [6, -100]],
        "rejected_labels": [[0, 1], [0, -100]],
        "no_labels_here": [[7, 8], [9, 0]],
    }
    ways: dict[str, Any] = {
        "their own longest": data.batch(2, length_column="chosen_labels"),
        "with the tokens": data.batch(
            2, length_column="no_labels_here", token_columns=["chosen_labels", "rejected_labels"], layout="padded"
        ),
        "on the device": data.batch(2, length_column="rejected_labels").to_device("cpu", pad_on_device=True),
    }
    for way, batches in ways.items():
        (batch,) = batches
        assert {name: batch[name].tolist() for name in padded} == padded, way
    (wide,) = data.batch(bf.StaticShapes([4], 8), window=2, length_column="chosen_labels")
    assert sorted(wide["chosen_labels"].tolist()) == [[4, 5, -100, -100], [6, -100, -100, -100]]
    (packed,) = data.pack(4, length_column="chosen_labels")
    assert packed["chosen_labels"].tolist() == [[4, 5, 6, -100]]
    (grouped,) = data.batch(2, length_column="chosen_labels", layout="grouped", num_groups=1)
    assert sorted(grouped["groups"].groups[0]["chosen_labels"].tolist()) == [[4, 5], [6, -100]]
    (own,) = data.batch(2, length_column="chosen_labels", pad_values={"chosen_labels": 3})
    assert own["chosen_labels"].tolist() == [[4, 5], [6, 3]]


# -- arrays --------------------------------------------------------------------------------------------------------------

FRAMES = [np.ones((length, 2), np.float32) for length in (2, 2, 3)]


@pytest.mark.parametrize("name", ["in memory", "mapped", "an iterable", "cached"])
@pytest.mark.parametrize("way", ["tokens", "arrival", "nested", "grouped", "packed", "static"])
def test_arrays_with_a_ragged_dimension_are_what_their_type_says_whatever_lies_beside_a_row(
    name: str, way: str
) -> None:
    """They were nested lists of float64, of which equally long ones elsewhere made a tensor."""
    for values in (FRAMES, [frame.tolist() for frame in FRAMES], [[[1, 2]], [[3, 4]], [[5, 6]]]):
        rows = [{"input_ids": [1], "frames": frames} for frames in values]
        batches = WAYS[way](KINDS_OF_DATA[name](rows), 2)
        if way == "static":
            with pytest.raises(
                bf.DataError, match=r"^StaticShapes gives all batches few shapes, and column 'frames' has"
            ):
                next(iter(batches))
            continue
        batch = next(iter(batches))
        assert ("frames_mask" in batch, "frames_offsets" in batch, isinstance(batch["frames"], list)) == (
            way in ("tokens", "arrival"),
            way in ("nested", "packed"),
            way == "grouped",
        )


def test_lists_in_lists_that_are_no_numbers_stay_lists_and_a_function_gets_arrays() -> None:
    data = bf.from_sequence([{"input_ids": [1], "words": [["a"], []], "frames": frames} for frames in FRAMES])
    (batch,) = data.drop("frames").batch(3)
    assert batch["words"] == [[["a"], []]] * 3
    (batch,) = data.batch(3, collate_fn=lambda samples: [len(sample["frames"]) for sample in samples])
    assert batch == [2, 2, 3]


def test_arrays_of_one_shape_by_their_type_are_stacked_and_a_null_in_one_is_an_error() -> None:
    kinds = pa.schema([("input_ids", pa.list_(pa.int32())), ("box", pa.list_(pa.list_(pa.float32(), 2), 2))])

    def data(*boxes: Any) -> bf.Dataset:
        return bf.from_sequence(pa.Table.from_pylist([{"input_ids": [1], "box": box} for box in boxes], schema=kinds))

    boxes = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    for batches in (data(*boxes).batch(2), data(*boxes).pack(2), data(*boxes).batch(2, layout="nested")):
        (batch,) = batches
        assert (batch["box"].dtype, batch["box"].tolist()) == (torch.float32, boxes)
    for null, words in (
        (None, "is null or missing"),
        ([None, [1, 2]], "has a null"),
        ([[1, None], [1, 2]], "has a null"),
    ):
        with pytest.raises(bf.DataError, match=rf"column 'box' {words}.* \(sequence, row 1\), and becomes a tensor"):
            next(iter(data(boxes[0], null).batch(2)))


@pytest.mark.parametrize("kind", ["in memory", "an iterable", "stored"])
def test_a_missing_input_ids_names_the_columns_and_the_ways_out(kind: str, tmp_path: Any) -> None:
    rows = [{"tokens": [1, 2], "text": "a"}]
    data = bf.from_sequence(rows).to_store(tmp_path) if kind == "stored" else KINDS_OF_DATA[kind](rows)
    message = r"'input_ids' .*tokens.*; tokenize\(\) makes it of text\. Where tokens stand in another column, rename\(\) it, or "
    for make in (lambda: data.pack(8), lambda: data.batch_by_tokens(8), lambda: data.select("tokens").pack(8)):
        with pytest.raises(bf.DataError, match=message + "name it in length_column="):
            next(iter(make()))
    assert next(iter(data.rename({"tokens": "input_ids"}).pack(8)))["input_ids"].shape == (1, 8)
    assert next(iter(data.pack(8, length_column="tokens")))["tokens"].shape == (1, 8)
