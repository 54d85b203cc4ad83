"""The mean over samples is that of one sample after another, however these are batched, cut, shared out and resumed."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import brimful as bf
from brimful.core.own_keys import COUNTS, LOSS_WEIGHTS, NUM_SAMPLES, SUM_OF_WEIGHTS
from tests.tensors.test_attention import VOCABULARY, by_mask, causal, model
from tests.tensors.test_loss import rows as rows_of_tokens

IGNORED: Final = -100


class Place(NamedTuple):
    """A run of the tokens of a row, as a batch has it."""

    row: int
    first: int
    last: int


class World:
    """Random rows of which each token is there once, so that a batch says of which rows it is, and what their losses are.

    Args:
        labels: the column that has them; None: packing makes some.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.labels = draw.choice(["labels", "shift_labels", "labels", None])
        self.weights = draw.choice([None, float, int])
        self.rows: list[dict[str, Any]] = []
        self.place_of: dict[int, tuple[int, int]] = {}
        for number in range(draw.randint(1, 30)):
            length = draw.choice([1, 2, draw.randint(1, 40)])
            ids = [len(self.place_of) + 1 + place for place in range(length)]
            self.place_of |= {token: (number, place) for place, token in enumerate(ids)}
            asked = draw.choice([0.0, 0.3, 1.0])
            row: dict[str, Any] = {"input_ids": ids}
            if self.labels:
                row[self.labels] = [token if draw.random() < asked else IGNORED for token in ids]
            if self.weights:
                row["w"] = draw.choice([0, self.weights(draw.random() * 10)])
            self.rows.append(row)
        generator = torch.Generator().manual_seed(seed)
        self.theta = torch.randn(len(self.place_of) + 1, generator=generator, dtype=torch.float64)

    def weight(self, row: int) -> float:
        return float(self.rows[row]["w"]) if self.weights else 1.0

    def asked(self, at: Place, packed: bool) -> list[int]:
        """The tokens of a piece whose labels are trained on there."""
        row = self.rows[at.row]
        labels = row[self.labels] if self.labels else row["input_ids"]
        left_out = set()
        if self.labels == "shift_labels":
            left_out = {at.last - 1} if packed or at.last < len(labels) else set()
        elif packed:
            left_out = {at.first}
        return [
            row["input_ids"][place]
            for place in range(at.first, at.last)
            if labels[place] != IGNORED and place not in left_out
        ]

    def pieces(self, batch: Mapping[str, Any]) -> list[Place]:
        """What a batch has of the rows, but for fillers and copies."""
        ids, found = batch["input_ids"], []
        if batch.get("is_filler"):
            return []
        if ids.is_nested:
            runs = [one.tolist() for one in ids.unbind()]
        elif "segment_ids" in batch:
            runs = []
            for row, segments in zip(ids, batch["segment_ids"], strict=True):
                runs += [row[segments == number].tolist() for number in range(1, int(segments.max()) + 1)]
        else:
            runs = [row[mask != 0].tolist() for row, mask in zip(ids, batch["attention_mask"], strict=True)]
            runs = runs[: int(batch["sample_weights"].sum())] if "sample_weights" in batch else runs
        for run in runs:
            if run:
                (row, first), (_, last) = self.place_of[run[0]], self.place_of[run[-1]]
                found.append(Place(row, first, last + 1))
        return found

    def losses(self, ids: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return (theta[ids] * torch.cos(ids.to(torch.float64)) - 1) ** 2

    def expected(self, step: Sequence[Mapping[str, Any]], piece_length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean over the samples of a step, one after another, and its gradient."""
        theta = self.theta.clone().requires_grad_()
        total, count = torch.zeros((), dtype=torch.float64), 0.0
        for batch in step:
            packed = "segment_ids" in batch
            for at in self.pieces(batch):
                length = len(self.rows[at.row]["input_ids"])
                cut = range(0, length, piece_length) if piece_length else [at.first]
                size = piece_length or at.last - at.first
                of_all = sum(len(self.asked(Place(at.row, i, min(i + size, length)), packed)) for i in cut)
                own = self.asked(at, packed)
                if not own:
                    continue
                share = self.weight(at.row) * len(own) / of_all
                total = total + share * self.losses(torch.tensor(own), theta).mean()
                count += share
        mean = total / count if count else total * 0
        mean.backward() if mean.requires_grad else None
        return mean.detach(), torch.zeros_like(theta) if theta.grad is None else theta.grad

    def found(self, ranks: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of a step's losses on each rank, and of their gradients, averaged over ranks."""
        total, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(self.theta)
        for own in ranks:
            theta = self.theta.clone().requires_grad_()
            for batch in own:
                ids, labels = batch["input_ids"], batch["shift_labels" if "shift_labels" in batch else "labels"]
                if ids.is_nested:
                    values = self.losses(ids.values(), theta)
                    losses = torch.nested.nested_tensor_from_jagged(values, labels.offsets())
                else:
                    losses = self.losses(ids, theta)
                    losses = torch.where(labels == IGNORED, math.nan, losses)
                loss = bf.sample_mean(losses, batch)
                loss.backward()
                total += loss.detach() / len(ranks)
            gradient += (torch.zeros_like(theta) if theta.grad is None else theta.grad) / len(ranks)
        return total, gradient


class Way(NamedTuple):
    make: Callable[..., bf.Batches]
    piece_length: int = 0
    packs: bool = False


WAYS: Final = {
    "arrival": Way(lambda data, **how: data.batch(12, **how)),
    "budget": Way(lambda data, **how: data.batch_by_tokens(256, window=20, overlong="truncate", **how)),
    "left": Way(lambda data, **how: data.batch_by_tokens(256, pad_side="left", **how)),
    "static": Way(lambda data, **how: data.batch(bf.StaticShapes([8, 20], 80), overlong="truncate", **how)),
    "nested": Way(lambda data, **how: data.batch(12, layout="nested", **how)),
    "packed": Way(lambda data, **how: data.pack(20, rows=6, overlong="truncate", **how), packs=True),
    "split": Way(lambda data, **how: data.pack(7, rows=6, overlong="split", **how), 7, True),
    "dropped": Way(lambda data, **how: data.pack(7, rows=6, overlong="split", unlabelled="drop", **how), 7, True),
}
SOURCES: Final[dict[str, Callable[[World], bf.Dataset]]] = {
    "sequence": lambda world: bf.from_sequence(world.rows, shuffle=True),
    "dataset": lambda world: bf.from_dataset(world.rows),
    "stream": lambda world: bf.from_sequence(world.rows).map(dict),
    "mixture": lambda world: bf.concat_datasets(
        [bf.from_sequence(world.rows[::2]), bf.from_sequence(world.rows[1::2] or world.rows[:0] or world.rows)]
        if len(world.rows) > 1
        else [bf.from_sequence(world.rows)]
    ),
    "filtered": lambda world: bf.from_sequence(world.rows).filter(lambda row: row["input_ids"][0] % 3 > 0),
}


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def made(world: World, way: Way, data: bf.Dataset, micro_batches: int) -> bf.Batches:
    weights = {"sample_weight_column": "w"} if world.weights else {}
    return way.make(data, micro_batches=micro_batches, **weights)


@pytest.mark.parametrize("seed", range(40))
def test_the_mean_of_a_step_is_that_of_one_sample_after_another(seed: int, tmp_path: Path) -> None:
    """Padded and packed, cut, split and dropped, of any micro batches and ranks: the loss and its gradient."""
    world, draw = World(seed), random.Random(seed)
    name = draw.choice([name for name in WAYS if world.labels or WAYS[name].packs])
    way, source = WAYS[name], draw.choice([*SOURCES, "store"])
    micro_batches, num_ranks = draw.randint(1, 3), 1 if source == "stream" else draw.randint(1, 4)
    data = bf.from_sequence(world.rows).to_store(tmp_path / "store") if source == "store" else SOURCES[source](world)
    batches = made(world, way, data, micro_batches)
    uneven = draw.choice(["pad", "wrap", "drop"])
    ranks = [list(batches.shard(rank, num_ranks, uneven=uneven)) for rank in range(num_ranks)]
    for first in range(0, len(ranks[0]), micro_batches):
        step = [rank[first : first + micro_batches] for rank in ranks]
        own = [batch for rank in step for batch in rank]
        if not any(NUM_SAMPLES[0] in batch for batch in own) and num_ranks > 1:
            counts = {key: sum(float(rank[0][key]) for rank in step) for key in COUNTS if key in own[0]} or {
                key: sum(float(alone(batch)[key]) for batch in own) for key in alone(own[0])
            }
            known = {
                key.replace("on_rank", "in_batch"): torch.tensor(count, dtype=torch.float64)
                for key, count in counts.items()
            }
            step = [[{**batch, **known} for batch in rank] for rank in step]  # as an all_reduce would find them
        for one, other in zip(world.found(step), world.expected(own, way.piece_length), strict=True):
            close(one, other)


def alone(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What `sample_mean` counts in a batch by itself: its losses are 1 over that number."""
    labels = batch["shift_labels" if "shift_labels" in batch else "labels"]
    key = SUM_OF_WEIGHTS[1] if LOSS_WEIGHTS in batch else NUM_SAMPLES[1]
    if batch.get("is_filler"):
        return {key: 0}
    sizes = torch.ones(labels.shape, dtype=torch.float64) if not labels.is_nested else labels.double() * 0 + 1
    found = float(bf.sample_mean(sizes, {**batch, key.replace("on_rank", "in_batch"): torch.tensor(1)}))
    return {key: found / batch["weight"].num_ranks}


@pytest.mark.parametrize("way", WAYS)
def test_a_resume_inside_a_step_has_the_same_numbers(way: str) -> None:
    world = next(world for world in map(World, range(100)) if world.weights is float and world.labels == "labels")
    world.rows = [row | {"w": 0.1 + number / 3} for number, row in enumerate(world.rows * 3)]
    batches = made(world, WAYS[way], bf.from_sequence(world.rows), 3)
    for sharded in (batches, batches.shard(0, 2)):
        numbers = [[(key, one.get(key)) for key in (*COUNTS, LOSS_WEIGHTS)] for one in sharded]
        for stop in range(1, len(numbers)):
            with sharded.iter() as it:
                list(islice(it, stop))
                state = json.loads(json.dumps(it.state_dict()))
            rest = [[(key, one.get(key)) for key in (*COUNTS, LOSS_WEIGHTS)] for one in sharded.iter(state)]
            assert str(rest) == str(numbers[stop:])


def test_a_sample_in_several_pieces_counts_once_in_an_epoch() -> None:
    rows = [{"input_ids": [1] * 50}, {"input_ids": [2] * 4}]
    batches = list(bf.from_sequence(rows).pack(8, overlong="split", micro_batches=2, rows=2))
    total = sum(float(batch[LOSS_WEIGHTS].sum()) for batch in batches)
    assert total == pytest.approx(2)
    steps = {id(batch[SUM_OF_WEIGHTS[0]]): float(batch[SUM_OF_WEIGHTS[0]]) for batch in batches if batch["ends_step"]}
    assert sum(steps.values()) == pytest.approx(2)
    assert batches[0][SUM_OF_WEIGHTS[0]].dtype == torch.float64
    assert batches[0]["column_kinds"][LOSS_WEIGHTS] == "pieces"


@pytest.mark.parametrize("way", ["arrival", "static", "nested", "packed", "split"])
def test_a_filler_gives_nothing_whatever_it_gets(way: str) -> None:
    world = next(world for world in map(World, range(100)) if world.weights and world.labels == "labels")
    world.rows = world.rows[:1]
    *_, filler = made(world, WAYS[way], bf.from_sequence(world.rows), 1).shard(3, 4)
    assert filler["is_filler"]
    assert not filler[LOSS_WEIGHTS].any()
    ids = filler["input_ids"]
    theta = torch.zeros(len(world.theta), dtype=torch.float64, requires_grad=True)
    values = torch.log(theta[ids.values() if ids.is_nested else ids]) * math.nan
    if ids.is_nested:
        values = torch.nested.nested_tensor_from_jagged(values, ids.offsets())
    loss = bf.sample_mean(values, filler)
    loss.backward()
    assert float(loss.detach()) == 0
    assert theta.grad is not None
    assert not theta.grad.any()


def test_samples_without_a_label_count_for_nothing_kept_or_dropped() -> None:
    rows = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [4, 5], "labels": [-100, -100]},
        {"input_ids": [6], "labels": [6]},
    ]
    for unlabelled in ("keep", "drop"):
        (batch,) = bf.from_sequence(rows).batch(3, unlabelled=unlabelled).shard(0, 1)  # type: ignore[arg-type]
        assert int(batch["num_samples_in_batch"]) == 2
        assert float(bf.sample_mean(torch.tensor([[9.0, 1, 3], [7, 7, 7], [4, 9, 9]]), batch)) == 3.0
    (batch,) = bf.from_sequence(rows[1:2]).batch(1).shard(0, 1)
    assert float(bf.sample_mean(torch.ones(1, 2), batch)) == 0.0


def test_labels_of_one_number_a_sample_take_a_loss_a_sample() -> None:
    for labels, count in (([1, -100, 2], 2), ([0.5, -100.0, 2.5], 3)):
        rows = [
            {"input_ids": [1] * (1 + number), "labels": label, "w": 1 + number} for number, label in enumerate(labels)
        ]
        weights = [1, 3] if count == 2 else [1, 2, 3]
        (batch,) = bf.from_sequence(rows).batch(3, sample_weight_column="w").shard(0, 1)
        assert int(batch["num_samples_in_batch"]) == count
        mean = bf.sample_mean(torch.tensor([1.0, 10.0, 100.0]), batch)
        losses = [1, 100] if count == 2 else [1, 10, 100]
        assert float(mean) == pytest.approx(sum(a * b for a, b in zip(weights, losses, strict=True)) / sum(weights))


def test_a_collate_fn_has_the_weights_and_numbers_too() -> None:
    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        pad = torch.nn.utils.rnn.pad_sequence
        labels = [torch.tensor(sample["labels"]) for sample in samples]
        return {"labels": pad(labels, batch_first=True, padding_value=-100)}

    rows = [{"input_ids": [1] * size, "labels": [-100, *[1] * (size - 1)], "w": size / 2} for size in (1, 2, 3, 4)]
    batches = list(
        bf.from_sequence(rows).batch(2, micro_batches=1, sample_weight_column="w", collate_fn=collate).shard(0, 1)
    )
    assert [type(batch[LOSS_WEIGHTS]) for batch in batches] == [torch.Tensor] * 2
    assert [batch[LOSS_WEIGHTS].tolist() for batch in batches] == [[0.5, 1.0], [1.5, 2.0]]
    assert [float(batch[SUM_OF_WEIGHTS[0]]) for batch in batches] == [1.0, 3.5]
    assert float(bf.sample_mean(torch.full((2, 4), 2.0), batches[1])) == 2.0


def test_dtypes_say_the_types_of_weights() -> None:
    types = {LOSS_WEIGHTS: "float32", SUM_OF_WEIGHTS[0]: torch.float32}
    rows = [{"input_ids": [1], "labels": [1], "w": 0.1}]
    (batch,) = bf.from_sequence(rows).batch(1, sample_weight_column="w", dtypes=types).shard(0, 1)
    assert batch[LOSS_WEIGHTS].dtype == batch[SUM_OF_WEIGHTS[0]].dtype == torch.float32
    assert bf.sample_mean(torch.ones(1, 1), batch).dtype == torch.float32


def test_the_mean_keeps_the_type_of_the_losses() -> None:
    rows = [{"input_ids": [1], "labels": [1], "w": 0.1}]
    (batch,) = bf.from_sequence(rows).batch(1, sample_weight_column="w").shard(0, 1)
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        assert bf.sample_mean(torch.ones(1, 1, dtype=kind), batch).dtype == kind


def test_token_mean_knows_nothing_of_weights() -> None:
    rows = [{"input_ids": [1, 2], "labels": [1, 2], "w": 5.0}, {"input_ids": [3], "labels": [3], "w": 0.0}]
    (batch,) = bf.from_sequence(rows).batch(2, sample_weight_column="w").shard(0, 1)
    assert float(bf.token_mean(torch.tensor(6.0), batch)) == 2.0


def test_a_compiled_step_has_one_graph() -> None:
    data = bf.from_sequence(rows_of_tokens())
    step = torch.compile(bf.sample_mean, fullgraph=True, backend="eager")
    for batches in (data.batch(4), data.pack(24, rows=2), data.batch(4).shard(0, 2)):
        for batch in batches:
            losses = torch.rand(batch["labels"].shape, requires_grad=True)
            close(step(losses, batch), bf.sample_mean(losses, batch))


def test_parts_of_a_batch_add_up_to_its_mean() -> None:
    """As `oom_guard` cuts a batch: each part has its share of the step's numbers."""
    rows = [{"input_ids": [1] * size, "labels": [1] * size, "w": size / 3} for size in (3, 1, 2, 5)]
    for batches in (
        bf.from_sequence(rows).batch(4, sample_weight_column="w", micro_batches=1).shard(0, 1),
        bf.from_sequence(rows).pack(6, rows=2, sample_weight_column="w").shard(0, 1),
    ):
        (batch,) = batches
        theta = torch.arange(6.0)
        seen: list[float] = []
        failed = False

        def step(part: Any, scale: float, theta: torch.Tensor = theta, seen: list[float] = seen) -> None:
            nonlocal failed
            if not failed:
                failed = True
                raise torch.OutOfMemoryError
            loss = bf.sample_mean(theta[part["input_ids"]] * (1 + part["input_ids"].cumsum(1)), part) * scale
            seen.append(float(loss))

        with torch.no_grad():
            bf.memory.oom_guard(step)(batch)
        assert len(seen) > 1
        losses = theta[batch["input_ids"]] * (1 + batch["input_ids"].cumsum(1))
        if "segment_ids" not in batch:  # parts of packed rows begin elsewhere
            assert sum(seen) == pytest.approx(float(bf.sample_mean(losses, batch)))


def test_the_gradient_of_a_packed_model_is_that_of_each_sample_by_itself() -> None:
    rows = rows_of_tokens()
    net = model()
    asked = [row for row in rows if any(label != IGNORED for label in row["labels"][1:])]

    def losses(batch: Mapping[str, Any]) -> torch.Tensor:
        positions = batch.get("position_ids")
        positions = torch.arange(batch["input_ids"].shape[1])[None] if positions is None else positions
        logits = net(batch["input_ids"], positions, by_mask(batch) if "segment_ids" in batch else causal)
        found = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, VOCABULARY), batch["labels"][:, 1:].flatten(), reduction="none"
        )
        return torch.nn.functional.pad(found.view(len(logits), -1), (1, 0))

    for row in asked:
        one = {"input_ids": torch.tensor([row["input_ids"]]), "labels": torch.tensor([[-100, *row["labels"][1:]]])}
        (losses(one).sum() / (one["labels"] != IGNORED).sum() / len(asked)).backward()
    expected = [parameter.grad for parameter in net.parameters()]
    for batches in (
        bf.from_sequence(rows).pack(24, rows=60, micro_batches=30),
        bf.from_sequence([row | {"labels": [-100, *row["labels"][1:]]} for row in rows]).batch(24, micro_batches=3),
    ):
        net.zero_grad()
        step = list(batches)
        assert [batch["ends_step"] for batch in step].count(True) == 1
        for batch in step:
            bf.sample_mean(losses(batch), batch).backward()
        for parameter, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-12)


# -- ranks that know their own alone


def rank_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    data = bf.from_files(f"{folder}/*.jsonl", streams=2)
    for name, batches in batches_of_streams(data).items():
        found = []
        for batch in batches.shard():
            losses = batch["input_ids"].to(torch.float64)
            found.append((losses.tolist(), batch["labels"].tolist(), float(bf.sample_mean(losses, batch))))
        torch.save(found, f"{folder}/{name}.{rank}")
    os._exit(0)  # see tests/tensors/test_loss.py


def batches_of_streams(data: bf.Dataset) -> dict[str, bf.Batches]:
    how: dict[str, Any] = {"sample_weight_column": "w", "window": 4}
    return {"steps": data.batch_by_tokens(64, micro_batches=2, **how), "batches": data.batch_by_tokens(32, **how)}


def test_ranks_of_streams_add_up_their_own_numbers(tmp_path: Path) -> None:
    rows = [row | {"w": 1 + number / 7} for number, row in enumerate(rows_of_tokens())]
    for shard, part in enumerate((rows[:8], rows[8:])):
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n")
    multiprocessing.spawn(rank_of_two, args=(str(tmp_path),), nprocs=2)
    weights = {tuple(row["input_ids"]): row["w"] for row in rows}
    for name, size in (("steps", 2), ("batches", 1)):
        ranks = [torch.load(tmp_path / f"{name}.{rank}") for rank in range(2)]
        assert len(ranks[0]) == len(ranks[1]) > 2
        seen = 0
        for first in range(0, len(ranks[0]), size):
            step = [one for rank in ranks for one in rank[first : first + size]]
            means: list[tuple[float, float]] = []
            for losses, labels, found in step:
                for own, asked in zip(losses, labels, strict=True):
                    kept = [loss for loss, label in zip(own, asked, strict=True) if label != IGNORED]
                    tokens = tuple(int(loss) for loss in own if loss)
                    if kept:
                        means.append((weights[tokens], sum(kept) / len(kept)))
                seen += found != 0
            total = sum(weight for weight, _ in means)
            mean = sum(weight * one for weight, one in means) / (total or 1)
            assert sum(found for *_, found in step) / 2 == pytest.approx(mean, rel=1e-12)
        assert seen > 2


def test_nobody_is_asked_where_the_numbers_of_all_ranks_are_known(tmp_path: Path) -> None:
    rows = [row | {"w": 1.5} for row in rows_of_tokens()]
    store = bf.from_sequence(rows).to_store(tmp_path / "store")
    mixture = bf.concat_datasets([store, bf.from_sequence(rows)])
    for data in (
        store,
        mixture,
        store.select(["input_ids", "labels", "w"]),
        store.rename({"w": "v"}).rename({"v": "w"}),
    ):
        (batch, *_) = data.batch(4, sample_weight_column="w").shard(0, 2)
        with patch.object(dist, "all_reduce", side_effect=AssertionError("sample_mean asks the other ranks")):
            bf.sample_mean(torch.ones(batch["labels"].shape), batch)
        assert float(batch[SUM_OF_WEIGHTS[0]]) == 1.5 * int(batch[NUM_SAMPLES[0]])


def test_weights_of_a_data_set_that_is_asked_one_by_one_are_known_on_each_rank_alone() -> None:
    asked: list[int] = []

    class Rows:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> dict[str, Any]:
            asked.append(number)
            return {"input_ids": [number], "labels": 0.5, "w": 1.0}

    data = bf.from_dataset(Rows(), lengths=[1] * 40)
    list(data.batch(4, sample_weight_column="w").shard(0, 1).take(1))
    asked.clear()
    batches = list(data.batch(8, micro_batches=2, sample_weight_column="w").shard(0, 2))
    assert len(asked) == 20
    assert float(batches[0][SUM_OF_WEIGHTS[1]]) == 8.0
    assert SUM_OF_WEIGHTS[0] not in batches[0]


# -- errors


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (None, r"holds null \(sequence, row 1\): a weight is a number of at least 0"),
        (-0.5, r"holds -0.5 \(sequence, row 1\)"),
        (math.nan, r"holds nan \(sequence, row 1\)"),
        (math.inf, r"holds inf \(sequence, row 1\)"),
    ],
)
def test_a_weight_that_is_none_is_refused_where_it_lies(weight: Any, words: str) -> None:
    rows = [{"input_ids": [1], "labels": [1], "w": one} for one in (1.0, weight)]
    data = bf.from_sequence(rows)
    for batches in (data.batch(2, sample_weight_column="w"), data.batch(1, sample_weight_column="w").shard(0, 2)):
        if weight is None and not batches.sharded:  # refused as any null that becomes a tensor
            continue
        with pytest.raises(bf.DataError, match=words):
            list(batches)


def test_a_column_that_says_no_weight_is_refused() -> None:
    data = bf.from_sequence([{"input_ids": [1], "labels": [1], "text": "a"}])
    for name, words in (("w", "the columns are input_ids, labels, text"), ("text", r"no column of numbers \(string\)")):
        with pytest.raises(ValueError, match=f"sample_weight_column names '{name}', .*{words}"):
            list(data.batch(1, sample_weight_column=name))
    with pytest.raises(TypeError, match=r"sample_weight_column must be the name of a column of numbers \(got 3\)"):
        data.batch(1, sample_weight_column=3)  # type: ignore[arg-type]
    samples = bf.from_dataset([[1]], collate_fn=list)
    with pytest.raises(
        ValueError, match=r"sample_weight_column='w' names a column, but from_dataset\(collate_fn=...\)"
    ):
        samples.batch(1, sample_weight_column="w")
    with pytest.raises(bf.DataError, match="there is a column 'sample_loss_weights'"):
        list(bf.from_sequence([{"input_ids": [1], LOSS_WEIGHTS: 1.0}]).batch(1))


PADDED: Final = {"labels": torch.tensor([[1, -100], [2, 3]])}


@pytest.mark.parametrize(
    ("losses", "batch", "kind", "words"),
    [
        (torch.ones(2, 2), [1], TypeError, "sample_mean takes the losses and then the batch, a dict (got list"),
        ([1.0], PADDED, TypeError, "token_losses must be a tensor, such as cross_entropy(..., reduction='none')"),
        (torch.ones(2, 2), {"x": 1}, ValueError, "sample_mean needs labels, a tensor, in the batch (got x)"),
        (torch.tensor(1.0), PADDED, ValueError, "token_losses must lie as 'labels' does, (2, 2) (got ())"),
        (
            torch.ones(2, 1),
            PADDED,
            ValueError,
            "(got (2, 1)). Use reduction='none'. If the model predicts the next token",
        ),
        (torch.ones(3), PADDED, ValueError, "token_losses has 3 losses, and the batch 2 samples"),
        (
            torch.ones(2, 2),
            PADDED | {"num_sides": 2},
            ValueError,
            "has 2 rows a sample, and one loss for all of them: give token_mean these losses, one a sample, (B,)",
        ),
        (
            torch.ones(2, 2),
            {"labels": torch.ones(2, 2)},
            ValueError,
            "'labels' are torch.float32, not one integer a token",
        ),
        (
            torch.ones(2, 2),
            PADDED | {"ends_step": True},
            ValueError,
            "has neither num_samples_in_batch nor num_samples_on_rank: brimful counts labels that the samples have. Give "
            "sample_mean the number of samples that have a label in all batches",
        ),
        (
            torch.ones(2, 2),
            PADDED | {LOSS_WEIGHTS: torch.ones(2), "ends_step": True},
            ValueError,
            'the sum of the weights of samples that have a label in all batches of the step: batch | {"sum_of_weights_on_rank"',
        ),
        (
            torch.ones(2, 2),
            PADDED | {LOSS_WEIGHTS: torch.ones(3)},
            ValueError,
            "the losses are those of 2 samples, and sample_loss_weights has 3 weights",
        ),
    ],
)
def test_each_error_says_what_to_give(losses: Any, batch: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        bf.sample_mean(losses, batch)


def test_arrays_have_the_same_keys_and_values() -> None:
    rows = [{"input_ids": [1, 2], "labels": [-100, 2], "w": 0.1}, {"input_ids": [3] * 9, "labels": [3] * 9, "w": 2.5}]
    data = bf.from_sequence(rows)
    for batches in (
        data.batch(2, sample_weight_column="w", micro_batches=2),
        data.batch(bf.StaticShapes([4, 9], 18), sample_weight_column="w"),
        data.pack(4, overlong="split", sample_weight_column="w"),
    ):
        for one, other in zip(batches.shard(0, 1).numpy(), batches.shard(0, 1), strict=True):
            for name in (NUM_SAMPLES[0], SUM_OF_WEIGHTS[0], LOSS_WEIGHTS):
                assert isinstance(one[name], np.ndarray)
                assert one[name].tolist() == other[name].tolist()
