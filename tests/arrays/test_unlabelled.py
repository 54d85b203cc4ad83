"""Samples without a label to train on: counted and said, left out, refused; and cut so that their answers stay."""

from __future__ import annotations

import json
import logging

import pytest
import torch

import brimful as bf


def sample(prompt: int, answer: int, token: int = 7) -> dict[str, list[int]]:
    return {"input_ids": [token] * (prompt + answer), "labels": [-100] * prompt + [token] * answer}


MIXED = [sample(2, 2, 1), sample(5, 0, 2), sample(1, 3, 3), sample(4, 0, 4), sample(3, 2, 5), sample(2, 1, 6)]
"""Two of six have no label."""


def run(batches, **how):
    with batches.iter(**how) as it:
        return list(it), it.stats


def ways(rows):
    """The same batches in every layout, by name."""
    data = bf.from_sequence(rows)
    return {
        "padded": data.batch(3),
        "left": data.batch(3, pad_side="left"),
        "static": data.batch(bf.StaticShapes([8], 32)),
        "nested": data.batch(3, layout="nested"),
        "grouped": data.batch(3, layout="grouped"),
        "by tokens": data.batch_by_tokens(12),
        "by key": data.batch_by(2, key=lambda one: len(one["input_ids"])),
        "packed": data.pack(8, rows=2),
        "micro batches": data.batch(4, micro_batches=2),
        "collate_fn": data.batch(3, collate_fn=lambda found: {"rows": found}),
        "workers": data.batch(3, collate_fn=lambda found: {"rows": found}, max_workers=2),
    }


@pytest.mark.parametrize("way", ways(MIXED))
def test_samples_without_a_label_are_counted_in_every_layout(way, caplog):
    with caplog.at_level(logging.WARNING, "brimful"):
        _, stats = run(ways(MIXED)[way])
    assert stats.unlabelled == stats["unlabelled"] == 2
    (said,) = [one.getMessage() for one in caplog.records if "no label" in one.getMessage()]
    assert "sequence, row 1" in said or "sequence, row 3" in said
    assert "unlabelled='drop'" in said
    assert "truncate_side" not in said


@pytest.mark.parametrize("way", ways(MIXED))
def test_nothing_is_said_where_each_sample_has_a_label(way, caplog):
    _, stats = run(ways([one for one in MIXED if one["labels"][-1] != -100])[way])
    assert stats.unlabelled == 0
    assert "no label" not in caplog.text


def test_samples_that_lose_their_labels_are_said_with_both_numbers_and_the_remedy(caplog):
    rows = [sample(2, 2), sample(10, 3)]
    _, stats = run(bf.from_sequence(rows).batch_by_tokens(8, overlong="truncate"))
    assert stats.unlabelled == 1
    assert "a sample of 13 tokens (sequence, row 1)" in caplog.text
    assert "The batch has 8 of its tokens" in caplog.text
    assert "truncate_side='left'" in caplog.text


def test_an_answer_in_the_midst_is_a_label():
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, -100]}]
    assert run(bf.from_sequence(rows).batch(1))[1].unlabelled == 0


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        ([{"input_ids": [1, 2], "labels": [-100.0, -100.0]}], {}),
        ([{"input_ids": [1, 2], "labels": -100}], {}),
        ([{"input_ids": [1, 2]}], {}),
        ([sample(2, 0)], {"dtypes": {"labels": "float32"}}),
    ],
    ids=["floats", "one a sample", "none", "made floats"],
)
def test_only_integer_labels_of_tokens_can_be_missing(rows, settings):
    assert run(bf.from_sequence(rows).batch(1, unlabelled="raise", **settings))[1].unlabelled == 0


def test_labels_that_packing_leaves_out_are_none():
    first = {"input_ids": [1, 2, 3], "labels": [1, -100, -100]}
    last = {"input_ids": [1, 2, 3], "shift_labels": [-100, -100, 9]}
    for row in (first, last):
        data = bf.from_sequence([row])
        assert run(data.batch(1))[1].unlabelled == 0
        assert run(data.pack(4))[1].unlabelled == 1


def test_a_shifted_label_whose_token_was_cut_off_is_none():
    rows = [{"input_ids": [1, 2, 3, 4], "shift_labels": [-100, -100, 4, 5]}]
    data = bf.from_sequence(rows)
    assert run(data.batch_by_tokens(3, overlong="truncate"))[1].unlabelled == 1
    assert run(data.batch_by_tokens(4, overlong="truncate"))[1].unlabelled == 0


def test_each_piece_of_a_split_sample_counts():
    _, stats = run(bf.from_sequence([sample(8, 2)]).pack(5, overlong="split"))
    assert stats.unlabelled == 1


def test_fillers_and_copies_do_not_count():
    data = bf.from_sequence([sample(2, 1), sample(2, 1), sample(3, 0)])
    counts = [run(data.batch(1).shard(rank, 2))[1].unlabelled for rank in range(2)]
    assert counts == [1, 0]  # the last step of rank 1 is a filler
    assert run(data.batch(bf.StaticShapes([4], 64)))[1].unlabelled == 1


def test_a_resume_counts_the_rest():
    batches = bf.from_sequence(MIXED).batch(1).prefetch(3)
    for taken in range(len(MIXED)):
        with batches.iter() as it:
            for _ in range(taken):
                next(it)
            state, before = json.loads(json.dumps(it.state_dict())), it.stats.unlabelled
        assert before + run(batches, state_dict=state)[1].unlabelled == 2


def test_raise_says_place_numbers_and_remedy():
    batches = bf.from_sequence([sample(2, 1), sample(9, 3)]).batch_by_tokens(6, overlong="truncate", unlabelled="raise")
    with pytest.raises(bf.DataError, match=r"12 tokens \(sequence, row 1\).* has 6 of its tokens.*truncate_side"):
        list(batches)


@pytest.mark.parametrize("setting", [{"unlabelled": "skip"}, {"truncate_side": "end", "overlong": "truncate"}])
def test_other_words_are_refused(setting):
    with pytest.raises(ValueError, match="must be one of"):
        bf.from_sequence(MIXED).batch_by_tokens(8, **setting)


def test_truncate_side_without_truncate_is_refused():
    for batches in (lambda data: data.batch(2, truncate_side="left"), lambda data: data.pack(8, truncate_side="left")):
        with pytest.raises(ValueError, match="overlong='truncate'"):
            batches(bf.from_sequence(MIXED))


# -- left out --------------------------------------------------------------------------------------------------------------


def test_drop_leaves_padding_in_place_of_a_sample_and_all_else_as_it_is():
    data = bf.from_sequence(MIXED)
    for settings in ({}, {"pad_side": "left"}, {"dtypes": {"attention_mask": "bool"}}):
        kept, dropped = (
            run(data.batch(3, unlabelled=word, pad_values={"input_ids": 99}, **settings)) for word in ("keep", "drop")
        )
        assert len(data.batch(3, unlabelled="drop")) == len(kept[0]) == len(dropped[0])
        for before, after in zip(kept[0], dropped[0]):
            gone = (before["labels"] == -100).all(1)
            assert before.keys() == after.keys()
            for name in before:
                assert torch.equal(before[name][~gone], after[name][~gone]), name
            assert (after["input_ids"][gone] == 99).all()
            assert (after["labels"][gone] == -100).all()
            assert not after["attention_mask"][gone].any()
            assert not after["lengths"][gone].any()
        stats = dropped[1]
        assert (stats.samples, stats.tokens, stats.unlabelled) == (4, 16, 2)
        assert stats.slots == kept[1].slots


def test_drop_makes_padding_of_packed_pieces():
    data = bf.from_sequence(MIXED)
    kept, dropped = (run(data.pack(8, rows=2, unlabelled=word)) for word in ("keep", "drop"))
    assert dropped[1].samples == 4
    assert dropped[1].tokens == 16
    for before, after in zip(kept[0], dropped[0]):
        assert before.keys() == after.keys()
        assert before["labels"][before["labels"] != -100].tolist() == after["labels"][after["labels"] != -100].tolist()
        ids, shown = after["input_ids"], after["segment_ids"] > 0
        assert not ids[~shown].any()
        assert (after["labels"][~shown] == -100).all()
        assert not {2, 4} & {*ids.unique().tolist()}
        assert after["cu_seqlens"][-1] == ids.numel()
        assert (after["cu_seqlens"].diff() > 0).all()
        assert after["sample_numbers"].tolist() == before["sample_numbers"].tolist()


@pytest.mark.parametrize("way", ["nested", "grouped"])
def test_drop_in_other_layouts(way):
    batch = next(iter(bf.from_sequence(MIXED).batch(6, layout=way, unlabelled="drop")))
    rows = batch["groups"].ungroup() if way == "grouped" else batch["input_ids"].unbind()
    rows = [row["input_ids"] if way == "grouped" else row for row in rows]
    assert [*map(len, rows)] == [4, 0, 4, 0, 5, 3]


def test_drop_on_the_device_is_drop_before_it():
    data = bf.from_sequence(MIXED).batch(3, unlabelled="drop")
    for one, other in zip(data, data.to_device("cpu", pad_on_device=True)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_drop_gives_a_static_row_no_weight():
    (batch,) = bf.from_sequence(MIXED).batch(bf.StaticShapes([8], 64), unlabelled="drop")
    assert batch["sample_weights"].tolist() == (batch["labels"] != -100).any(1).float().tolist()
    assert batch["sample_weights"].sum() == 4


def test_a_collate_fn_does_not_get_what_is_dropped():
    batches = bf.from_sequence(MIXED).batch(3, collate_fn=lambda found: {"rows": found}, unlabelled="drop")
    found, stats = run(batches)
    assert [[one["input_ids"][0] for one in batch["rows"]] for batch in found] == [[1, 3], [5, 6]]
    assert (stats.samples, stats.unlabelled) == (4, 2)


@pytest.mark.parametrize("way", ["batch", "pack", "collate_fn"])
def test_a_batch_without_a_sample_left_is_a_filler(way):
    data = bf.from_sequence([sample(3, 0), sample(2, 1), sample(4, 0), sample(1, 2)])

    def collate(found):
        return {
            name: torch.nn.utils.rnn.pad_sequence([torch.tensor(one[name]) for one in found], True) for name in found[0]
        }

    def made(**how):
        how |= {"collate_fn": collate} if way == "collate_fn" else {}
        return data.pack(4, **how) if way == "pack" else data.batch(1, **how)

    for num_ranks, settings in ((1, {}), (2, {}), (1, {"micro_batches": None if way == "pack" else 1})):
        for rank in range(num_ranks):
            for before, after in zip(
                made(**settings).shard(rank, num_ranks), made(unlabelled="drop", **settings).shard(rank, num_ranks)
            ):
                assert before.keys() == after.keys()
                empty = bool((before["labels"] == -100).all())
                assert after["is_filler"] is empty
                assert after["weight"] == (0.0 if empty else 1.0)
                assert after["num_items_in_batch"] == before["num_items_in_batch"]
                loss = torch.tensor(float("nan") if empty else 3.0, requires_grad=True)
                assert bf.token_mean(loss.sum(), after).isfinite()


@pytest.mark.parametrize("word", ["keep", "drop"])
def test_rows_steps_and_ranks_without_a_label_have_a_loss_of_zero(word):
    data = bf.from_sequence([sample(3, 0)] * 4)
    made = (
        *(data.batch(2, unlabelled=word), data.pack(8, unlabelled=word), data.pack(8, rows=2, unlabelled=word)),
        *(data.batch(2, micro_batches=2, unlabelled=word), data.batch(2, unlabelled=word).shard(1, 2)),
    )
    for batches in made:
        for batch in batches:
            logits = torch.randn(*batch["labels"].shape, 9, requires_grad=True)
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
            loss = bf.token_mean(losses, batch)
            loss.backward()
            assert loss == 0
            assert not logits.grad.any()


# -- cut -------------------------------------------------------------------------------------------------------------------


def cut(row, most, side):
    """A row as it is cut, by hand."""
    size = len(row["input_ids"])
    if size <= most:
        return row
    head = {"left": 0, "middle": most - most // 2}[side]
    places = [*range(head), *range(size - (most - head), size)]
    found = {name: [values[place] for place in places] for name, values in row.items()}
    if "labels" in row:
        found["labels"][head] = -100
    if "shift_labels" in row and head:
        found["shift_labels"][head - 1] = -100
    return found


def long_rows(name):
    rows = [{"input_ids": [*range(10 * n, 10 * n + size)]} for n, size in enumerate([3, 9, 8, 20, 1, 0, 13])]
    for row in rows:
        ids = row["input_ids"]
        row[name] = ids if name == "labels" else [*ids[1:], *([-100] if ids else [])]
        row["position_ids"] = [*range(len(ids))]
    return rows


def sources(rows, folder):
    """The same rows from memory, a file, a store and a data set."""
    folder.mkdir()
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "sequence": bf.from_sequence(rows),
        "files": bf.from_files(path),
        "store": bf.from_sequence(rows).to_store(folder / "store"),
        "dataset": bf.from_dataset(rows, lengths=[len(row["input_ids"]) for row in rows]),
    }


def plain(batch):
    """A batch as lists. What a stream cannot know, the labels of its step, is left out."""
    listed = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and not name.startswith("num_items"):
            listed[name] = [one.tolist() for one in value.unbind()] if value.dim() else value.item()
        elif name == "rows":
            listed[name] = [{key: list(one) for key, one in row.items()} for row in value]
        elif not isinstance(value, torch.Tensor):
            listed[name] = value
    return listed


CUT_WAYS = {
    "padded": lambda data, most, **how: data.batch_by_tokens(most, **how),
    "left": lambda data, most, **how: data.batch_by_tokens(most, pad_side="left", **how),
    "nested": lambda data, most, **how: data.batch_by_tokens(most, layout="nested", **how),
    "own policy": lambda data, most, **how: data.batch(bf.TokenBudget(most), pad_to_multiple_of=most, **how),
    "collate_fn": lambda data, most, **how: data.batch_by_tokens(most, collate_fn=lambda rows: {"rows": rows}, **how),
    "micro batches": lambda data, most, **how: data.batch_by_tokens(2 * most, micro_batches=2, **how),
    "on the device": lambda data, most, **how: data.batch_by_tokens(most, **how).to_device("cpu", pad_on_device=True),
    "packed": lambda data, most, **how: data.drop("position_ids").pack(most, rows=2, **how),
}


@pytest.mark.parametrize("side", ["left", "middle"])
@pytest.mark.parametrize("name", ["labels", "shift_labels"])
@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_cut_sample_is_batched_as_if_it_had_been_written_so(way, name, side, tmp_path):
    rows = long_rows(name)
    for most in (7, 8):
        written = bf.from_sequence([cut(row, most, side) for row in rows])
        wanted = [plain(batch) for batch in CUT_WAYS[way](written, most, window=7)]
        for source, data in sources(rows, tmp_path / str(most)).items():
            batches = CUT_WAYS[way](data, most, window=7, overlong="truncate", truncate_side=side)
            assert [plain(batch) for batch in batches] == wanted, source


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("side", ["right", "left", "middle"])
def test_packing_makes_no_label_of_a_token_before_which_some_were_left_out(side, most, tmp_path):
    rows = [{"input_ids": row["input_ids"]} for row in long_rows("labels")]
    for source, data in sources(rows, tmp_path / "rows").items():
        how = {"rows": 2, "window": 7, "overlong": "truncate", "truncate_side": side, "micro_batches": 2}
        made = [*data.pack(most, **how)]
        given = [*data.causal_labels().cache().pack(most, **how)]
        assert [plain(batch) for batch in made] == [plain(batch) for batch in given], source
        for one, other in zip(made, given, strict=True):
            assert int(one["num_items_in_batch"]) == int(other["num_items_in_batch"]), source
        assert sum(int((batch["labels"] != -100).sum()) for batch in made) == sum(
            int(batch["num_items_in_batch"]) for batch in made if batch["ends_step"]
        )


def test_the_end_is_left_out_as_before():
    rows = long_rows("labels")
    data = bf.from_sequence(rows)
    one, other = (
        run(data.batch_by_tokens(8, overlong="truncate", **how))[0] for how in ({}, {"truncate_side": "right"})
    )
    assert [plain(batch) for batch in one] == [plain(batch) for batch in other]


def test_answers_at_the_end_stay():
    rows = [sample(100, 5) for _ in range(8)]
    for side, unlabelled in (("right", 8), ("left", 0), ("middle", 0)):
        batches = bf.from_sequence(rows).batch_by_tokens(64, overlong="truncate", truncate_side=side)
        found, stats = run(batches)
        assert (stats.unlabelled, stats.truncated, stats.dropped_tokens, stats.tokens) == (unlabelled, 8, 328, 512)
        assert sum(int((batch["labels"] != -100).sum()) for batch in found) == (0 if side == "right" else 40)


def test_the_number_of_labels_is_that_of_the_labels(tmp_path):
    for data in (
        bf.from_sequence(long_rows("labels")),
        bf.from_sequence(long_rows("labels")).to_store(tmp_path / "store"),
    ):
        for side in ("right", "left", "middle"):
            for way in ("pack", "batch_by_tokens"):
                how = {"overlong": "truncate", "truncate_side": side}
                for batch in getattr(data.drop("position_ids"), way)(7, **how).shard(0, 1):
                    assert batch["num_items_in_batch"] == (batch["labels"] != -100).sum()


def test_the_message_has_the_whole_length_of_a_sample_that_is_cut_elsewhere(caplog):
    run(bf.from_sequence([sample(20, 0)]).batch_by_tokens(8, overlong="truncate", truncate_side="left"))
    assert "a sample of 20 tokens" in caplog.text
    assert "The batch has 8 of its tokens" in caplog.text


def test_token_columns_of_two_lengths_are_refused_where_both_are_cut():
    rows = [{"input_ids": [1] * 9, "labels": [1] * 10}]
    for side in ("right", "left", "middle"):
        with pytest.raises(bf.DataError, match="sequence, row 0"):
            list(bf.from_sequence(rows).batch_by_tokens(4, overlong="truncate", truncate_side=side))


def test_a_state_knows_the_side():
    rows = bf.from_sequence(long_rows("labels"))
    made = {side: rows.batch_by_tokens(8, overlong="truncate", truncate_side=side) for side in ("right", "left")}
    for side, other in (("right", "left"), ("left", "right")):
        with pytest.raises(bf.StateError, match="truncate_side"):
            made[other].iter(made[side].iter().state_dict())
