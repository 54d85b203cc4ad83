"""Groups inside a batch: the samples of the padded batch, in fewer slots, whatever else is in it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.grouping import Collection
from brimful.plan import optimal_partition
from tests.effort import examples

ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=25)


def rows_of(lengths: list[tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "input_ids": [*range(1, n + 1)],
            "labels": [*range(n)],
            "tags": [7] * own,
            "score": float(number),
            "text": f"row {number}",
        }
        for number, (n, own) in enumerate(lengths)
    ]


@given(ROWS, st.integers(1, 4), st.booleans(), st.sampled_from([1, 4]))
@examples(60)
def test_groups_hold_what_the_padded_batch_holds(
    lengths: list[tuple[int, int]], num_groups: int, streamed: bool, multiple: int
) -> None:
    rows = rows_of(lengths)
    data = bf.from_iterable(rows) if streamed else bf.from_sequence(rows)
    settings: dict[str, Any] = {"window": 9, "pad_to_multiple_of": multiple}
    batches = data.batch_by_tokens(64, layout="grouped", num_groups=num_groups, **settings)
    slots = 0
    with batches.iter() as it:
        for batch, padded in zip(it, data.batch_by_tokens(64, **settings), strict=True):
            groups = batch.pop("groups")
            assert batch == {"text": padded["text"]}
            sizes = padded["lengths"].tolist()
            assert groups.sizes["input_ids"].tolist() == sizes
            for row, one in enumerate(groups.ungroup()):
                assert one.keys() == padded.keys() - {"text"}
                for key in ("input_ids", "labels", "attention_mask"):
                    assert torch.equal(one[key], padded[key][row, : sizes[row]])
                assert one["tags"].tolist() == [7] * len(one["tags"])
                assert padded["tags"][row].tolist()[: len(one["tags"])] == one["tags"].tolist()
                assert (one["score"], one["lengths"]) == (padded["score"][row], sizes[row])
            rounded = np.maximum(-(-np.array(sizes) // multiple), 1) * multiple
            best = optimal_partition(rounded, num_groups)
            assert groups.partition == tuple(tuple(group.tolist()) for group in best)
            for members, group in zip(groups.partition, groups.groups, strict=True):
                width = rounded[list(members)].max()
                slots += len(members) * int(width)
                assert group["input_ids"].shape == group["labels"].shape == (len(members), width)
                assert (group["labels"][group["attention_mask"] == 0] == -100).all()
                assert group["attention_mask"].sum(1).tolist() == group["lengths"].tolist()
        assert (it.stats.tokens, it.stats.slots) == (sum(n for n, _ in lengths), slots)
        assert it.stats.samples == len(rows)


def test_pairs_of_lengths_are_grouped_by_their_slots() -> None:
    rows = [{"source": [1] * a, "target": [2] * b} for a, b in ((9, 1), (1, 9), (8, 2), (2, 8))]
    data = bf.from_sequence(rows)
    (batch,) = data.batch(4, length_column=("source", "target"), layout="grouped", num_groups=2)
    groups = batch["groups"]
    assert groups.partition == ((1, 3), (0, 2))
    assert [tuple(group["target"].shape) for group in groups.groups] == [(2, 9), (2, 2)]
    assert groups["lengths"].groups[0].tolist() == [[1, 9], [2, 8]]
    with data.batch(4, length_column=("source", "target"), layout="grouped", num_groups=2).iter() as it:
        next(it)
        assert it.stats.slots == 2 * (2 + 9) + 2 * (9 + 2)


def test_a_module_runs_on_the_groups() -> None:
    data = bf.from_sequence([{"input_ids": [1] * n} for n in (5, 1, 2, 9)])
    (batch,) = data.batch(4, layout="grouped", num_groups=2)
    total = batch["groups"].apply(
        lambda ids, mask: (ids * mask).sum(1), inputs="input_ids", masks="input_ids", outputs=""
    )
    assert [one.item() for one in total.ungroup()] == [5, 1, 2, 9]


def test_data_without_a_length_column_are_one_group() -> None:
    (batch,) = bf.from_sequence([{"x": 1}, {"x": 2}]).batch(2, layout="grouped")
    assert [group["x"].tolist() for group in batch["groups"].groups] == [[1, 2]]


def test_a_rank_without_a_batch_asks_for_no_label() -> None:
    data = bf.from_sequence([{"input_ids": [1] * n, "labels": [1] * n} for n in (3, 1, 2)])
    batches = data.batch(2, window=3, layout="grouped", shuffle_batches=False)
    ranks = [list(batches.shard(rank, 3)) for rank in range(3)]
    (first,), (second,), (filler,) = ranks
    assert [one["weight"] for one in (first, second, filler)] == [1.0, 1.0, 0.0]
    assert {one["num_items_in_batch"].item() for one in (first, second, filler)} == {6}
    assert [group["labels"].unique().tolist() for group in filler["groups"].groups] == [[-100]]
    assert len(filler["groups"]) == 1


def test_few_shapes_where_lengths_are_rounded_to_buckets() -> None:
    data = bf.from_sequence([{"input_ids": [1] * n} for n in range(1, 17)])
    (batch,) = data.batch(16, window=16, buckets=(4, 8, 16), layout="grouped")
    assert batch["groups"].extents["input_ids"].tolist() == [4, 8, 16]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "grouped", "num_groups": 0}, r"num_groups must be at least 1 group \(got 0\)"),
        ({"num_groups": 3}, r"num_groups is for layout='grouped' \(got layout='padded'\)"),
        *(
            (
                {"collate_fn": list, **given},
                f"collate_fn makes the batch, so {words} has no effect. Give one",
            )
            for given, words in (
                ({"layout": "grouped"}, "layout='grouped'"),
                ({"layout": "nested"}, "layout='nested'"),
                ({"num_groups": 2}, "num_groups=2"),
            )
        ),
        (
            {"layout": "grouped", "pad_side": "left"},
            "layout='grouped' pads on the right; leave pad_side out, or choose",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        bf.from_sequence([{"input_ids": [1]}]).batch(1, **options)


def test_groups_have_no_static_shapes() -> None:
    words = "^layout='grouped' pads each group to its own longest, so it has no static shapes; choose layout='padded'$"
    with pytest.raises(ValueError, match=words):
        bf.from_sequence([{"input_ids": [1]}]).batch(bf.StaticShapes([4], 8), layout="grouped")


def test_a_column_does_not_give_way_to_the_groups() -> None:
    data = bf.from_sequence([{"input_ids": [1], "groups": "a"}])
    with pytest.raises(bf.DataError, match=r"^there is a column 'groups', and batches hold something of that name"):
        next(iter(data.batch(1, layout="grouped")))


@pytest.mark.parametrize("name", ["", "input-ids", "a b", "from", "a.b", "\u00b5", "..."])
def test_a_column_that_dims_cannot_name_is_refused(name: str) -> None:
    """A nameless one, pandas' index, once took the place of all the others."""
    words = f"^{re.escape(f'layout={chr(39)}grouped{chr(39)} cannot write column {name!r} in dims, where a name is of letters')}"
    for value in (3, [1, 2]):
        data = bf.from_sequence([{name: value, "length": 4}, {name: value, "length": 5}])
        with pytest.raises(bf.DataError, match=words):
            next(iter(data.batch(2, layout="grouped")))
    (batch,) = bf.from_sequence([{name: "text", "length": 4}]).batch(1, layout="grouped")
    assert (batch[name], batch["groups"].keys()) == (["text"], ["length"])


def test_text_alone_makes_no_groups() -> None:
    words = r"^layout='grouped' needs at least 1 column of numbers or of lists of them \(columns: text\); tokenize the text, or"
    with pytest.raises(bf.DataError, match=words):
        next(iter(bf.from_sequence([{"text": "a"}]).batch(1, layout="grouped")))


def test_lists_of_text_stay_beside_the_groups() -> None:
    data = bf.from_sequence([{"input_ids": [1] * n, "words": [["a", "b"]] * n} for n in (3, 1)])
    (batch,) = data.batch(2, layout="grouped")
    assert batch["words"] == [[["a", "b"]] * n for n in (3, 1)]
    assert batch["groups"].keys() == ["input_ids", "attention_mask", "lengths"]


def test_the_loss_of_groups_is_that_of_the_padded_batch() -> None:
    data = bf.from_sequence([{"input_ids": [*range(n)], "labels": [*range(n)]} for n in (5, 1, 9, 2)])
    (batch,), (padded,) = data.batch(4, layout="grouped", num_groups=3), data.batch(4)
    torch.manual_seed(0)
    logits = torch.nn.Embedding(9, 9).double()

    def loss_sum(group: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = logits(group["input_ids"])
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), group["labels"].flatten(), reduction="sum")

    total = torch.stack([loss_sum(group) for group in batch["groups"].groups]).sum()
    labels = torch.cat(batch["groups"]["labels"].ungroup())
    ours, theirs = bf.token_mean(total, {"labels": labels} | batch), bf.token_mean(loss_sum(padded), padded)
    (of_ours,), (of_theirs,) = (torch.autograd.grad(loss, logits.weight) for loss in (ours, theirs))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(of_ours, of_theirs)


def test_what_is_handed_out_is_a_collection() -> None:
    (batch,) = bf.from_sequence([{"input_ids": [1], "image": np.zeros((2, 3), np.float32)}]).batch(1, layout="grouped")
    assert isinstance(batch["groups"], Collection)
    assert repr(batch["groups"]) == (
        "Collection(1 samples in 1 groups; input_ids: input_ids, image: 2 3, attention_mask: input_ids, lengths: number)"
    )


def test_groups_go_to_a_device_ahead_of_use() -> None:
    data = bf.from_sequence([{"input_ids": [1] * n, "text": "a"} for n in (3, 1, 5, 2)])
    batches = data.batch(4, layout="grouped", num_groups=2)
    for batch in (next(iter(batches.to_device("meta"))), next(iter(batches.to_device("meta", prefetch=0)))):
        groups = batch["groups"]
        assert groups.partition == ((1, 3), (0, 2))
        assert {group["input_ids"].device.type for group in groups.groups} == {"meta"}
        assert groups.sizes["input_ids"].tolist() == [3, 1, 5, 2]
    (sent,) = batches.to_device("cpu", static_buffers=True)
    assert [one["input_ids"].tolist() for one in sent["groups"].ungroup()] == [[1] * n for n in (3, 1, 5, 2)]
    with pytest.raises(ValueError, match=r"^pad_on_device needs brimful's own padded batches"):
        batches.to_device("cpu", pad_on_device=True)
    with pytest.raises(ValueError, match=r"^warm_up cannot know the shapes of layout='grouped' before they come"):
        bf.warm_up(lambda batch: None, batches)
