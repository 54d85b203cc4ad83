"""Sides of a sample below one another: what TRL's collator makes of the same data, within budgets, on any number of ranks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.memory import MemoryModel
from brimful.oom.parts import splittable
from brimful.plan import MemoryBudget, MultiBudget
from brimful.testing import assert_exact_resume
from brimful.warmup import warm_up
from tests.samples import same
from tests.worlds import taken_by_worlds

SIDES = ("chosen_input_ids", "rejected_input_ids")
SIDE_NAMES = ("chosen_", "rejected_")
LABELLED = [
    {
        "chosen_input_ids": [1, 2, 3],
        "chosen_labels": [-100, 2, 3],
        "rejected_input_ids": [4, 5],
        "rejected_labels": [-100, 5],
        "margin": 0.5,
        "id": "a",
    },
    {
        "chosen_input_ids": [6, 7],
        "chosen_labels": [-100, 7],
        "rejected_input_ids": [8, 9, 8, 9],
        "rejected_labels": [-100, -100, 8, 9],
        "margin": 0.25,
        "id": "b",
    },
]


def preferences(count: int = 60, seed: int = 0, prompt: bool = True) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    tokens = lambda most: [draw.randrange(1, 99) for _ in range(draw.randrange(1, most))]  # noqa: E731
    rows = []
    for number in range(count):
        row = {"chosen_input_ids": tokens(20), "rejected_input_ids": tokens(30), "number": number}
        rows.append(row | ({"prompt_input_ids": tokens(15)} if prompt else {}))
    return rows


def sides_of(row: dict[str, Any]) -> list[list[int]]:
    prompt = row.get("prompt_input_ids", [])
    return [[*prompt, *row["chosen_input_ids"]], [*prompt, *row["rejected_input_ids"]]]


def numbers(batches: bf.Batches) -> list[int]:
    return sorted(number for batch in batches for number in batch["number"].tolist())


# -- the keys and their values


def test_each_side_lies_below_the_one_before() -> None:
    (batch,) = bf.from_sequence(LABELLED).batch(2, layout="paired")
    found = {name: value.tolist() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    assert found == {
        "input_ids": [[1, 2, 3, 0], [6, 7, 0, 0], [4, 5, 0, 0], [8, 9, 8, 9]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
        "labels": [[-100, 2, 3, -100], [-100, 7, -100, -100], [-100, 5, -100, -100], [-100, -100, 8, 9]],
        "completion_mask": [[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]],
        "lengths": [3, 2, 2, 4],
        "margin": [0.5, 0.25],
        "num_items_on_rank": 2,
        "num_samples_on_rank": 2,
    }
    assert (batch["id"], batch["num_sides"]) == (["a", "b"], 2)


def test_settings_of_a_key_are_those_of_all_sides() -> None:
    how = {
        "pad_values": {"input_ids": 7},
        "dtypes": {"input_ids": "int32", "completion_mask": "bool"},
        "pad_side": "left",
    }
    (batch,) = bf.from_sequence(LABELLED).batch(2, layout="paired", **how)
    assert batch["input_ids"].tolist() == [[7, 1, 2, 3], [7, 7, 6, 7], [7, 7, 4, 5], [8, 9, 8, 9]]
    assert (batch["input_ids"].dtype, batch["completion_mask"].dtype) == (torch.int32, torch.bool)
    assert batch["completion_mask"].sum(1).tolist() == [2, 1, 1, 2]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("most", "side", "mode"), [(None, "right", ""), (25, "right", "keep_start"), (25, "left", "keep_end")]
)
def test_batches_are_those_of_trls_collator(
    most: int | None, side: Any, mode: str, streamed: bool, tmp_path: Path
) -> None:
    collator_of = pytest.importorskip("trl.trainer.dpo_trainer").DataCollatorForPreference
    rows = preferences()
    data = bf.from_sequence(rows)
    data = data.stream().map(same) if streamed else data.to_store(tmp_path / "store")
    cut = {"overlong": "truncate", "truncate_side": side} if most else {}
    for batch in data.batch_by_tokens(
        12 * most if most else 800, layout="paired", window=20, buckets=[most] if most else None, **cut
    ):
        theirs = collator_of(pad_token_id=0, **({"max_length": most, "truncation_mode": mode} if most else {}))(
            [
                {name.replace("_input", ""): value for name, value in rows[number].items()}
                for number in batch["number"].tolist()
            ]
        )
        for name, value in theirs.items():
            if (
                mode == "keep_end" and name == "completion_mask"
            ):  # nothing predicts the first token after what is left out
                value[:, 0] = batch[name][:, 0]
            width = value.shape[1]
            assert torch.equal(batch[name][:, :width], value), name
            assert not batch[name][:, width:].any()


def test_trls_reward_collator_has_the_same_tokens() -> None:
    collator = pytest.importorskip("trl.trainer.reward_trainer").DataCollatorForPreference(pad_token_id=0)
    rows = preferences(prompt=False)
    for batch in bf.from_sequence(rows).batch_by_tokens(400, layout="paired"):
        own = [rows[number] for number in batch["number"].tolist()]
        theirs = collator([{name.replace("_input", ""): value for name, value in row.items()} for row in own])
        assert {name for name in batch if name in theirs} == {"input_ids", "attention_mask"}
        assert all(torch.equal(batch[name], value) for name, value in theirs.items())
        assert "labels" not in batch


def test_several_columns_have_a_mask_each_under_their_prefix() -> None:
    rows = [{"anchor_input_ids": [1], "positive_input_ids": [2, 3], "positive_labels": [0, 3]}, {}]
    rows[1] = {name: values * 2 for name, values in rows[0].items()}
    (batch,) = bf.from_sequence(rows).batch(2, length_column=("anchor_input_ids", "positive_input_ids"))
    assert {name: value.tolist() for name, value in batch.items()} == {
        "anchor_input_ids": [[1, 0], [1, 1]],
        "anchor_attention_mask": [[1, 0], [1, 1]],
        "positive_input_ids": [[2, 3, 0, 0], [2, 3, 2, 3]],
        "positive_attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1]],
        "positive_labels": [[0, 3, -100, -100], [0, 3, 0, 3]],
        "lengths": [[1, 2], [2, 4]],
    }
    (grouped,) = bf.from_sequence(rows).batch(
        2, length_column=("anchor_input_ids", "positive_input_ids"), layout="grouped"
    )
    assert {"anchor_attention_mask", "positive_attention_mask"} <= {*grouped["groups"].groups[0]}


def test_a_mask_of_a_side_that_is_there_is_the_one_that_counts() -> None:
    row = {"chosen_input_ids": [1, 2], "chosen_attention_mask": [0, 1], "rejected_input_ids": [3]}
    (batch,) = bf.from_sequence([row]).batch(1, length_column=SIDES)
    assert (batch["chosen_attention_mask"].tolist(), batch["lengths"].tolist()) == ([[0, 1]], [[1, 1]])
    (batch,) = bf.from_sequence([row | {"rejected_attention_mask": [1]}]).batch(1, layout="paired")
    assert (batch["attention_mask"].tolist(), batch["lengths"].tolist()) == ([[0, 1], [1, 0]], [1, 1])


# -- budgets


POLICIES: dict[str, tuple[Any, Callable[[int, int], bool]]] = {
    "tokens": (bf.TokenBudget(700), lambda rows, length: rows * length <= 700),
    "multiples": (
        bf.TokenBudget(700, pad_to_multiple_of=8),
        lambda rows, length: rows * length <= 700 and length % 8 == 0,
    ),
    "shapes": (bf.StaticShapes([16, 50], 800), lambda rows, length: (rows, length) in [(50, 16), (16, 50)]),
    "cost": (
        bf.CostBudget(lambda rows, length: rows * length**2, 9_000),
        lambda rows, length: rows * length**2 <= 9_000,
    ),
    "samples": (bf.FixedSize(4), lambda rows, length: rows <= 8),
    "several": (
        MultiBudget(padded={"input_ids": 700}, max_samples=6),
        lambda rows, length: rows <= 12 and rows * length <= 700,
    ),
}


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_a_budget_counts_the_rows_of_all_sides(name: str, prompt: bool) -> None:
    policy, fits = POLICIES[name]
    rows = preferences(200, prompt=prompt)
    batches = bf.from_sequence(rows).batch(policy, layout="paired", window=64)
    with batches.iter() as taken:
        for batch in taken:
            assert fits(*batch["input_ids"].shape), tuple(batch["input_ids"].shape)
            real = len(batch["number"]) if "sample_weights" not in batch else int(batch["sample_weights"].sum())
            wanted = [
                side
                for sides in zip(*(sides_of(rows[number]) for number in batch["number"].tolist()[:real]))
                for side in sides
            ]
            own = batch["input_ids"].unflatten(0, (2, -1))[:, :real].flatten(0, 1)
            lengths = batch["lengths"].unflatten(0, (2, -1))[:, :real].flatten().tolist()
            assert [row[:length].tolist() for row, length in zip(own, lengths)] == wanted
            assert batch["num_items_on_rank"] == real
        tokens = sum(len(side) for row in rows for side in sides_of(row))
        assert (taken.stats.samples, taken.stats.tokens) == (200, tokens)
        seen = {tuple(shape) for shape in batches.shapes()}
    assert seen == {tuple(batch["input_ids"].shape) for batch in batches}


def test_a_budget_of_memory_counts_the_rows_of_all_sides() -> None:
    shapes = [(batch, length) for batch in (1, 8, 64) for length in (10, 20, 40)]
    model = MemoryModel.fit(shapes, [1_000 + batch * length for batch, length in shapes])
    for batch in bf.from_sequence(preferences()).batch(MemoryBudget(model, 1_500), layout="paired"):
        assert 1_000 + batch["input_ids"].numel() <= 1_500


def test_functions_of_samples_make_batches_of_one_length() -> None:
    data = bf.from_sequence(preferences())
    batches = data.batch_by(3, lambda row: len(row["chosen_input_ids"]), layout="paired", pad_to_multiple_of=8)
    assert all(batch["input_ids"].shape[1] % 8 == 0 for batch in batches)
    assert numbers(batches) == [*range(60)]


@pytest.mark.parametrize("overlong", ["drop", "alone"])
def test_samples_whose_longest_side_does_not_fit(overlong: Any) -> None:
    rows = preferences()
    long = [row["number"] for row in rows if max(map(len, sides_of(row))) > 30]
    with bf.from_sequence(rows).batch_by_tokens(60, layout="paired", overlong=overlong).iter() as taken:
        found = [batch["number"].tolist() for batch in taken]
        stats = taken.stats
    if overlong == "alone":
        assert all([number] in found for number in long)
        assert stats.alone == len(long)
    else:
        assert sorted(number for numbers in found for number in numbers) == [
            number for number in range(60) if number not in long
        ]
        assert stats.dropped_tokens == sum(len(side) for number in long for side in sides_of(rows[number]))


# -- copies, fillers, states


def test_copies_up_to_a_static_shape_weigh_nothing() -> None:
    batch = next(iter(bf.from_sequence(LABELLED).batch(bf.StaticShapes([4], 32), layout="paired")))
    assert batch["input_ids"].shape == (8, 4)
    assert batch["sample_weights"].tolist() == [1, 1, 0, 0]
    assert batch["completion_mask"].sum(1).tolist() == [1, 2, 0, 0, 2, 1, 0, 0]
    losses = torch.tensor([1.0, 3.0, 50.0, 50.0])
    assert bf.token_mean(losses, batch) == 2


def test_static_shapes_are_warmed_up() -> None:
    batches = bf.from_sequence(preferences()).batch(bf.StaticShapes([16, 50], 800), layout="paired")
    seen: list[Any] = []
    warm_up(lambda batch: seen.append({name: tuple(getattr(one, "shape", ())) for name, one in batch.items()}), batches)
    assert sorted(one["input_ids"] for one in seen) == [(16, 50), (50, 16)]
    for one in seen:
        rows, _ = one["input_ids"]
        assert one["completion_mask"] == one["attention_mask"] == one["input_ids"]
        assert one["number"] == one["sample_weights"] == (rows // 2,)


def test_a_filler_weighs_nothing() -> None:
    batches = bf.from_sequence(LABELLED).batch(2, layout="paired")
    real, filler = (next(iter(batches.shard(rank, 2))) for rank in range(2))
    assert (real["num_items_in_batch"], filler["num_items_in_batch"]) == (2, 2)
    assert filler["is_filler"]
    assert not filler["completion_mask"].any()
    assert (filler["labels"] == -100).all()
    assert bf.token_mean(torch.tensor(5.0), filler) == 0


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_worlds_take_over_from_each_other_through_json(micro_batches: int, tmp_path: Path) -> None:
    rows = preferences(90)
    batches = (
        bf.from_sequence(rows)
        .to_store(tmp_path / "store")
        .batch_by_tokens(900, layout="paired", window=30, micro_batches=micro_batches)
    )
    what = lambda batch: (batch["number"].tolist(), batch["input_ids"].tolist())  # noqa: E731
    whole = [what(batch) for batch in batches]
    assert taken_by_worlds(batches, [(1, 2), (2, 2), (4, 1), (2, 2), (1, 99)], what) == whole
    assert sorted(number for own, _ in whole for number in own) == [*range(90)]
    for world_size in (1, 2, 4):
        steps: dict[int, list[Any]] = {}
        for rank in range(world_size):
            for place, batch in enumerate(batches.shard(rank, world_size)):
                steps.setdefault(place // micro_batches, []).append(batch)
        for step in steps.values():
            pairs = sum(len(batch["number"]) for batch in step if not batch["is_filler"])
            assert {int(batch["num_items_in_batch"]) for batch in step} == {pairs}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_resume_gives_the_rest(streamed: bool) -> None:
    data = bf.from_sequence(preferences(40))
    rows = data.stream().map(same) if streamed else data.shuffle(8)
    for how in ({"layout": "paired"}, {"length_column": SIDES}):
        assert_exact_resume(lambda: rows.batch_by_tokens(400, window=12, **how))  # noqa: B023


def test_another_layout_is_another_order() -> None:
    data = bf.from_sequence(preferences())
    it = data.batch_by_tokens(400, layout="paired").iter()
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    with pytest.raises(bf.StateError, match="layout"):
        data.batch_by_tokens(400, length_column=SIDES).iter(state)


def test_a_step_that_runs_out_of_memory_does_not_part_the_sides() -> None:
    (batch,) = bf.from_sequence(LABELLED).batch(2, layout="paired")
    with pytest.raises(ValueError, match=r"layout='paired' \(num_sides=2\) is not split between its rows"):
        splittable(batch)


def test_samples_are_explained_by_their_first_side() -> None:
    def letters(texts: list[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    data = bf.from_sequence([{"chosen": "ab", "rejected": "cde"}])
    batches = data.tokenize(letters, column=("chosen", "rejected"), output_prefix=("chosen_", "rejected_")).batch(
        1, layout="paired"
    )
    (one,) = batches.explain(next(iter(batches)))
    assert (one.number, one.length) == (0, 2)


def test_a_pair_without_a_completion_is_counted_or_refused() -> None:
    rows = [LABELLED[0], LABELLED[1] | {"rejected_labels": [-100] * 4}]
    with bf.from_sequence(rows).batch(2, layout="paired").iter() as taken:
        next(taken)
        assert taken.stats.unlabelled == 1
    with pytest.raises(bf.DataError, match=r"sequence, row 1\) has no label to train on"):
        next(iter(bf.from_sequence(rows).batch(2, layout="paired", unlabelled="raise")))
    with pytest.raises(ValueError, match=r"unlabelled='drop' cannot leave out a sample of layout='paired'"):
        bf.from_sequence(rows).batch(2, layout="paired", unlabelled="drop")


# -- what is refused


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("of_prompt", [False, True])
def test_columns_beside_the_tokens_of_a_side_go_on_after_those_of_the_prompt(streamed: bool, of_prompt: bool) -> None:
    rows = [
        {"prompt_input_ids": [1, 2], "chosen_input_ids": [3, 4], "rejected_input_ids": [5]},
        {"prompt_input_ids": [6], "chosen_input_ids": [7], "rejected_input_ids": [8, 9]},
    ]
    for number, row in enumerate(rows):
        for side in ("prompt_", *SIDE_NAMES) if of_prompt else SIDE_NAMES:
            own = row[f"{side}input_ids"]
            row |= {f"{side}attention_mask": [1] * len(own), f"{side}labels": [10 * token for token in own]}
        row["id"] = number
    data: Any = bf.from_iterable(rows) if streamed else bf.from_sequence(rows)
    (batch,) = data.batch(2, layout="paired")
    prompt = [[10, 20], [60]] if of_prompt else [[-100, -100], [-100]]
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4], [6, 7, 0, 0], [1, 2, 5, 0], [6, 8, 9, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [4, 2, 3, 3]
    assert batch["labels"].tolist() == [
        [*prompt[0], 30, 40],
        [*prompt[1], 70, -100, -100],
        [*prompt[0], 50, -100],
        [*prompt[1], 80, 90, -100],
    ]


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no side": (
        [{"chosen_input_ids": [1]}],
        r"layout='paired' needs a column of tokens for each side, and there is no 'rejected_input_ids' \(columns: "
        r"chosen_input_ids; sequence, row 0\)\. tokenize\(\) and chat\(\) make it with output_prefix=",
    ),
    "no side of a prompt": (
        [{"prompt_input_ids": [1], "chosen_input_ids": [1]}],
        r"layout='paired' needs a column of tokens for each side, and there is no 'rejected_input_ids' \(columns: ",
    ),
    "labels of one side": (
        [{name: LABELLED[0][name] for name in (*SIDES, "chosen_labels")}],
        r"there is a column 'chosen_labels', and no 'rejected_labels'\. With layout='paired' all sides have the same columns",
    ),
    "labels of one side of a prompt": (
        [{"prompt_input_ids": [1], **{name: LABELLED[0][name] for name in (*SIDES, "chosen_labels")}}],
        r"there is a column 'chosen_labels', and no 'rejected_labels'\. With layout='paired' all sides have the same columns",
    ),
    "a null": (
        [{"chosen_input_ids": [1], "rejected_input_ids": None}, LABELLED[0]],
        r"'rejected_input_ids' is null or missing",
    ),
    "a name that is taken": (
        [{"chosen_input_ids": [1], "rejected_input_ids": [2], "input_ids": [3]}],
        r"there is a column 'input_ids', and batches hold something of that name",
    ),
    "labels of another length": (
        [LABELLED[0] | {"rejected_labels": [1]}],
        r"column 'rejected_labels' has 1 values and 'rejected_input_ids' 2 \(sequence, row 0\)",
    ),
    "types of a prompt": (
        [
            {
                "prompt_input_ids": [1],
                **{name: [2] for name in SIDES},
                "chosen_token_type_ids": [0],
                "rejected_token_type_ids": [0],
            }
        ],
        r"there is a column 'chosen_token_type_ids', and no 'prompt_token_type_ids' with its values for the prompt",
    ),
}


@pytest.mark.parametrize("verb", ["batch", "batch_by_tokens"])
@pytest.mark.parametrize("name", REFUSED)
def test_sides_that_do_not_go_together_are_refused(name: str, verb: str) -> None:
    rows, words = REFUSED[name]
    if name.startswith("no side") and verb == "batch_by_tokens":  # which plans by lengths
        words = "there is no column 'rejected_input_ids'"
    with pytest.raises(bf.DataError, match=words):
        list(getattr(bf.from_sequence(rows), verb)(64, layout="paired"))


@pytest.mark.parametrize("kind", ["labels", "attention_mask"])
def test_one_side_is_packed_with_what_lies_beside_its_tokens_or_refused(kind: str) -> None:
    rows = [
        {"chosen_input_ids": [5, 6, 7], f"chosen_{kind}": [0, 1, 1] if kind == "attention_mask" else [-100, -100, 7]}
    ]
    data = bf.from_sequence(rows)
    with pytest.raises(
        bf.DataError, match=rf"there is a column 'chosen_{kind}', and a batch packed by 'chosen_input_ids'"
    ):
        list(data.pack(4, length_column="chosen_input_ids"))
    (batch,) = data.rename({"chosen_input_ids": "input_ids", f"chosen_{kind}": kind}).pack(4)
    assert batch["labels"].tolist() == (
        [[-100, 7, -100, -100]] if kind == "attention_mask" else [[-100, -100, 7, -100]]
    )


def test_settings_that_cannot_be_are_refused() -> None:
    data = bf.from_sequence(LABELLED)
    for names in ("chosen_input_ids", ("input_ids", "labels"), ("prompt_input_ids", *SIDES)):
        with pytest.raises(
            ValueError, match=r"layout='paired' takes 2 sides or more, columns whose names end in '_input_ids'"
        ):
            data.batch(2, layout="paired", length_column=names)
    with pytest.raises(ValueError, match=r"max_tokens must be at least 1 token for each of the 2 sides \(got 1\)"):
        data.batch_by_tokens(1, layout="paired")
    with pytest.raises(
        ValueError, match=r"MultiBudget may have one limit in padded, and none in total \(got nodes, edges\)"
    ):
        data.batch(MultiBudget(total={"nodes": 3, "edges": 4}), layout="paired")
    with pytest.raises(bf.DataError, match=r"max_tokens=3.*\(each of the 2 sides has an equal share of the budget\)"):
        list(data.batch_by_tokens(6, layout="paired"))
    with pytest.raises(ValueError, match="collate_fn makes the batch, so layout='paired' has no effect"):
        data.batch(2, layout="paired", collate_fn=list)
    with pytest.raises(ValueError, match=r"pad_on_device needs brimful's own padded batches"):
        data.batch(2, layout="paired").to_device("cpu", pad_on_device=True)


def test_sides_of_two_vocabularies_are_refused() -> None:
    from tests import tokenizers as make

    data = bf.from_sequence([{"chosen": "a", "rejected": "b"}]).tokenize(
        make.bert(), column="chosen", output_prefix="chosen_"
    )
    with pytest.raises(ValueError, match=r"layout='paired': column 'input_ids' would hold the ids of two vocabularies"):
        data.tokenize(make.llama(), column="rejected", output_prefix="rejected_").batch(2, layout="paired")


def test_numpy_integers_of_a_store_keep_their_prompt(tmp_path: Path) -> None:
    rows = [{name: np.array(row[name], np.uint16) for name in (*SIDES, "prompt_input_ids")} for row in preferences(9)]
    (one,), (other,) = (
        data.batch(9, layout="paired")
        for data in (bf.from_sequence(preferences(9)), bf.from_sequence(rows).to_store(tmp_path / "a"))
    )
    assert all(torch.equal(one[name], other[name]) for name in ("input_ids", "labels", "completion_mask"))
