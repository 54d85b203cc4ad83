"""The gradient of every way to batch is that of one big batch: padding, copies, packing and ranks change nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import brimful as bf
from brimful.tensors import attention
from tests.tensors.test_attention import LONGEST, VOCABULARY, Tensor, by_mask, causal, loss_sum, model

MOST = 24


def rows() -> list[dict[str, Any]]:
    """Samples of 1 to 24 tokens; some ask for few labels, some for none."""
    generator = torch.Generator().manual_seed(2)
    out = []
    for number in range(23):
        tokens = torch.randint(1, VOCABULARY, (1 + number * 7 % MOST,), generator=generator)
        labels = torch.where(torch.arange(len(tokens)) < 1 + number % 5, -100, tokens)
        out.append({"input_ids": tokens.tolist(), "labels": labels.tolist()})
    return out


def gradients(batches: Iterable[dict[str, Any]], tokens: int | None = None) -> list[Tensor]:
    """The sum of the gradients of each batch's loss; `tokens` are those of the whole step."""
    net = model()
    for batch in batches:
        positions = batch.get("position_ids")
        if positions is None:
            positions = torch.arange(batch["input_ids"].shape[1])[None]
        logits = net(batch["input_ids"], positions, by_mask(batch) if "segment_ids" in batch else causal)
        step = batch if tokens is None else batch | {"num_items_in_batch": tokens}
        bf.token_mean(loss_sum(logits, batch["labels"]), step).backward()
    return [parameter.grad for parameter in net.parameters()]


def big_batch() -> tuple[list[Tensor], int]:
    (batch,) = bf.from_sequence(rows()).batch(len(rows()))
    return gradients([batch]), int((batch["labels"] != -100).sum())


def assert_same(own: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(own, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max()))


WAYS: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "arrival": lambda data: data.batch(4),
    "budget": lambda data: data.batch_by_tokens(64, pad_to_multiple_of=8),
    "buckets": lambda data: data.batch_by_tokens(64, buckets=[6, 12, 24]),
    "static": lambda data: data.batch(bf.StaticShapes([8, 16, MOST], 72), window=10),
    "packed": lambda data: data.pack(LONGEST, rows=2),
    "packed tight": lambda data: data.pack(MOST, rows=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_that_of_one_big_batch(way: str) -> None:
    expected, tokens = big_batch()
    batches = list(WAYS[way](bf.from_sequence(rows())))
    assert sum(int((batch["labels"] != -100).sum()) for batch in batches) == tokens
    if way == "static":
        assert any((batch["sample_weights"] == 0).any() for batch in batches), "a batch is filled up with copies"
    assert_same(gradients(batches, tokens), expected)


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("way", ["budget", "static", "packed"])
def test_the_gradients_of_ranks_average_to_that_of_one_big_batch(
    way: str, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks without a batch of their own have fillers, whose loss is 0."""
    expected, tokens = big_batch()
    batches = WAYS[way](bf.from_sequence(rows()))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: world_size)
    ranks = [gradients(batches.shard(rank, world_size), tokens) for rank in range(world_size)]
    assert_same([torch.stack(one).mean(0) for one in zip(*ranks, strict=True)], expected)


def unlabelled() -> list[dict[str, Any]]:
    return [{"input_ids": row["input_ids"]} for row in rows()]


def of_all_tokens() -> list[Tensor]:
    """The gradient of one big batch, in which each token but the first of a sample is predicted."""
    (batch,) = bf.from_sequence(unlabelled()).causal_labels().batch(len(rows()))
    return gradients([batch])


TOKENS: dict[str, Callable[[bf.Dataset], bf.Dataset]] = {
    "indexed": lambda data: data,
    "of one stream": lambda data: data.map(dict),
    "shifted": lambda data: data.causal_labels(shift=True),
}


@pytest.mark.parametrize(("data", "world_size"), [*((data, 1) for data in TOKENS), ("indexed", 2)])
def test_a_step_of_packed_batches_has_the_gradient_of_one_big_batch(
    data: str, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose labels packing makes of the tokens."""
    expected = of_all_tokens()
    made = TOKENS[data](bf.from_sequence(unlabelled())).pack(MOST, rows=32, micro_batches=32)
    monkeypatch.setattr(dist, "is_initialized", lambda: world_size > 1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: world_size)
    ranks = [list(made.shard(rank, world_size)) if world_size > 1 else list(made) for rank in range(world_size)]
    assert [batch["ends_step"] for batch in ranks[0]] == [False] * (len(ranks[0]) - 1) + [True]
    assert len(ranks[0]) > 3
    with patch.object(dist, "all_reduce", side_effect=AssertionError("token_mean asks the other ranks")):
        found = [gradients(batches) for batches in ranks]
    assert_same([torch.stack(one).mean(0) for one in zip(*found, strict=True)], expected)


def test_a_step_whose_labels_nobody_counted_is_refused() -> None:
    """Else it would be a mean of means, k times as large."""

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return by_hand([sample | {"labels": [-100, *sample["input_ids"][1:]]} for sample in samples])

    for made in (
        bf.from_sequence(unlabelled()).pack(MOST, rows=16, micro_batches=16, collate_fn=collate),
        bf.from_sequence(unlabelled()).batch(32, micro_batches=8, collate_fn=collate),
    ):
        step = list(made)
        assert len(step) > 2
        message = (
            r"^the batch is part of an optimizer step \(micro_batches\), and has neither num_items_in_batch nor "
            r"num_items_on_rank: .*batch \| \{\"num_items_on_rank\": count\}$"
        )
        with pytest.raises(ValueError, match=message):
            gradients(step)
        here = sum((batch["labels"] != -100).sum() for batch in step)
        assert_same(gradients(batch | {"num_items_on_rank": here} for batch in step), of_all_tokens())


def test_a_mean_of_means_has_another_gradient() -> None:
    """That the tests above can fail at all."""
    expected, _ = big_batch()
    batches = list(WAYS["budget"](bf.from_sequence(rows())))
    means = [gradient / len(batches) for gradient in gradients(batches)]
    with pytest.raises(AssertionError):
        assert_same(means, expected)


@pytest.mark.parametrize("tokens", [None, 0, torch.tensor(0)])
def test_nothing_to_predict_is_no_loss_and_no_gradient(tokens: Any) -> None:
    batch = {"input_ids": torch.tensor([[3, 4]]), "labels": torch.full((1, 2), -100)}
    assert all((gradient == 0).all() for gradient in gradients([batch], tokens))
    loss = torch.zeros((), requires_grad=True)
    own = bf.token_mean(loss * 3, batch if tokens is None else batch | {"num_items_in_batch": tokens})
    own.backward()
    assert own.item() == 0, "NaN on one rank is NaN on all"
    assert loss.grad is not None
    assert loss.grad.isfinite()


@pytest.mark.parametrize("tokens", [8, torch.tensor(8), torch.tensor(8, dtype=torch.int32)])
def test_the_count_of_the_whole_step_comes_first(tokens: Any) -> None:
    loss = bf.token_mean(
        torch.tensor(6.0, dtype=torch.float64), {"labels": torch.tensor([1]), "num_items_in_batch": tokens}
    )
    assert (loss.item(), loss.dtype) == (0.75, torch.float64)


def test_labels_may_be_nested_or_of_whole_samples() -> None:
    data = bf.from_sequence([{"input_ids": [1, 2], "labels": [1, -100]}, {"input_ids": [3], "labels": [5]}])
    (batch,) = data.batch(2, layout="nested")
    assert bf.token_mean(torch.tensor(6.0), batch).item() == 3
    (batch,) = bf.from_sequence([{"input_ids": [1], "labels": 4}, {"input_ids": [3], "labels": 5}]).batch(2)
    assert bf.token_mean(torch.tensor(6.0), batch).item() == 3


def test_shifted_labels_count_where_there_are_both() -> None:
    batch = {"labels": torch.tensor([[1, 2, 3]]), "shift_labels": torch.tensor([[2, 3, -100]])}
    assert bf.token_mean(torch.tensor(6.0), batch) == 3.0


def test_a_batch_without_labels_needs_a_count() -> None:
    with pytest.raises(
        ValueError, match=r"token_mean needs labels or num_items_in_batch in the batch \(got input_ids\)"
    ):
        bf.token_mean(torch.tensor(1.0), {"input_ids": torch.tensor([1])})


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have saved, which do all that the tests below look at: each begins by importing torch."""
    folder = tmp_path_factory.mktemp("two")
    bf.from_sequence(rows()).to_store(folder / "tokens")
    for shard, part in enumerate((rows()[:6], rows()[6:])):
        (folder / f"{shard}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n")
    multiprocessing.spawn(rank_of_two, args=(str(folder),), nprocs=2)
    return folder


def rank_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    count_labels(rank, folder)
    take_from_a_store(rank, folder)
    take_from_streams(rank, folder)
    take_a_step_of_tokens(rank, folder)
    take_numbers_from_streams(rank, folder)
    # A thread of gloo's that gives back a tensor while the interpreter ends would abort the process, and with torch 2.6
    # destroy_process_group waits without end for a rank that is gone.
    os._exit(0)


def count_labels(rank: int, folder: str) -> None:
    """A data-parallel step on each rank, with the labels counted over both; rank 0 saves the averaged gradients."""
    batches = bf.from_sequence(rows()).batch(12, length_column="input_ids").shard()
    own = gradients(batches)
    for gradient in own:
        dist.all_reduce(gradient)
    if rank == 0:
        torch.save([gradient / 2 for gradient in own], f"{folder}/gradients")


def test_two_processes_count_their_labels_together(of_two: Path) -> None:
    assert_same(torch.load(of_two / "gradients"), big_batch()[0])


STEPS: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "budget": lambda data: data.batch_by_tokens(64, window=12),
    "truncated": lambda data: data.batch(bf.StaticShapes([8, 16], 48), window=12, overlong="truncate"),
    "split": lambda data: data.pack(10, rows=3, window=12, overlong="split"),
}


def save_mean(path: str, own: list[torch.Tensor], batches: list[Any]) -> None:
    """The mean over both ranks of their gradients, and how many fillers this one had."""
    for gradient in own:
        dist.all_reduce(gradient)
    torch.save(([gradient / 2 for gradient in own], sum(batch["is_filler"] for batch in batches)), path)


def take_from_a_store(rank: int, folder: str) -> None:
    """Each rank's gradients of every step of an epoch from a store; nothing but them is exchanged."""
    for way, batches_of in STEPS.items():
        batches = list(batches_of(bf.from_store(f"{folder}/tokens", shuffle=True)).shard())
        with patch.object(dist, "all_reduce", side_effect=AssertionError("token_mean asks the other ranks")):
            own = gradients(batches)
        save_mean(f"{folder}/{way} of a store.{rank}", own, batches)


def test_two_processes_know_the_labels_of_their_steps_from_a_store(of_two: Path) -> None:
    """Of unequal batches, fillers and cut samples; one process takes two batches a step."""
    fillers = 0
    for way, batches_of in STEPS.items():
        batches = list(batches_of(bf.from_store(of_two / "tokens", shuffle=True)))
        steps = [batches[first : first + 2] for first in range(0, len(batches), 2)]
        numbers = [sum(int((batch["labels"] != -100).sum()) for batch in step) for step in steps]
        parts = [gradients(step, number) for step, number in zip(steps, numbers, strict=True)]
        expected = [torch.stack(one).sum(0) for one in zip(*parts, strict=True)]
        for rank in range(2):
            found, own_fillers = torch.load(of_two / f"{way} of a store.{rank}")
            assert_same(found, expected)
            fillers += own_fillers
    assert fillers, "some step has too few batches"


STREAM_STEPS: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "budget": lambda data: data.batch_by_tokens(48, window=6),
    "static": lambda data: data.batch(bf.StaticShapes([8, 16, MOST], 48), window=6),
    "packed": lambda data: data.pack(MOST, rows=2, window=6),
    "nested": lambda data: data.batch(2, layout="nested"),
    "own": lambda data: data.batch(2, collate_fn=by_hand),
}


def by_hand(samples: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [torch.tensor(sample[name]) for sample in samples] for name in ("input_ids", "labels")}
    pads = {"input_ids": 0, "labels": -100}
    pad = torch.nn.utils.rnn.pad_sequence
    return {name: pad(column, batch_first=True, padding_value=pads[name]) for name, column in columns.items()}


def stream_batches(way: str, folder: str) -> bf.Batches:
    data = bf.from_files(f"{folder}/*.jsonl", streams=2)
    return STREAM_STEPS[way](data)


def dense(batch: dict[str, Any]) -> dict[str, Any]:
    """What the model of this file can read of a nested batch."""
    if not batch["input_ids"].is_nested:
        return batch
    return batch | {name: batch[name].to_padded_tensor(pad) for name, pad in (("input_ids", 0), ("labels", -100))}


def take_from_streams(rank: int, folder: str) -> None:
    """Each rank's gradients of every step of an epoch of unequal streams; `token_mean` counts the labels of all."""
    for way in STREAM_STEPS:
        batches = [dense(batch) for batch in stream_batches(way, folder).shard(timeout_seconds=60)]
        assert all("num_items_in_batch" not in batch for batch in batches)
        save_mean(f"{folder}/{way} of streams.{rank}", gradients(batches), batches)


def test_two_processes_with_streams_and_fillers_have_the_gradients_of_one(of_two: Path) -> None:
    """One process takes the batches of both streams in one step, as long as there are two."""
    for way in STREAM_STEPS:
        made = stream_batches(way, str(of_two))
        places = [(state["position"]["next"] - 1 if state["position"] != "end" else None) for state in states_of(made)]
        last = max(place for place in places if place is not None)
        steps: dict[int, list[Any]] = {}
        for batch, place in zip(made, places, strict=True):
            steps.setdefault((last + 2 if place is None else place) // 2, []).append(dense(batch))
        numbers = [sum(int((batch["labels"] != -100).sum()) for batch in step) for step in steps.values()]
        parts = [gradients(step, number) for step, number in zip(steps.values(), numbers, strict=True)]
        expected = [torch.stack(one).sum(0) for one in zip(*parts, strict=True)]
        fillers = 0
        for rank in range(2):
            found, own_fillers = torch.load(of_two / f"{way} of streams.{rank}")
            assert_same(found, expected)
            fillers += own_fillers
        assert fillers == sum(2 - len(step) for step in steps.values()) > 0


def take_a_step_of_tokens(rank: int, folder: str) -> None:
    """Each rank's gradients of one step of packed batches of its own stream."""
    batches = bf.from_files(f"{folder}/*.jsonl", streams=2).select("input_ids")
    made = list(batches.pack(MOST, rows=32, micro_batches=32, window=6).shard(timeout_seconds=60))
    assert all("num_items_in_batch" not in batch for batch in made)
    save_mean(f"{folder}/step of tokens.{rank}", gradients(made), made)


def test_a_step_of_packed_streams_has_the_gradient_of_one_big_batch(of_two: Path) -> None:
    found, _ = torch.load(of_two / "step of tokens.0")
    assert_same(found, of_all_tokens())
    assert torch.load(of_two / "step of tokens.1")[1] + torch.load(of_two / "step of tokens.0")[1] > 0, (
        "a rank had a filler"
    )


def numbered(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": row["input_ids"], "labels": len(row["input_ids"]) / 8}


def batches_of_numbers(folder: str) -> bf.Batches:
    """With a number for each sample; some batches have copies up to a static shape, and a rank has fillers."""
    data = bf.from_files(f"{folder}/*.jsonl", streams=2).map(numbered)
    return data.batch(bf.StaticShapes([8, 16, MOST], 48), window=6)


def squares(batch: dict[str, Any], slope: torch.Tensor) -> torch.Tensor:
    return (slope * batch["lengths"] - batch["labels"]) ** 2


def take_numbers_from_streams(rank: int, folder: str) -> None:
    """The gradients of every step of an epoch of unequal streams, which have other numbers of rows that count."""
    slope = torch.ones((), dtype=torch.float64, requires_grad=True)
    batches = list(batches_of_numbers(folder).shard(timeout_seconds=60))
    found = []
    for batch in batches:
        bf.token_mean(squares(batch, slope), batch).backward()
        assert slope.grad is not None
        found.append(slope.grad.item())
        slope.grad = None
    copies = sum(int((batch["sample_weights"] == 0).sum()) for batch in batches if not batch["is_filler"])
    torch.save((found, copies, sum(batch["is_filler"] for batch in batches)), f"{folder}/numbers.{rank}")


def test_two_processes_with_a_number_a_sample_have_the_gradients_of_one(of_two: Path) -> None:
    made = batches_of_numbers(str(of_two))
    ranks = [torch.load(of_two / f"numbers.{rank}") for rank in range(2)]
    steps: list[list[Any]] = [[] for _ in ranks[0][0]]
    places = [state["position"]["next"] - 1 if state["position"] != "end" else None for state in states_of(made)]
    last = max(place for place in places if place is not None)
    for batch, place in zip(made, places, strict=True):
        steps[(last + 2 if place is None else place) // 2].append(batch)
    for step, *own in zip(steps, *(found for found, *_ in ranks), strict=True):
        slope = torch.ones((), dtype=torch.float64, requires_grad=True)
        torch.cat([squares(batch, slope)[batch["sample_weights"] > 0] for batch in step]).mean().backward()
        assert slope.grad is not None
        assert sum(own) / 2 == pytest.approx(slope.grad.item(), rel=1e-12)
    assert all(sum(counts) for counts in zip(*(more for _, *more in ranks), strict=True)), "copies and fillers"


def states_of(made: bf.Batches) -> list[Any]:
    with made.iter() as it:
        return [it.state_dict() for _ in it]


def test_batches_that_are_accumulated_are_one_mean() -> None:
    expected, tokens = big_batch()
    batches = list(WAYS["budget"](bf.from_sequence(rows())).shard(0, 1))
    whole = sum(batch["num_items_in_batch"] for batch in batches)
    assert int(whole) == tokens
    assert_same(gradients([batch | {"num_items_in_batch": whole} for batch in batches]), expected)


def test_attention_and_loss_are_had_from_the_package() -> None:
    assert bf.attention is attention
    assert {"attention", "token_mean"} <= set(bf.__all__)
    with pytest.raises(AttributeError, match="module 'brimful' has no attribute 'nothing'"):
        bf.nothing  # noqa: B018
    for name, owner in {"oom_guard": "memory", "padding_free": "attention", "assert_isolated": "testing"}.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; say bf\.{owner}\.{name}$"):
            getattr(bf, name)


def test_a_mean_is_no_sum() -> None:
    labels = torch.tensor([[1, 2, -100]])
    logits = torch.zeros(3, 4, requires_grad=True)
    each = torch.nn.functional.cross_entropy(logits, labels[0], reduction="none")
    for mean in (torch.nn.functional.cross_entropy(logits, labels[0]), each.mean(), each.mean(0, keepdim=True)):
        with pytest.raises(
            ValueError, match=r"^loss_sum must be a sum, and this tensor is a mean, .* or by \.sum\(\) in place"
        ):
            bf.token_mean(mean, {"labels": labels})
    sums = (
        torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum"),
        each.sum(),
        each.mean() * 3,
        each.sum().detach(),
    )
    for loss in sums:
        torch.testing.assert_close(bf.token_mean(loss, {"labels": labels}), each.sum() / 2)


def test_a_compiled_step_has_one_graph() -> None:
    def step(loss: Tensor, labels: Tensor) -> Tensor:
        return bf.token_mean(loss.sum(), {"labels": labels})

    loss, labels = torch.ones(3, requires_grad=True), torch.tensor([[1, 2, -100]])
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(loss, labels), step(loss, labels))
