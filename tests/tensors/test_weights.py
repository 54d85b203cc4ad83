"""Rows that count for nothing, fillers and copies, whatever the type of the labels: in losses, counts and gradients."""

from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import torch
from torch.nn import functional as F

import brimful as bf
from brimful.core.own_keys import LOSS_WEIGHTS, NUM_ITEMS, NUM_SAMPLES, NUM_SIDES, OWN_KEYS, SUM_OF_WEIGHTS
from brimful.tensors.loss import rows_that_count
from tests.shards import write

COUNT: Final = 13
WORDS: Final = 32
NAN: Final = float("nan")


def row(number: int, labels: Any) -> dict[str, Any]:
    return {
        "input_ids": [1 + (number * 7 + place) % (WORDS - 1) for place in range(1 + number * 5 % 6)],
        "labels": labels,
    }


LABELS: Final[dict[str, Callable[[int], Any]]] = {
    "class": lambda number: number % 3 if number % 4 else -100,
    "number": lambda number: number / 4 - 1,
    "truth": lambda number: number % 3 == 0,
    "multi-hot": lambda number: [number % 2, 1, int(number % 3 == 0)],
    "multi-hot truths": lambda number: [number % 2 == 1, True, number % 3 == 0],
    "numbers": lambda number: [number / 4, 0.5, -100.0],
    "tokens": lambda number: [
        -100 if place % 3 == number % 2 else (number + place) % 3 for place in range(1 + number * 5 % 6)
    ],
}


def rows(kind: str) -> list[dict[str, Any]]:
    return [row(number, LABELS[kind](number)) | {"id": number} for number in range(COUNT)]


class Net(torch.nn.Module):
    """Three numbers a token, and their mean over the tokens of a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(WORDS, 3, dtype=torch.float64)

    def forward(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.words(batch["input_ids"])
        mask = batch["attention_mask"][..., None]
        return tokens, (tokens * mask).sum(1) / mask.sum(1)


def losses(net: Net, batch: dict[str, Any], kind: str) -> torch.Tensor:
    """A loss a row, or a token: of fillers and copies too, as their labels have it."""
    tokens, means = net(batch)
    labels = batch["labels"]
    if kind == "tokens":
        return F.cross_entropy(tokens.mT, labels, reduction="none")
    if kind == "class":
        return F.cross_entropy(means, labels, reduction="none")
    if kind == "number":
        return (means[:, 0] - labels) ** 2
    if kind == "truth":
        return F.binary_cross_entropy_with_logits(means[:, 0], labels.double(), reduction="none")
    if kind == "numbers":
        return ((means - labels) ** 2).sum(1)
    return F.binary_cross_entropy_with_logits(means, labels.double().clamp(min=0), reduction="none").sum(1)


def gradient(net: Net) -> torch.Tensor:
    found, net.words.weight.grad = net.words.weight.grad, None
    assert found is not None
    return found


def of_one_batch(kind: str, ids: list[int]) -> torch.Tensor:
    """The gradient of the mean over all labels of some rows, by plain division."""
    net = Net()
    chosen = [one for one in rows(kind) if one["id"] in ids]
    (batch,) = batches_of(chosen, kind).batch(COUNT, **settings(kind))
    asked = sum(sum(label != -100 for label in one["labels"]) for one in chosen) if kind == "tokens" else len(chosen)
    asked -= sum(one["labels"] == -100 for one in chosen if kind == "class")
    (losses(net, batch, kind).sum() / max(asked, 1)).backward()
    return gradient(net)


def batches_of(data: list[dict[str, Any]], kind: str) -> bf.Dataset:
    return bf.from_sequence(data)


def settings(kind: str) -> dict[str, Any]:
    return {} if kind == "tokens" else {"token_columns": []}


MAKES: Final[dict[str, Callable[..., bf.Batches]]] = {
    "padded": lambda data, k, **how: data.batch(2 * k, micro_batches=k, shuffle_batches=False, **how),
    "static": lambda data, k, **how: data.batch(
        bf.StaticShapes([3, 6], 12 * k), micro_batches=k, shuffle_batches=False, window=COUNT, **how
    ),
}


def check_steps(kind: str, batches: bf.Batches, world_size: int, k: int, counts: bool = True) -> set[str]:
    """The gradient of each step, averaged over the ranks, is that of one big batch. Gives what batches there were."""
    net, seen = Net(), set()
    ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
    for first in range(0, len(ranks[0]), k):
        step = [batch for rank in ranks for batch in rank[first : first + k]]
        ids = [one for batch in step for one in real_ids(batch)]
        for batch in step:
            rows_count = rows_that_count(batch)
            seen |= (
                {"filler"} if rows_count is False else set() if rows_count is True or rows_count.all() else {"copies"}
            )
            mean = bf.token_mean(losses(net, batch, kind), batch if counts else batch | {NUM_ITEMS[0]: len(ids)})
            (mean / world_size).backward()
        torch.testing.assert_close(gradient(net), of_one_batch(kind, ids), rtol=1e-10, atol=1e-12)
    return seen


def real_ids(batch: dict[str, Any]) -> list[int]:
    rows_count = rows_that_count(batch)
    return [] if rows_count is False else batch["id"][rows_count].flatten().tolist()


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("kind", LABELS)
def test_steps_of_ranks_have_the_gradient_of_one_big_batch(kind: str, make: str, world_size: int, k: int) -> None:
    seen = check_steps(kind, MAKES[make](bf.from_sequence(rows(kind)), k, **settings(kind)), world_size, k)
    assert "copies" in seen or make == "padded"
    assert ("filler" in seen) == (world_size > 1) or make == "static"


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_labels_that_a_collate_fn_makes_have_the_gradient_of_one_big_batch(world_size: int, k: int) -> None:
    """Whose number the loop gives, as nobody else knows it."""

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        made = next(iter(bf.from_sequence(samples).batch(len(samples))))
        return {name: made[name] for name in ("input_ids", "attention_mask", "id")} | {"labels": made["id"] / 4 - 1}

    data = bf.from_sequence([{name: one[name] for name in ("input_ids", "id")} for one in rows("number")])
    batches = data.batch(2 * k, micro_batches=k, shuffle_batches=False, collate_fn=collate)
    assert not set(next(iter(batches.shard(0, world_size)))) & set(NUM_ITEMS)
    seen = check_steps("number", batches, world_size, k, counts=False)
    assert ("filler" in seen) == (world_size > 1)


@pytest.mark.parametrize("kind", LABELS)
def test_batches_that_are_not_shared_out_count_the_same(kind: str) -> None:
    data = bf.from_sequence(rows(kind)).batch(COUNT, **settings(kind))
    (batch,) = data
    net = Net()
    bf.token_mean(losses(net, batch, kind).sum(), batch).backward()
    torch.testing.assert_close(gradient(net), of_one_batch(kind, list(range(COUNT))), rtol=1e-10, atol=1e-12)
    (shared,) = data.shard(0, 1)
    assert bf.token_mean(torch.tensor(6.0), batch) == bf.token_mean(torch.tensor(6.0), shared)
    assert NUM_ITEMS[0] in shared


@pytest.mark.parametrize("layout", ["padded", "nested", "grouped", "packed"])
@pytest.mark.parametrize("kind", ["multi-hot", "multi-hot truths", "numbers"])
def test_lists_that_are_no_tokens_count_as_one_a_sample_in_every_layout(kind: str, layout: str) -> None:
    data = bf.from_sequence(rows(kind))
    if layout == "packed":
        batches = data.pack(8, rows=2, window=COUNT, token_columns=[])
    else:
        batches = data.batch(4, layout=layout, token_columns=[])  # type: ignore[arg-type]
    for batch in batches:
        count = len(batch["groups"]["id"].ungroup() if layout == "grouped" else batch["id"])
        labels = torch.cat(batch["groups"]["labels"].ungroup()) if layout == "grouped" else batch["labels"]
        assert bf.token_mean(torch.tensor(float(count)), {"labels": labels} | batch) == 1.0


def test_labels_without_a_length_column_count_as_one_a_sample() -> None:
    data = bf.from_sequence([{"x": float(number), "labels": [0, 1, 1]} for number in range(5)])
    for batches, count in ((data.batch(5), 5), (data.batch(4, micro_batches=2), 4), (data.batch(2).shard(0, 2), 4)):
        assert float(bf.token_mean(torch.tensor(float(count)), next(iter(batches)))) in (1.0, 2.0 * (count == 4))


# -- a filler


def filler(**more: Any) -> dict[str, Any]:
    rows = [{"input_ids": [1, 2], "labels": 0.5}] * 5
    batch = list(bf.from_sequence(rows).batch(bf.StaticShapes([2], 4), window=5).shard(1, 2))[-1]
    assert batch["is_filler"]
    return batch | more


SPOILT: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "times NaN": lambda x: (x * NAN).sum(),
    "by no label": lambda x: (x * 0).sum() / 0,
    "infinite": lambda x: (x / 0).sum(),
    "of a root": lambda x: (x - x).sqrt().sum() * NAN,
    "by row": lambda x: x * NAN,
    "a mean of none": lambda x: F.cross_entropy(x[None], torch.tensor([-100]), reduction="none") / torch.tensor(0.0),
    "a sum": lambda x: x.sum(),
    "rows": lambda x: x,
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_filler_gives_no_loss_and_no_gradient_whatever_it_gets(name: str) -> None:
    loss = SPOILT[name]
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    bias = torch.zeros(2, requires_grad=True)
    mean = bf.token_mean(loss(weight * 2 + bias), filler())
    assert mean.shape == ()
    assert mean == 0
    mean.backward()
    for one in (weight, bias):
        assert one.grad is not None, "DDP and FSDP wait for all of the graph"
        assert one.grad.tolist() == [0, 0]
    torch.testing.assert_close(bf.token_mean(loss(torch.ones(2)), filler()), torch.tensor(0.0))


def test_a_nan_of_a_filler_stays_out_of_what_it_is_added_to() -> None:
    weight = torch.ones(2, requires_grad=True)
    real = bf.token_mean((weight * 3).sum(), {"labels": torch.tensor([1, 2])})
    (real + bf.token_mean((weight * 2 * NAN).sum(), filler())).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("kind", ["class", "number"])
@pytest.mark.parametrize("on_device", [False, True])
def test_all_rows_of_a_filler_weigh_nothing(kind: str, on_device: bool) -> None:
    batches = MAKES["static"](bf.from_sequence(rows(kind)), 1, token_columns=[]).shard(1, 2)
    made = list(batches.to_device("cpu") if on_device else batches)
    fillers = [batch for batch in made if batch["is_filler"]]
    assert [batch["sample_weights"].tolist() for batch in fillers] == [[0.0] * len(fillers[0]["labels"])]
    assert made[0]["sample_weights"].any()


def test_a_filler_of_a_collate_fn_weighs_nothing_either() -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {"labels": torch.ones(len(samples)), "sample_weights": torch.ones(len(samples))}

    made = list(bf.from_sequence(rows("number")[:3]).batch(1, collate_fn=collate).shard(1, 2))
    assert [batch["sample_weights"].tolist() for batch in made] == [[1.0], [0.0]]


def test_a_filler_may_have_labels_that_hold_no_minus_100() -> None:
    table = pa.table({"input_ids": [[1]] * 3, "labels": pa.array([1, 2, 3], pa.uint8())})
    made = list(bf.from_sequence(table).batch(1, dtypes={"labels": "uint8"}).shard(1, 2))
    assert [int(batch["labels"]) for batch in made] == [2, 3]
    assert [float(bf.token_mean(torch.tensor(1.0), batch)) for batch in made] == [1.0, 0.0]


# -- copies


def copies() -> dict[str, Any]:
    data = bf.from_sequence([{"input_ids": [1, 2], "labels": number + 0.5} for number in range(3)])
    return next(iter(data.batch(bf.StaticShapes([4], 16))))


def test_losses_by_row_and_by_token_are_weighed() -> None:
    batch = copies()
    by_row, by_token = (
        torch.tensor([1.0, 2.0, 3.0, 100.0]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [NAN, 100.0]]),
    )
    assert bf.token_mean(by_row, batch) == 2.0
    assert bf.token_mean(by_token, batch) == 7.0
    assert bf.token_mean((by_row * batch["sample_weights"]).sum(), batch) == 2.0
    with pytest.raises(
        ValueError, match=r"^the losses have 3 rows and the batch has 4 sample_weights\. Give token_mean a loss"
    ):
        bf.token_mean(by_row[:3], batch)


def test_the_mean_loss_of_each_row_is_no_mean_of_a_batch() -> None:
    logits = torch.zeros(4, 2, requires_grad=True)
    each = F.binary_cross_entropy_with_logits(logits, torch.ones(4, 2), reduction="none").mean(1)
    assert float(bf.token_mean(each, copies()).detach()) == pytest.approx(float(each[0].detach()))
    with pytest.raises(ValueError, match="loss_sum must be a sum, and this tensor is a mean"):
        bf.token_mean(each.mean(), copies())


@pytest.mark.parametrize("kind", LABELS)
def test_copies_count_for_nothing(kind: str) -> None:
    data = bf.from_sequence(rows(kind)[:3])
    (batch,) = data.batch(bf.StaticShapes([6], 24), window=3, **settings(kind))
    asked = (
        sum(label != -100 for one in rows(kind)[:3] for label in one["labels"])
        if kind == "tokens"
        else 3 - (kind == "class")
    )
    assert float(bf.token_mean(batch["sample_weights"].sum(), batch)) == pytest.approx(3 / asked)


def test_a_compiled_step_of_copies_has_one_graph() -> None:
    def step(each: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return bf.token_mean(each * 2, batch)

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    data = MAKES["static"](bf.from_sequence(rows("number")), 1)
    for batch in (copies(), *data.shard(0, 2), *data.shard(1, 2)):
        each = torch.ones(len(batch["labels"]), requires_grad=True)
        torch.testing.assert_close(compiled(each, batch), step(each, batch))


def test_async_loader_counts_no_fillers_and_no_copies() -> None:
    data = MAKES["static"](bf.from_sequence(rows("number")), 1)
    for rank in range(2):
        batches = data.shard(rank, 2)
        with batches.iter() as it:
            made = list(it)
        loader = bf.AsyncLoader(made, "cpu", buckets=[8], pad_value_dict={"input_ids": 0, "attention_mask": 0})
        assert len(list(loader)) == len(made)
        assert (loader.stats.samples, loader.stats.tokens) == (it.stats.samples, it.stats.tokens)  # type: ignore[union-attr]


def test_a_weight_goes_wherever_a_batch_goes() -> None:
    """With the number of ranks, by which `token_mean` divides where no process group says it."""
    (batch,) = bf.from_sequence([{"input_ids": [1], "labels": 0.5}] * 4).batch(2).shard(1, 2)
    sent = next(iter(bf.from_sequence([{"input_ids": [1], "labels": 0.5}] * 4).batch(2).shard(1, 2).to_device("cpu")))
    for one in (batch, sent, dict(batch), batch | {"x": 1}, copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert float(bf.token_mean(torch.tensor(4.0), one)) == 2.0
        assert one["weight"] == 1.0
    assert json.dumps(batch["weight"]) == "1.0"


# -- keys of brimful's own


def test_all_keys_that_are_no_columns_are_listed() -> None:
    batches = MAKES["static"](bf.from_sequence(rows("tokens")).map(dict), 2).shard(0, 1)
    columns = {"input_ids", "attention_mask", "labels", "id"}
    of_weights = {*SUM_OF_WEIGHTS, LOSS_WEIGHTS}
    assert set(next(iter(batches))) - columns == set(OWN_KEYS) - {NUM_ITEMS[1], NUM_SAMPLES[1], NUM_SIDES, *of_weights}


@pytest.mark.parametrize("name", NUM_ITEMS)
def test_group_apply_passes_no_key_of_brimfuls(name: str) -> None:
    batch = next(iter(MAKES["static"](bf.from_sequence(rows("tokens")), 2).shard(0, 2)))
    del batch["id"]
    found = bf.grouping.group_apply(
        lambda input_ids, attention_mask: input_ids[..., None] * 1.0, batch | {name: torch.tensor(3)}, 2
    )
    assert found.shape == (*batch["input_ids"].shape, 1)


# -- numbers of labels


def test_a_count_of_an_open_step_is_that_of_the_rule_it_goes_on_with() -> None:
    data = bf.from_sequence([{"input_ids": [1] * (1 + number), "labels": [1] * (1 + number)} for number in range(10)])
    batches = data.batch(
        4, micro_batches=4, shuffle_batches=False
    )  # 10 batches: 4 a rank of 2, then 2 of one and a rest of 2
    for saved in ("pad", "wrap"):
        with batches.shard(0, 2, uneven=saved).iter() as it:  # type: ignore[arg-type]
            begun = [int(batch["num_items_in_batch"]) for batch in islice(it, 5)]
            state = json.loads(json.dumps(it.state_dict()))
        for rule in ("pad", "wrap"):
            unbroken = [int(batch["num_items_in_batch"]) for batch in batches.shard(0, 2, uneven=rule)]  # type: ignore[arg-type]
            assert begun[:4] == unbroken[:4]
            resumed = list(batches.shard(0, 2, uneven=rule).iter(state))  # type: ignore[arg-type]
            assert [int(batch["num_items_in_batch"]) for batch in resumed] == unbroken[5:]


def test_a_count_goes_on_from_what_was_handed_out_whatever_follows(tmp_path: Path) -> None:
    """Three batches on two ranks: the second half of the step is one of the first batches again, or a filler."""
    data = bf.from_sequence([{"input_ids": [1] * size, "labels": [1] * size} for size in (1, 10, 100)])
    batches = data.batch(2, micro_batches=2, shuffle_batches=False)
    counts = {}
    for saved in ("pad", "wrap"):
        with batches.shard(0, 2, uneven=saved).iter() as it:  # type: ignore[arg-type]
            next(it)
            state = it.state_dict()
        for rule in ("pad", "wrap", "drop"):
            rest = [int(batch["num_items_in_batch"]) for batch in batches.shard(0, 2, uneven=rule).iter(state)]  # type: ignore[arg-type]
            counts[saved, rule] = rest
    assert counts == {
        (saved, rule): rest
        for saved in ("pad", "wrap")
        for rule, rest in (("pad", [111]), ("wrap", [112]), ("drop", []))
    }


def test_tokens_that_are_minus_100_are_no_labels(tmp_path: Path) -> None:
    tokens = [[1, -100, 3, 4], [-100, 2], [5, 6, 7], [8, -100, -100, 9, 10]]
    data = bf.from_sequence([{"input_ids": one} for one in tokens])
    write(tmp_path / "rows.jsonl", [{"input_ids": one} for one in tokens])
    stream = bf.from_files(str(tmp_path / "rows.jsonl"))
    for how in ({}, {"overlong": "split"}, {"overlong": "truncate"}):
        size = 6 if not how else 4
        for batches in (
            data.pack(size, rows=2, micro_batches=2, **how),  # type: ignore[arg-type]
            data.map(dict).pack(size, rows=2, micro_batches=2, **how),  # type: ignore[arg-type]
            stream.pack(size, rows=2, micro_batches=2, **how),  # type: ignore[arg-type]
        ):
            made = list(batches)
            for first in range(0, len(made), 2):
                step = made[first : first + 2]
                asked = sum(int((batch["labels"] != -100).sum()) for batch in step)
                assert {int(batch["num_items_in_batch"]) for batch in step} == {asked}
    store = data.to_store(tmp_path / "store")
    message = r"^packing makes 4 labels of 'input_ids', and num_items_in_batch counts 6: .* -100, .*causal_labels\(\)"
    with pytest.raises(bf.DataError, match=message):
        list(store.pack(6, rows=2).shard(0, 1))
    assert list(store.pack(6, rows=2)), "which have no number"
    assert list(bf.from_sequence([{"input_ids": one} for one in tokens if -100 not in one]).pack(6, rows=2).shard(0, 1))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("labels", [[1, 2, 3, 4], 1.5, 7], ids=str)
def test_a_collate_fn_that_makes_other_labels_is_refused(labels: Any, world_size: int) -> None:
    """One less than there are; on one rank as on several."""
    data = bf.from_sequence([{"input_ids": [1] * 4, "shift_labels": labels}] * 8)

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        made = torch.tensor([list(labels) if isinstance(labels, list) else labels] * len(samples))
        return {"shift_labels": torch.where(torch.arange(4) > 0, made, -100) if made.dim() > 1 else made[1:]}

    given, made = (8, 6) if isinstance(labels, list) else (2, 1)
    message = f"^collate_fn made {made} labels that are trained on, and the samples of this batch have {given}, which num_items_"
    with pytest.raises(bf.DataError, match=message):
        list(data.batch(4, micro_batches=2, collate_fn=collate).shard(0, world_size))


def test_what_a_collate_fn_makes_of_one_label_a_sample_is_its_own() -> None:
    """Such as one number for each class, or for each token."""
    data = bf.from_sequence([{"input_ids": [1, 2, 3], "labels": number % 2} for number in range(8)])

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"labels": torch.stack([F.one_hot(torch.tensor(one["labels"]), 2) for one in samples])}

    for batch in data.batch(4, micro_batches=2, collate_fn=collate).shard(0, 2):
        assert int(batch["num_items_in_batch"]) == 8
    for batch in data.batch(4, collate_fn=collate):
        assert int(batch["num_items_on_rank"]) == 4
    for batches in (data.batch(4, collate_fn=collate), data.batch(4, collate_fn=collate).shard(0, 1)):
        assert [float(bf.token_mean(torch.tensor(12.0), batch)) for batch in batches] == [3.0, 3.0], "12 over 4 samples"


@pytest.mark.parametrize("data", [bf.from_sequence, bf.from_iterable])
@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_lists_that_a_collate_fn_pads_count_the_same_on_one_process_as_on_a_rank(data: Any, wrap: Any) -> None:
    lists = [[1, 2, -100], [3], [-100, -100], [4, 5]]
    samples = data([{"input_ids": [1] * (1 + number), "labels": one} for number, one in enumerate(lists)])

    def collate(samples: list[dict[str, Any]]) -> Any:
        width = max(len(one["labels"]) for one in samples)
        return wrap(labels=torch.tensor([[*one["labels"], *[-100] * (width - len(one["labels"]))] for one in samples]))

    own = samples.batch(4, token_columns=[], collate_fn=collate)
    for batches in (own, own.shard(0, 1), samples.batch(8, token_columns=[], micro_batches=2, collate_fn=collate)):
        (batch,) = batches
        assert bf.token_mean(torch.tensor(6.0), batch) == 2.0, "3 samples have a label"
        assert bf.token_mean(torch.tensor(6.0), {"labels": batch["labels"]}) == 1.2, "5 labels"


def test_a_collate_fn_that_counts_its_labels_has_the_last_word() -> None:
    data = bf.from_sequence([{"input_ids": [1, 2, 3], "labels": [1, 2]} for _ in range(4)])

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"labels": torch.ones(len(samples), 2, dtype=torch.int64), "num_items_in_batch": 8}

    (batch,) = data.batch(4, token_columns=[], collate_fn=collate)
    assert (batch["num_items_in_batch"], "num_items_on_rank" in batch) == (8, False)


def test_a_list_of_weights_that_a_function_made_says_what_rows_count_for() -> None:
    """It ended in a bare TypeError."""
    batch = {"labels": torch.tensor([1.0, 2.0, 4.0]), "sample_weights": [1.0, 0.0, 1.0]}
    assert bf.token_mean(batch["labels"], batch).item() == 2.5
