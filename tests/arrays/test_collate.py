"""Batches as tensors: every layout against a loop over the samples that anyone can read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.batch import Batch
from brimful.core.own_keys import TAKEN
from brimful.testing import assert_exact_resume

Rows: TypeAlias = list[dict[str, Any]]

# -- the reference -------------------------------------------------------------------------------------------------------


def padded_row(values: list[Any], width: int, fill: Any, left: bool) -> list[Any]:
    values = values[:width]
    gap = [fill] * (width - len(values))
    return gap + values if left else values + gap


def padded_by_loop(rows: Rows, length: int, size: int, left: bool, fills: dict[str, Any]) -> dict[str, Any]:
    """What a batch of these samples is, `size` rows of them padded to `length`: of the columns that `table` has."""
    tokenwise = {"input_ids", "labels", "flags", "weights"}
    filled = rows + rows[:1] * (size - len(rows))
    out: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in filled]
        if name in tokenwise:
            out[name] = [padded_row(one, length, fills[name], left) for one in values]
        elif name == "spans":
            out[name] = [padded_row(one, max(1, *map(len, values)), fills[name], left) for one in values]
        else:
            out[name] = values
    out["attention_mask"] = [padded_row([1] * len(row["input_ids"]), length, 0, left) for row in filled]
    out["lengths"] = [min(len(row["input_ids"]), length) for row in filled]
    return out


def packed_by_loop(rows: Rows, batch: Batch) -> dict[str, Any]:
    """What the pieces of a plan are as rows of tokens."""
    packs = batch.pieces
    assert packs is not None
    size, length, samples = batch.padded_size, batch.widths[0], sources(batch, rows)
    ids, labels, positions, segments = ([[0] * length for _ in range(size)] for _ in range(4))
    cu_seqlens, place = [0], 0
    used, numbers = [0] * size, [0] * size

    def close(row: int) -> None:
        """The padding that ends a row is a segment of its own."""
        nonlocal place
        for slot in range(used[row], length):
            labels[row][slot], positions[row][slot] = -100, slot - used[row]
        if used[row] < length:
            cu_seqlens.append((row + 1) * length)
        place = (row + 1) * length

    for piece, (start, count, row) in enumerate(zip(packs.starts, packs.lengths, packs.rows)):
        sample = samples[piece]
        numbers[row] += count > 0
        for position in range(count):
            slot = used[row]
            ids[row][slot] = sample["input_ids"][start + position]
            labels[row][slot] = sample["labels"][start + position] if position else -100
            positions[row][slot], segments[row][slot] = position, numbers[row]
            used[row] += 1
        place += count
        if count:
            cu_seqlens.append(place)
        if piece + 1 == len(batch) or packs.rows[piece + 1] != row:
            close(row)
    for row in range(int(packs.rows[-1]) + 1, size):
        close(row)
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": positions,
        "segment_ids": segments,
        "cu_seqlens": cu_seqlens,
    }


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def sources(batch: Batch, rows: Rows) -> Rows:
    """The samples of a batch, known by their ids: of a stream a plan knows only where in its window they are."""
    return [rows[number] for number in batch.window.take(batch.numbers).column("id").to_pylist()]


# -- what is drawn -------------------------------------------------------------------------------------------------------

lengths = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13]), min_size=1, max_size=14)
COLUMNS = ("labels", "flags", "weights", "spans", "fixed", "number", "score", "good", "text", "nested")
TOKENWISE = ("labels", "flags", "weights")


def table(lengths: list[int], names: tuple[str, ...] = COLUMNS) -> Rows:
    """Samples with a column of every kind: as long as the ids, of lengths of their own, fixed, scalar, and no numbers."""
    rows = []
    for number, length in enumerate(lengths):
        row = {
            "input_ids": [100 * number + place for place in range(length)],
            "labels": [100 * number + place + 1 for place in range(length)],
            "flags": [(number + place) % 3 == 0 for place in range(length)],
            "weights": [number + place / 8 for place in range(length)],
            "spans": list(range((7 * number) % 5)),
            "fixed": [number, number + 1, number + 2],
            "number": number,
            "score": number / 4,
            "good": number % 2 == 0,
            "text": f"sample {number}",
            "nested": [[str(number)], ["a", "b"]],
        }
        rows.append({"id": number} | {name: row[name] for name in ("input_ids", *names)})
    return rows


def arrow(rows: Rows, wide: bool) -> pa.Table:
    """The samples with exact types; sliced, so that no array begins where its buffer does."""
    lists = pa.large_list if wide else pa.list_
    kinds = {
        "id": pa.int32(),
        "input_ids": lists(pa.int64() if wide else pa.uint16()),
        "labels": lists(pa.int16()),
        "flags": lists(pa.bool_()),
        "weights": lists(pa.float64() if wide else pa.float32()),
        "spans": lists(pa.int8()),
        "fixed": pa.list_(pa.int32(), 3),
        "number": pa.uint8(),
        "score": pa.float32(),
        "good": pa.bool_(),
        "text": pa.large_string() if wide else pa.string(),
        "nested": lists(lists(pa.string())),
    }
    schema = pa.schema([(name, kinds[name]) for name in rows[0]])
    return pa.Table.from_pylist([rows[-1], *rows], schema=schema).slice(1)


def dataset(rows: Rows, streamed: bool, wide: bool = False) -> bf.Dataset:
    data = bf.from_sequence(arrow(rows, wide))
    return data.map_blocks(lambda block: block) if streamed else data


policies = st.one_of(
    st.builds(bf.FixedSize, st.integers(1, 5), sort=st.booleans()),
    st.builds(bf.TokenBudget, st.integers(13, 40), pad_to_multiple_of=st.sampled_from([1, 4])),
    st.just(bf.TokenBudget(32, buckets=(2, 8, 16))),
    st.just(bf.StaticShapes((4, 16), 48)),
    st.just(bf.StaticShapes((4, 8), 24)),
)


# -- padded --------------------------------------------------------------------------------------------------------------


@given(
    lengths=lengths,
    names=st.sets(st.sampled_from(COLUMNS)).map(lambda names: tuple(name for name in COLUMNS if name in names)),
    policy=policies,
    left=st.booleans(),
    streamed=st.booleans(),
    wide=st.booleans(),
    on_device=st.booleans(),
    fills=st.fixed_dictionaries(
        {},
        optional={
            "input_ids": st.integers(-3, 3),
            "labels": st.integers(-3, 3),
            "flags": st.booleans(),
            "weights": st.sampled_from([-1, 0.5]),
            "spans": st.just(9),
        },
    ),
)
def test_padded_batches_are_what_a_loop_makes(
    lengths: list[int],
    names: tuple[str, ...],
    policy: bf.Policy,
    left: bool,
    streamed: bool,
    wide: bool,
    on_device: bool,
    fills: dict[str, Any],
) -> None:
    rows = table(lengths, names)
    data = dataset(rows, streamed, wide)
    fills = {name: value for name, value in fills.items() if name in ("input_ids", *names)}
    options: Any = {"pad_values": fills, "token_columns": [name for name in TOKENWISE if name in names]}
    batches = data.batch(policy, window=5, pad_side="left" if left else "right", overlong="truncate", **options)
    if on_device:
        batches = batches.to_device("cpu", pad_on_device=True)
    seen = 0
    with batches.iter() as it:
        for batch, plan in zip(it, batches.plans(), strict=True):
            assert isinstance(plan, Batch)
            assert isinstance(plan.padded_length, int)
            every = {"input_ids": 0, "labels": -100, "flags": False, "weights": 0.0, "spans": 0} | fills
            chosen = sources(plan, rows)
            expected = padded_by_loop(chosen, plan.padded_length, plan.padded_size, left, every)
            if isinstance(policy, bf.StaticShapes):
                expected["sample_weights"] = [1.0] * len(chosen) + [0.0] * (plan.padded_size - len(chosen))
                for row in expected.get("labels", [])[len(chosen) :]:
                    row[:] = [every["labels"]] * plan.padded_length
            assert as_lists(batch) == expected
            types = {name: value.dtype for name, value in batch.items() if isinstance(value, torch.Tensor)}
            expected_types = TYPES | {"weights": torch.float64 if wide else torch.float32}
            assert types == {name: expected_types[name] for name in batch if name in TYPES}
            seen += len(chosen)
        assert seen == it.stats.samples == len(rows)
        assert it.stats.tokens == sum(min(length, policy.max_length or 99) for length in lengths)


TYPES = {
    **dict.fromkeys(("input_ids", "labels", "spans", "fixed", "id", "number"), torch.int64),
    **dict.fromkeys(("attention_mask", "lengths"), torch.int64),
    **dict.fromkeys(("flags", "good"), torch.bool),
    **dict.fromkeys(("weights", "score", "sample_weights"), torch.float32),
}


def test_two_length_columns_are_padded_each_to_its_own_and_token_columns_with_the_first() -> None:
    rows = [
        {"source": [1] * a, "target": [2] * b, "source_type": [3] * a, "labels": [4] * b, "words": [5] * c}
        for a, b, c in [(3, 7, 1), (4, 2, 2), (1, 5, 3)]
    ]
    policy = bf.TokenBudget(64, pad_to_multiple_of=4)
    data = bf.from_sequence(rows)
    with data.batch(policy, length_column=("source", "target"), token_columns="source_type").iter() as it:
        (batch,) = it
        shapes = {name: tuple(value.shape) for name, value in batch.items()}
        assert shapes == {
            "source": (3, 4),
            "source_type": (3, 4),
            "attention_mask": (3, 4),
            "target": (3, 8),
            "labels": (3, 7),
            "words": (3, 3),
            "lengths": (3, 2),
        }
        assert sorted(batch["lengths"].tolist()) == [[1, 5], [3, 7], [4, 2]]
        assert (batch["attention_mask"].sum(1) == batch["lengths"][:, 0]).all()
        assert (it.stats.tokens, it.stats.slots, it.stats.num_shapes) == (22, 3 * (4 + 8), 1)
    message = (
        r"column 'labels' has 7 values and 'source' 3 \(sequence, row 0\): token columns are cut, padded and packed "
        r"together; where 'labels' has lengths of its own, .* models have, pass token_columns=\[.*\]$"
    )
    with pytest.raises(bf.DataError, match=message):
        next(iter(data.batch(policy, length_column=("source", "target"))))


@pytest.mark.parametrize("layout", ["padded", "nested", "packed", "function"])
def test_a_label_that_is_missing_is_named_and_both_remedies_work(layout: str) -> None:
    """It used to turn the labels of a whole window into a column of their own length."""
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [4]}]
    data = bf.from_sequence(rows)

    def batches(**options: Any) -> bf.Batches:
        if layout == "packed":
            return data.pack(8, rows=2, **options)
        return data.batch(2, **options | ({"collate_fn": list} if layout == "function" else {"layout": layout}))

    message = (
        r"column 'labels' has 1 values and 'input_ids' 2 \(sequence, row 1\): token columns are cut, padded and packed "
        r"together; .* give length_column=\('input_ids', 'labels'\), or pass token_columns=\[\]$"
    )
    with pytest.raises(bf.DataError, match=message):
        next(iter(batches()))
    (batch,) = batches(token_columns=())
    if layout in ("padded", "packed"):
        assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    if layout == "padded":
        (batch,) = batches(length_column=("input_ids", "labels"))
        assert (batch["labels"].tolist(), batch["lengths"].tolist()) == ([[1, 2, 3], [4, -100, -100]], [[3, 3], [2, 1]])


def test_labels_are_cut_with_the_tokens() -> None:
    data = bf.from_sequence([{"input_ids": list(range(9)), "labels": list(range(9))}])
    (batch,) = data.batch_by_tokens(6, overlong="truncate")
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((1, 6), (1, 6))


def test_what_has_the_prefix_of_the_tokens_is_cut_with_them() -> None:
    sample = {f"chosen_{name}": list(range(1, 10)) for name in ("input_ids", "labels", "attention_mask")}
    (batch,) = bf.from_sequence([sample]).batch_by_tokens(6, length_column="chosen_input_ids", overlong="truncate")
    assert {name: batch[name].shape[1] for name in sample} == dict.fromkeys(sample, 6)


def test_a_token_column_is_there_and_a_list_of_numbers() -> None:
    data = bf.from_sequence([{"input_ids": [1], "words": ["a"], "id": 1}])
    with pytest.raises(ValueError, match="token_columns names 'labels', but the columns are input_ids, words, id"):
        next(iter(data.batch(1, token_columns=["labels"])))
    with pytest.raises(
        ValueError, match=r"token_columns names 'words', which is no list of numbers \(list<item: string>\)"
    ):
        next(iter(data.batch(1, token_columns=["words"])))
    with pytest.raises(ValueError, match="'input_ids' is a length column; it cannot be one of token_columns too"):
        data.batch(1, token_columns=["input_ids"])


def test_a_column_of_fixed_size_is_stacked_whatever_lengths_a_batch_has() -> None:
    """By its type: were it padded where it happens to be as long as the ids, its shape would change with the data."""
    kinds = pa.schema([("input_ids", pa.list_(pa.int32())), ("vector", pa.list_(pa.float32(), 2))])
    rows = [{"input_ids": [1, 2], "vector": [0.5, 1.5]}, {"input_ids": [3, 4], "vector": [2.5, 3.5]}]
    data = bf.from_sequence(pa.Table.from_pylist(rows, schema=kinds))
    (batch,) = data.batch_by_tokens(64, pad_to_multiple_of=8)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["vector"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert next(iter(data.batch(2, layout="nested")))["vector"].shape == (2, 2)
    assert next(iter(data.pack(8)))["vector"].shape == (2, 2)


def test_columns_of_one_fixed_size_are_padded_alike_where_one_gives_the_length() -> None:
    kind = pa.list_(pa.int32(), 3)
    rows = [{"input_ids": [1, 2, 3], "labels": [4, 5, 6]}]
    table = pa.Table.from_pylist(rows, schema=pa.schema([("input_ids", kind), ("labels", kind)]))
    (batch,) = bf.from_sequence(table).batch_by_tokens(64, pad_to_multiple_of=4)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0]]
    assert batch["labels"].tolist() == [[4, 5, 6, -100]]
    (packed,) = bf.from_sequence(table).pack(4)
    assert packed["labels"].tolist() == [[-100, 5, 6, -100]]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("column", "null"), [("labels", None), ("labels", [7, None]), ("tags", None), ("score", None)])
def test_a_null_in_what_becomes_a_tensor_is_an_error_with_its_place(column: str, null: Any, streamed: bool) -> None:
    """It used to turn the tensor of a whole window into a list."""
    rows: Rows = [{"input_ids": [1], "labels": [1], "tags": [1, 2], "score": 2.0} for _ in range(3)]
    rows.append(rows[0] | {"input_ids": [1, 2], "labels": [1, 2]} | {column: null})
    data = bf.from_sequence(rows)
    data = data.map_blocks(lambda block: block) if streamed else data
    words = "is null or missing" if null is None else "has a null in its list"
    message = (
        rf"column '{column}' {words} \(sequence, row 3\), and becomes a tensor; fill it \(map\), leave the column out "
        r"\(drop, select\), or make lists of it \(collate_fn\)"
    )
    for batches in (data.batch(4), data.pack(8), data.batch(4, layout="nested")):
        with pytest.raises(bf.DataError, match=message):
            next(iter(batches))
    assert isinstance(next(iter(data.drop(column).batch(4)))["input_ids"], torch.Tensor)
    if column != "labels":
        ((*_, last),) = data.batch(4, collate_fn=list)
        assert last[column] is None


def test_arrays_of_one_shape_are_stacked() -> None:
    """Images beside text: they used to become nested lists."""
    images = [np.full((2, 3), number, np.uint8) for number in range(3)]
    rows = [{"input_ids": [1] * (1 + number), "image": image} for number, image in enumerate(images)]
    for data in (bf.from_sequence(rows), bf.from_sequence(rows[:1] * 3).map(lambda row: row), bf.from_iterable(rows)):
        for batches in (data.batch(3), data.pack(8), data.batch(3, layout="nested")):
            batch = next(iter(batches))
            assert batch["image"].shape == (3, 2, 3)
            assert batch["image"].dtype == torch.uint8
        (batch,) = data.batch(3, dtypes={"image": "int64"})
        assert batch["image"].dtype == torch.int64
    assert [sample["image"].tolist() for sample in bf.from_iterable(rows)] == [image.tolist() for image in images]
    assert next(iter(bf.from_iterable(rows).batch(3)))["image"].tolist() == [image.tolist() for image in images]
    other = bf.from_iterable([*rows, {"input_ids": [1], "image": np.zeros((2, 4), np.uint8)}])
    assert [sample["image"].shape for sample in other] == [(2, 3)] * 3 + [(2, 4)]


def test_an_array_of_another_shape_than_the_first_thousand_is_an_error() -> None:
    rows = [{"image": np.zeros((2, 2), np.float32)}] * 1_001 + [{"image": np.zeros((2, 3), np.float32)}]
    message = (
        r"from_iterable failed at row 1,001: column 'image' is an array of float of shape \(2, 2\) by the schema but "
        r"an array of float of shape \(2, 3\) here; return one type in every sample"
    )
    with pytest.raises(bf.StageError, match=message):
        list(bf.from_iterable(rows))


def test_lists_of_what_is_no_number_stay_lists() -> None:
    from datetime import date

    rows = [
        {
            "input_ids": [1],
            "days": [date(2026, 1, 2)],
            "words": ["a", "b"],
            "nothing": None,
            "raw": b"x",
            "map": {"a": 1},
        }
    ]
    (batch,) = bf.from_sequence(rows).batch(1)
    assert {name: batch[name] for name in ("days", "words", "nothing", "raw", "map")} == {
        name: [rows[0][name]] for name in ("days", "words", "nothing", "raw", "map")
    }


def test_samples_without_tokens_are_stacked() -> None:
    (batch,) = bf.from_sequence([{"x": 1.5, "spans": [1]}, {"x": 2.5, "spans": []}]).batch(2)
    assert as_lists(batch) == {"x": [1.5, 2.5], "spans": [[1], [0]]}
    with bf.from_sequence(["a", "b"]).batch(2).iter() as it:
        assert list(it) == [{"text": ["a", "b"]}]
        assert (it.stats.batches, it.stats.samples, it.stats.slots, it.stats.padding) == (1, 2, 0, 0.0)


def test_a_mask_that_the_data_have_is_kept_where_samples_stand_alone_and_left_out_where_they_are_packed() -> None:
    """Tokenizers give one of ones: next to position_ids it would tell a model that packed samples see each other."""
    rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, {"input_ids": [4], "attention_mask": [1]}]
    data = bf.from_sequence(rows)
    assert next(iter(data.batch(2)))["attention_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert "attention_mask" not in next(iter(data.pack(4)))


# -- types ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "uint16", "float16", "bfloat16", torch.int16])
@pytest.mark.parametrize("layout", ["padded", "nested", "packed"])
def test_tensors_have_the_type_that_is_asked_for(dtype: Any, layout: Any) -> None:
    data = bf.from_sequence(table([3, 1, 2]))
    types = {"input_ids": dtype, "lengths": "int32", "number": dtype, "weights": "bfloat16"}
    batches = data.pack(8, dtypes=types) if layout == "packed" else data.batch(3, layout=layout, dtypes=types)
    (batch,) = batches
    expected = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert (batch["input_ids"].dtype, batch["number"].dtype) == (expected, expected)
    assert (batch["lengths"].dtype, batch["weights"].dtype) == (torch.int32, torch.bfloat16)
    plain = data.pack(8) if layout == "packed" else data.batch(3, layout=layout)
    values, wide = (one["input_ids"] for one in (batch, next(iter(plain))))
    assert (values.values() if layout == "nested" else values).tolist() == [
        *(wide.values() if layout == "nested" else wide).tolist()
    ]


def test_what_the_plan_gives_has_the_type_that_is_asked_for() -> None:
    data = bf.from_sequence(table([3, 1], ("labels",)))
    (batch,) = data.batch(2, dtypes={"attention_mask": "bool"})
    assert batch["attention_mask"].dtype == torch.bool
    (batch,) = data.pack(8, dtypes={"position_ids": "int32", "segment_ids": "int16", "labels": "int32"})
    assert [batch[name].dtype for name in ("position_ids", "segment_ids", "labels")] == [
        torch.int32,
        torch.int16,
        torch.int32,
    ]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"input_ids": [1, 40_000]}],
            {"dtypes": {"input_ids": "int16"}},
            r"'input_ids' holds 40,000, which int16 does not",
        ),
        ([{"input_ids": [2]}], {"dtypes": {"input_ids": "bool"}}, r"'input_ids' holds 2, which bool does not"),
        ([{"input_ids": [1], "id": 300}], {"dtypes": {"id": "uint8"}}, r"'id' holds 300, which uint8 does not"),
        (
            [{"input_ids": [1], "x": 0.5}],
            {"dtypes": {"x": "int64"}},
            r"int64 would cut off the fractions of column 'x'",
        ),
        (
            [{"input_ids": [1]}],
            {"pad_values": {"input_ids": 0.5}},
            r"int64 does not hold the pad value 0.5 of column 'input",
        ),
        (
            [{"input_ids": [1, 257]}],
            {"dtypes": {"input_ids": "bfloat16"}},
            r"column 'input_ids' holds 257, which bfloat16 does not; choose another of dtypes",
        ),
        (
            [{"input_ids": [1], "id": -16_777_217}],
            {"dtypes": {"id": "float32"}},
            r"column 'id' holds -16,777,217, which float32 does not",
        ),
        (
            [{"input_ids": [1], "id": 2**53 + 1}],
            {"dtypes": {"id": "float64"}},
            r"'id' holds 9,007,199,254,740,993, which",
        ),
        (
            [{"input_ids": [1], "id": 70_000}],
            {"dtypes": {"id": "float16"}},
            r"'id' holds 70,000, which float16 does not",
        ),
        (
            [{"input_ids": [1]}],
            {"pad_values": {"input_ids": 50_257}, "dtypes": {"input_ids": "bfloat16"}},
            r"bfloat16 does not hold the pad value 50,257 of column 'input_ids'",
        ),
        (
            [{"input_ids": [1], "x": [0.5]}],
            {"pad_values": {"x": 1e6}, "dtypes": {"x": "float16"}},
            r"float16 does not hold the pad value 1,000,000.0 of column 'x'",
        ),
        (
            [{"input_ids": [1]}],
            {"pad_values": {"input_ids": -1}, "dtypes": {"input_ids": "uint8"}},
            r"uint8 does not hold",
        ),
        (
            [{"input_ids": [1]}],
            {"dtypes": {"input_ids": "int33"}},
            r"dtypes\['input_ids'\] must be one of bool, .* \(got 'int33'",
        ),
    ],
)
@pytest.mark.parametrize("layout", ["padded", "nested", "packed"])
def test_what_a_type_does_not_hold_is_refused(rows: Rows, options: Any, message: str, layout: Any) -> None:
    data = bf.from_sequence(rows)
    with pytest.raises(ValueError, match=message):
        next(iter(data.pack(4, **options) if layout == "packed" else data.batch(1, **({"layout": layout} | options))))


@pytest.mark.parametrize("dtype", [np.int32, np.dtype("uint8"), torch.int16, float])
def test_a_type_is_named_by_text_or_by_numpy_or_torch(dtype: Any) -> None:
    batch = next(iter(bf.from_sequence([[1, 2]]).batch(1, dtypes={"input_ids": dtype})))
    assert str(batch["input_ids"].dtype) in ("torch.int32", "torch.uint8", "torch.int16", "torch.float64")


def test_a_number_beyond_int64_is_not_wrapped() -> None:
    table = pa.table({"input_ids": pa.array([[1]]), "hash": pa.array([2**63], pa.uint64())})
    with pytest.raises(bf.DataError, match=r"'hash' holds 9,223,372,036,854,775,808, which int64 does not"):
        next(iter(bf.from_sequence(table).batch(1)))
    assert next(iter(bf.from_sequence(table).batch(1, dtypes={"hash": "uint64"})))["hash"].tolist() == [2**63]


def test_labels_that_are_true_or_false_can_be_padded_with_what_is_neither() -> None:
    (batch,) = bf.from_sequence([{"input_ids": [1, 2], "labels": [True, False]}]).batch_by_tokens(
        8, pad_to_multiple_of=4
    )
    assert batch["labels"].tolist() == [[1, 0, -100, -100]]


# -- nested --------------------------------------------------------------------------------------------------------------


@given(lengths=lengths, streamed=st.booleans(), wide=st.booleans(), size=st.integers(1, 5))
def test_nested_batches_hold_the_samples_and_share_their_offsets(
    lengths: list[int], streamed: bool, wide: bool, size: int
) -> None:
    rows = table(lengths)
    batches = dataset(rows, streamed, wide).batch(
        bf.FixedSize(size), window=6, layout="nested", token_columns=TOKENWISE
    )
    with batches.iter() as it:
        for batch, plan in zip(it, batches.plans(), strict=True):
            chosen = sources(plan, rows)
            for name in ("input_ids", "labels", "flags", "weights", "spans"):
                nested = batch[name]
                assert nested.layout == torch.jagged
                assert [row.tolist() for row in nested.unbind()] == [row[name] for row in chosen]
                sizes = [len(row[name]) for row in chosen]
                assert (nested._get_min_seqlen(), nested._get_max_seqlen()) == (min(sizes), max(sizes))
            assert batch["labels"].offsets() is batch["input_ids"].offsets()
            assert batch["weights"].shape == batch["input_ids"].shape
            assert batch["fixed"].tolist() == [row["fixed"] for row in chosen]
            assert batch["lengths"].tolist() == [len(row["input_ids"]) for row in chosen]
            assert "attention_mask" not in batch
        assert (it.stats.tokens, it.stats.padding) == (sum(lengths), 0.0)
        assert it.stats.slots == it.stats.tokens


def test_nested_samples_are_cut_as_planned() -> None:
    data = bf.from_sequence([{"input_ids": list(range(9))}, {"input_ids": [1]}])
    (batch,) = data.batch(
        bf.TokenBudget(8), layout="nested", overlong="truncate", shuffle_batches=False, window=2
    ).take(1)
    assert batch["input_ids"].values().tolist() == list(range(8))


def test_a_layout_is_padded_nested_or_grouped() -> None:
    with pytest.raises(ValueError, match=r"layout must be one of padded, nested, grouped, paired \(got 'ragged'\)"):
        bf.from_sequence([{"input_ids": [1]}]).batch(1, layout="ragged")  # type: ignore[typeddict-item]


def test_nested_batches_have_no_static_shapes() -> None:
    with pytest.raises(ValueError, match="layout='nested' pads nothing, so it has no static shapes"):
        bf.from_sequence([{"input_ids": [1]}]).batch(bf.StaticShapes([4], 8), layout="nested")


# -- packed --------------------------------------------------------------------------------------------------------------


@given(
    lengths=lengths,
    row_length=st.integers(3, 20),
    num_rows=st.integers(1, 3),
    overlong=st.sampled_from(["truncate", "drop", "split"]),
    streamed=st.booleans(),
)
def test_packed_batches_are_what_a_loop_makes(
    lengths: list[int], row_length: int, num_rows: int, overlong: Any, streamed: bool
) -> None:
    rows = table(lengths)
    data = dataset(rows, streamed)
    batches = data.pack(row_length, rows=num_rows, window=6, overlong=overlong, token_columns=TOKENWISE)
    with batches.iter() as it:
        for batch, plan in zip(it, batches.plans(), strict=True):
            expected = packed_by_loop(rows, plan)
            segments = np.diff(expected.pop("cu_seqlens")).tolist()
            for bounds in ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k"):
                assert np.diff(batch[bounds]).tolist() == segments
                assert batch[bounds].dtype == torch.int32
                assert batch[bounds][0] == 0
            for longest in ("max_seqlen", "max_length_q", "max_length_k"):
                assert max(segments) <= batch[longest] <= row_length
            assert {name: batch[name].tolist() for name in expected} == expected
            pieces = sources(plan, rows)
            assert batch["sample_numbers"].tolist() == plan.window.rows[plan.numbers].tolist()
            assert batch["lengths"].tolist() == plan.lengths.tolist()
            assert batch["text"] == [row["text"] for row in pieces]
            assert batch["score"].tolist() == [row["score"] for row in pieces]
            assert batch["weights"].shape == batch["flags"].shape == (plan.padded_size, row_length)
            assert batch["spans"].shape == (len(plan), max(1, *(len(row["spans"]) for row in pieces)))
        kept = [length for length in lengths if overlong != "drop" or length <= row_length]
        assert it.stats.samples == len(kept)
        assert it.stats.tokens == sum(kept if overlong != "truncate" else [min(length, row_length) for length in kept])


def test_labels_are_the_tokens_where_the_data_have_none_and_of_whole_samples_where_they_are() -> None:
    (batch,) = bf.from_sequence([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]).pack(6)
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100]]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0]]
    (batch,) = bf.from_sequence([{"input_ids": [5, 6, 7], "labels": 1}, {"input_ids": [8, 9], "labels": 0}]).pack(6)
    assert batch["labels"].tolist() == [1, 0]


def test_the_longest_segment_is_rounded_up_so_that_few_values_are_compiled() -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in range(100, 400, 7)])
    assert {batch["max_seqlen"] for batch in data.pack(512)} <= {128, 256, 384, 512}
    assert {batch["max_seqlen"] for batch in data.pack(400)} <= {128, 256, 384, 400}


# -- a function of the user's --------------------------------------------------------------------------------------------


def taken_samples(batches: Any) -> list[list[list[int]]]:
    return [[list(map(int, sample["input_ids"])) for sample in batch] for batch in batches]


def test_a_function_gets_the_samples_cut_as_planned() -> None:
    rows = table([3, 13, 2])
    data = bf.from_sequence(rows)
    long = rows[1]["input_ids"]
    cut = data.batch(bf.FixedSize(3), window=3, collate_fn=list, overlong="truncate")
    assert sorted(taken_samples(cut)[0], key=len) == [rows[2]["input_ids"], rows[0]["input_ids"], long]
    (batch,) = data.batch(
        bf.TokenBudget(8), window=3, collate_fn=list, overlong="truncate", shuffle_batches=False
    ).take(1)
    assert batch[0]["input_ids"].tolist() == long[:8]
    assert batch[0]["labels"].tolist() == rows[1]["labels"][:8]
    assert batch[0]["spans"].tolist() == rows[1]["spans"]
    assert batch[0]["text"] == rows[1]["text"]
    pieces = [piece for row in taken_samples(data.pack(5, overlong="split", collate_fn=list)) for piece in row]
    assert sorted(pieces) == sorted([rows[0]["input_ids"], rows[2]["input_ids"], long[:5], long[5:10], long[10:]])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2} | {str(number): number for number in range(3, 2_000)}
    model = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]"
    )


def test_the_collator_of_transformers_for_language_models(tokenizer: Any) -> None:
    from transformers import DataCollatorForLanguageModeling

    rows = [{"id": number, "input_ids": list(range(3, 3 + length))} for number, length in enumerate((5, 2, 9, 1))]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=4)
    batches = bf.from_sequence(rows).batch(2, collate_fn=collator)
    with batches.iter() as it:
        for batch, plan in zip(it, batches.plans(), strict=True):
            expected = collator(sources(plan, rows))
            assert all(torch.equal(batch[name], expected[name]) for name in expected)
        assert (it.stats.samples, it.stats.tokens, it.stats.slots, it.stats.num_shapes) == (4, 17, 2 * 8 + 2 * 12, 2)
    masked = bf.from_sequence(rows).batch(4, collate_fn=DataCollatorForLanguageModeling(tokenizer, seed=0))
    assert next(iter(masked))["labels"].shape == (4, 9)


def test_the_collator_of_transformers_that_flattens_equals_a_packed_row(tokenizer: Any) -> None:
    from transformers import DataCollatorWithFlattening

    rows = table([5, 2, 9, 1, 4], ("labels",))
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batches = bf.from_sequence(rows).pack(21, collate_fn=collator)
    with batches.iter() as it:
        (flat,) = it
        assert (it.stats.samples, it.stats.tokens, it.stats.slots, it.stats.padding) == (5, 21, 21, 0.0)
    (packed,) = bf.from_sequence(rows).pack(21)
    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k"):
        assert flat[name].tolist() == packed[name].tolist()
        assert flat[name].dtype == packed[name].dtype


def test_a_batch_may_be_anything_and_is_counted_by_its_plan() -> None:
    batches = bf.from_sequence(table([3, 1, 2])).batch(2, collate_fn=len).map(lambda size: (size, size))
    with batches.iter() as it:
        assert list(it) == [(2, 2), (1, 1)]
        assert (it.stats.batches, it.stats.samples, it.stats.tokens, it.stats.slots) == (2, 3, 6, 2 * 3 + 2)


# -- .stats --------------------------------------------------------------------------------------------------------------


def real(batch: dict[str, Any]) -> int:
    mask = batch["attention_mask"] if "attention_mask" in batch else batch["segment_ids"] > 0
    mask = mask * batch["sample_weights"][:, None] if "sample_weights" in batch else mask
    return int(mask.sum()) * bool(batch.get("weight", 1))


def ways(data: bf.Dataset) -> Iterator[bf.Batches]:
    static = data.batch(bf.StaticShapes([8, 16], 64), window=10)
    yield data.batch_by_tokens(48, window=10)
    yield static
    yield data.pack(20, rows=2, window=10)
    yield data.pack(5, rows=3, window=10, overlong="split")
    yield static.prefetch(2)
    yield static.enumerate()
    yield data.batch(4).shard(1, 3)
    yield static.shard(0, 2)
    yield data.pack(20, rows=2, window=10).shard(4, 5)


@pytest.mark.parametrize("way", range(9))
def test_stats_count_what_the_tensors_hold(way: int) -> None:
    data = bf.from_sequence(table([number % 14 for number in range(37)], ("labels",)))
    with list(ways(data))[way].iter() as it:
        tokens = slots = batches = samples = 0
        shapes = set()
        for item in it:
            batch = item[1] if isinstance(item, tuple) else item
            tokens, batches = tokens + real(batch), batches + 1
            slots += batch["input_ids"].numel()
            shapes.add(batch["input_ids"].shape)
            if not batch.get("is_filler"):
                samples += int(batch["sample_weights"].sum()) if "sample_weights" in batch else len(batch["lengths"])
            assert it.stats.tokens == tokens
            assert (it.stats.batches, it.stats.slots, it.stats.num_shapes) == (batches, slots, len(shapes))
            assert it.stats.fill == tokens / slots == pytest.approx(1 - it.stats.padding)
        assert it.stats.samples == samples if way != 3 else it.stats.samples == 37


def test_stats_go_on_where_an_interrupted_iterator_does() -> None:
    data = bf.from_sequence([{"input_ids": [1] * (number + 1)} for number in range(8)])
    stops = iter([False, True, *[False] * 9])

    def once(batch: Any) -> Any:
        if next(stops):
            raise KeyboardInterrupt
        return batch

    with data.batch(1).map(once).iter() as it:
        next(it)
        with pytest.raises(KeyboardInterrupt):
            next(it)
        assert it.stats.tokens == 1
        assert [batch["lengths"].item() for batch in it] == [2, 3, 4, 5, 6, 7, 8]
        assert (it.stats.batches, it.stats.tokens) == (8, 36)


def test_more_shapes_than_torch_compiles_are_told_once_where_few_were_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in range(1, 41)])

    def warnings(batches: bf.Batches) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="brimful"):
            list(batches)
        return caplog.messages

    few = list(range(5, 41, 5))
    assert warnings(data.batch_by_tokens(41, window=40)) == []
    assert warnings(data.pack(64, window=40)) == []
    assert warnings(data.batch(bf.StaticShapes(few, 40), window=40)) == []
    (message,) = warnings(data.batch(bf.StaticShapes(list(range(4, 41, 4)), 40), window=40))
    assert message.startswith(
        "9 distinct batch shapes (rows, tokens) so far, and torch.compile runs eagerly what it would have to compile more"
    )
    assert message.endswith("recompile_limit): take fewer buckets, or raise that limit")
    (message,) = warnings(data.batch_by_tokens(41, window=40, buckets=list(range(2, 41, 2))))
    assert message.endswith("): take StaticShapes, whose rows do not vary, fewer buckets, or raise that limit")

    def longest(samples: list[Any]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(len(samples), max(len(one["input_ids"]) for one in samples))}

    (message,) = warnings(data.batch(bf.StaticShapes([20, 40], 40), window=40, collate_fn=longest))
    assert message.endswith(
        "): have collate_fn pad to the buckets, and fill up the rows of StaticShapes, or raise that limit"
    )
    (message,) = warnings(data.batch_by_tokens(41, window=40, buckets=[20, 41], collate_fn=longest))
    assert "): take StaticShapes, have collate_fn pad to the buckets, and fill up the rows of" in message
    assert len(warnings(data.batch_by_tokens(41, window=40, pad_to_multiple_of=2))) == 1
    torch._dynamo.config.recompile_limit = 7  # type: ignore[attr-defined]
    try:
        assert warnings(data.batch(bf.StaticShapes(few, 40), window=40))[0].startswith("8 distinct batch shapes")
    finally:
        torch._dynamo.config.recompile_limit = 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["packed", "split", "nested", "grouped", "static", "function"])
def test_resuming_gives_the_same_tensors(way: str, streamed: bool) -> None:
    rows = table([number % 9 for number in range(20)], ("labels", "text", "spans"))

    def make() -> bf.Batches:
        data = dataset(rows, streamed)
        if way == "packed":
            return data.pack(12, rows=2, window=8)
        if way == "split":
            return data.pack(4, rows=3, window=8, overlong="split")
        if way == "nested":
            return data.batch(bf.TokenBudget(20), window=8, layout="nested")
        if way == "grouped":
            return data.batch(bf.TokenBudget(20), window=8, layout="grouped", num_groups=2)
        if way == "static":
            return data.batch(bf.StaticShapes((4, 8), 24), window=8)
        return data.batch(3, collate_fn=list)

    assert_exact_resume(make, max_resumes=6)


def test_names_that_there_are_not_are_refused_before_they_do_nothing() -> None:
    rows = [{"input_ids": [1, 2], "score": 1.5}] * 3
    data = bf.from_sequence(rows)
    there = r"^length_column, pad_values, dtypes or arrays name '{}', but the columns are input_ids, score$"
    for odd, options in (
        ("imput_ids", {"length_column": "imput_ids"}),
        ("labls", {"pad_values": {"labls": -1}}),
        ("masc", {"dtypes": {"masc": "bool"}}),
    ):
        with pytest.raises(ValueError, match=there.format(odd)):
            next(iter(data.batch(2, **options)))
    usual: dict[str, Any] = {"pad_values": {"labels": -1}, "dtypes": {"attention_mask": "bool", "lengths": "int32"}}
    assert next(iter(data.batch(2, **usual)))["attention_mask"].dtype == torch.bool


@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        (lambda data: data.batch(2, length_column=()), ValueError, "length_column must name at least 1 column"),
        (
            lambda data: data.batch(2, length_column=None),
            TypeError,
            r"length_column takes names of columns, or functions of a block of rows \(got None\)",
        ),
        (lambda data: data.batch(2, token_columns=["x", "x"]), ValueError, "token_columns names 'x' twice"),
        (lambda data: data.batch(2, buckets=5), TypeError, r"buckets takes lengths \(got 5\)"),
        (lambda data: data.batch_by_tokens(9, buckets=b"3"), TypeError, r"buckets takes lengths \(got b'3'\)"),
        (lambda data: data.batch(2).prefetch(2**62), ValueError, "n must be at most 65,536"),
        (lambda data: data.tokenize(len, max_workers=10**9), ValueError, "max_workers must be at most 1,024"),
        (lambda data: data.select([3]), TypeError, r"select takes names of columns \(got 3\)"),
        (lambda data: data.rename({"a": 3}), TypeError, r"rename takes names of columns \(got 3\)"),
    ],
)
def test_odd_settings_are_refused_in_words(odd: Callable[[bf.Dataset], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        odd(bf.from_sequence([{"input_ids": [1]}]))


def test_a_column_does_not_give_way_to_what_a_batch_has_beside_it() -> None:
    def made(name: str) -> bf.Dataset:
        return bf.from_sequence([{"input_ids": [1, 2], name: 7}] * 4)

    for name in ("weight", "is_filler"):
        assert next(iter(made(name).batch(2)))[name].tolist() == [7, 7]
        with pytest.raises(bf.DataError, match=rf"^there is a column '{name}', .*; rename or drop it$"):
            next(iter(made(name).batch(2).shard(0, 1)))
    for name in ("lengths", "sample_numbers", "segment_ids", "cu_seqlens", "max_seqlen"):
        with pytest.raises(bf.DataError, match=rf"^there is a column '{name}', "):
            next(iter(made(name).pack(4)))
    with pytest.raises(bf.DataError, match=r"^there is a column 'cu_seq_lens_q', "):
        next(iter(made("cu_seq_lens_q").pack(4)))
    for layout in ("padded", "nested"):
        with pytest.raises(bf.DataError, match=r"^there is a column 'lengths', "):
            next(iter(made("lengths").batch(2, layout=layout)))
    assert next(iter(made("lengths").batch(2, collate_fn=list)))[0]["lengths"] == 7


def test_an_integer_that_a_float_type_holds_is_served() -> None:
    rows = [{"input_ids": [256, 65_536, 0], "id": 2**63}, {"input_ids": [-512], "id": 3}]
    table = pa.table(
        {name: [row[name] for row in rows] for name in ("input_ids",)} | {"id": pa.array([2**63, 3], pa.uint64())}
    )
    for layout in ("padded", "nested"):
        (batch,) = bf.from_sequence(table).batch(2, layout=layout, dtypes={"input_ids": "bfloat16", "id": "float32"})
        values = batch["input_ids"].values() if layout == "nested" else batch["input_ids"].flatten()
        assert [value for value in values.tolist() if value] == [256, 65_536, -512]
        assert batch["id"].tolist() == [2**63, 3]


@pytest.mark.parametrize("layout", ["padded", "nested"])
def test_lengths_are_held_by_their_type_or_are_an_error(layout: Any) -> None:
    with pytest.raises(bf.DataError, match="column 'lengths' holds 300, which int8 does not"):
        next(iter(bf.from_sequence([{"input_ids": [1] * 300}]).batch(1, layout=layout, dtypes={"lengths": "int8"})))


def test_what_packing_makes_is_held_by_its_type_or_is_an_error() -> None:
    data = bf.from_sequence([{"input_ids": [1, 301]}])
    for name, dtype in (("labels", "int8"), ("labels", "bfloat16")):
        with pytest.raises(bf.DataError, match=rf"column 'labels' holds 301, which {dtype} does not"):
            next(iter(data.pack(4, dtypes={name: dtype})))
    with pytest.raises(ValueError, match="uint8 does not hold the pad value -100 of column 'labels'"):
        next(iter(data.pack(4, dtypes={"labels": "uint8"})))
    with pytest.raises(bf.DataError, match="column 'position_ids' holds 299, which int8 does not"):
        next(iter(bf.from_sequence([{"input_ids": [1] * 300}]).pack(300, dtypes={"position_ids": "int8"})))


def test_positions_of_the_users_are_not_written_over() -> None:
    """Packing counts from 0 in each sample."""
    data = bf.from_sequence([{"input_ids": [1, 2], "position_ids": [7, 9]}] * 2)
    assert next(iter(data.batch(2)))["position_ids"].tolist() == [[7, 9]] * 2
    with pytest.raises(bf.DataError, match=r"^there is a column 'position_ids', .*; rename or drop it$"):
        next(iter(data.pack(4)))
    assert next(iter(data.drop("position_ids").pack(4)))["position_ids"].tolist() == [[0, 1, 0, 1]]
    renamed = data.rename({"position_ids": "places"}).pack(4, token_columns=["places"])
    assert next(iter(renamed))["places"].tolist() == [[7, 9, 7, 9]]


def test_a_float_that_its_type_does_not_hold_is_an_error() -> None:
    data = bf.from_sequence([{"input_ids": [1], "score": 1e5}, {"input_ids": [1], "score": float("inf")}])
    assert next(iter(data.batch(2, dtypes={"score": "bfloat16"})))["score"].isinf().tolist() == [False, True]
    with pytest.raises(bf.DataError, match=r"^column 'score' holds 100,000.0, which float16 does not; choose another"):
        next(iter(data.batch(2, dtypes={"score": "float16"})))


@pytest.mark.parametrize("rows", [True, False])
def test_slots_of_a_collate_fn_count_as_they_are_planned(rows: bool) -> None:
    lengths = [1, 9]
    if rows:
        data: bf.Dataset = bf.from_sequence([{"input_ids": [1] * n} for n in lengths])
        batches = data.batch(2, collate_fn=len)
    else:
        batches = bf.from_dataset(["a", "b" * 9], lengths=lengths, collate_fn=len).batch(2)
    with batches.iter() as it:
        list(it)
        assert (it.stats.tokens, it.stats.slots, it.stats.padding) == (10, 18, pytest.approx(8 / 18))


def test_what_a_collate_fn_raises_names_itself_and_the_place() -> None:
    def wrong(samples: list[dict[str, Any]]) -> None:
        raise KeyError("x")

    batches = bf.from_sequence([{"input_ids": [1]}] * 5).batch(2, collate_fn=wrong)
    words = r"^collate_fn=wrong failed on 2 samples, the first of them sequence, row 0: KeyError: 'x'$"
    with pytest.raises(bf.StageError, match=words) as caught:
        next(iter(batches))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("layout", ["padded", "nested"])
def test_lengths_are_those_of_tokens_that_a_mask_shows(layout: Any) -> None:
    rows = [{"input_ids": [5, 6, 7], "attention_mask": [0, 1, 1]}, {"input_ids": [], "attention_mask": []}]
    (batch,) = bf.from_sequence([*rows, {"input_ids": [8], "attention_mask": [1]}]).batch(3, layout=layout)
    assert batch["lengths"].tolist() == [2, 0, 1]


def test_labels_that_a_function_makes_are_not_counted_as_those_of_the_samples() -> None:
    data = bf.from_sequence([{"input_ids": [1] * size, "labels": [-100, *[1] * (size - 1)]} for size in (2, 5, 9, 4)])

    def padded(rows: list[Any], trained_on: Any) -> dict[str, torch.Tensor]:
        labels = [
            torch.tensor([label if trained_on(place) else -100 for place, label in enumerate(row["labels"])])
            for row in rows
        ]
        return {"labels": torch.nn.utils.rnn.pad_sequence(labels, True, -100)}

    def batches(trained_on: Any, source: bf.Dataset = data) -> bf.Batches:
        return source.batch(2, window=4, collate_fn=partial(padded, trained_on=trained_on)).shard(0, 1)

    assert sorted(int(batch["num_items_in_batch"]) for batch in batches(lambda place: True)) == [4, 12]
    with pytest.raises(
        bf.DataError, match=r"^collate_fn made \d labels that are trained on, and the samples .* have (4|12), .*drop"
    ):
        list(batches(lambda place: place % 4 == 3))
    (few,) = data.batch(
        4, collate_fn=partial(padded, trained_on=lambda place: place == 1)
    )  # nobody asked for the number
    assert int((few["labels"] != -100).sum()) == 4


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("data", [bf.from_sequence, bf.from_iterable])
def test_a_column_that_a_loss_would_take_for_brimfuls_own_is_refused_by_each_layout(name: str, data: Any) -> None:
    """Weights of the user's would be taken for those of copies by token_mean, and in another way by oom_guard."""
    rows = data([{"input_ids": [1, 2], name: 1.0} for _ in range(3)])
    for batches in (rows.batch(2), rows.batch(2, layout="nested"), rows.batch(2, layout="grouped"), rows.pack(8)):
        with pytest.raises(bf.DataError, match=rf"^there is a column '{name}', .*; rename or drop it$"):
            next(iter(batches))
    for renamed in (rows.rename({name: "own"}), rows.drop(name)):
        assert next(iter(renamed.batch(2)))["input_ids"].shape == (2, 2)
    (batch,) = rows.batch(3, collate_fn=lambda samples: {"given": [sample[name] for sample in samples]})
    assert batch == {"given": [1.0] * 3}, "a function of the user's gets all columns"
