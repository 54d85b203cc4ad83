"""Ranks of a step do equal work, in every window and with every packing, and learn what one process learns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import brimful as bf
from benchmarks.plan import sft
from brimful.batching.batch import Batch
from brimful.plan.costs import sample_costs
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.shards import write

COST = bf.AttentionCost(quadratic=1 / 512)
RANKS = 4


def data(count: int = 3_000, longest: int = 512) -> bf.Dataset:
    lengths = np.minimum(sft(count) // 8 + 1, longest)
    return bf.from_sequence([{"input_ids": np.zeros(length, np.int8)} for length in lengths.tolist()], shuffle=True)


def work(batch: Batch) -> float:
    if batch.pieces is not None:
        return float(sample_costs(batch.pieces.lengths, COST).sum())
    return batch.padded_size * COST(1, batch.widths[0])


def waiting(batches: bf.Batches, steps: int = 1) -> float:
    """The share of their time that ranks wait for the slowest, at the end of each `steps` batches."""
    found = np.array([work(batch) for batch in batches.plans()])
    found = found[: len(found) // (steps * RANKS) * steps * RANKS].reshape(-1, steps, RANKS).sum(axis=1)
    return float(1 - found.mean(axis=1).sum() / found.max(axis=1).sum())


MAKES: dict[str, Callable[..., bf.Batches]] = {
    "budget": lambda data, **how: data.batch_by_tokens(2_048, window=1_100, **how),
    "fixed": lambda data, **how: data.batch(8, window=1_100, drop_last=True, **how),
    "static": lambda data, **how: data.batch(bf.StaticShapes([32, 128, 512], 2_048), window=1_100, **how),
    "by a key": lambda data, **how: data.batch_by(8, len_of, window=1_100, **how),
    "rows": lambda data, **how: data.pack(512, window=1_100, **how),
    "packed": lambda data, **how: data.pack(512, rows=4, window=1_100, **how),
}


def len_of(sample: dict[str, Any]) -> int:
    return len(sample["input_ids"])


@pytest.mark.parametrize("make", MAKES)
def test_ranks_hardly_wait_for_each_other(make: str) -> None:
    plain = waiting(MAKES[make](data(), balance_group=RANKS))
    for order in (True, "stratified", False):
        even = MAKES[make](data(), balance_group=RANKS, balance_cost=COST, shuffle_batches=order)
        assert waiting(even) < min(0.1, 0.35 * plain)


@pytest.mark.parametrize("make", ["budget", "packed"])
def test_ranks_hardly_wait_where_they_wait_once_a_step(make: str) -> None:
    plain = MAKES[make](data(6_000), balance_group=RANKS, micro_batches=4)
    even = MAKES[make](data(6_000), balance_group=RANKS, micro_batches=4, balance_cost=COST)
    assert waiting(even, steps=4) <= min(0.02, waiting(even), 0.5 * waiting(plain, steps=4))


def test_packed_batches_of_a_window_do_equal_work() -> None:
    plain, even = (
        np.array([work(batch) for batch in MAKES["packed"](data(), **how).plans()])
        for how in ({}, {"balance_cost": COST})
    )
    assert plain.max() > 1.3 * plain.mean()
    assert even.max() < 1.06 * even.mean()


def test_groups_are_aligned_whatever_the_windows_leave_over() -> None:
    batches = data(1_000).batch_by_tokens(512, window=190, balance_group=RANKS, balance_cost=COST)
    numbers = np.array([batch.window.number for batch in batches.plans()])
    costs = np.array([work(batch) for batch in batches.plans()])
    sizes = np.bincount(numbers)
    assert (sizes % RANKS).any(), "windows leave batches over"
    aligned = np.arange(len(numbers) // RANKS * RANKS).reshape(-1, RANKS)
    whole = [group for group in aligned if len(set(numbers[group].tolist())) == 1]
    assert len(whole) >= (sizes // RANKS).sum() - len(sizes)
    for group in whole:
        places = np.searchsorted(np.sort(costs[numbers == numbers[group[0]]]), np.sort(costs[group]))
        assert np.ptp(places) < RANKS, "neighbours in cost"


def test_an_automatic_window_holds_enough_batches_for_large_groups() -> None:
    ranks, samples = 64, data(50_000)

    def made(**how: Any) -> tuple[int, float]:
        found = [*samples.batch_by_tokens(2_048, **how).plans()]
        costs = np.array([work(batch) for batch in found])
        costs = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
        return sum(batch.window.number == 0 for batch in found), float(1 - costs.mean() / costs.max(axis=1).mean())

    alone, _ = made()
    assert made(balance_group=ranks)[0] == made(balance_cost=COST)[0] == alone < 300
    assert made(balance_group=4, balance_cost=COST)[0] == alone
    rows = len(next(samples.batch_by_tokens(2_048).plans()).window)
    _, short = made(balance_group=ranks, balance_cost=COST, window=rows)
    many, waited = made(balance_group=ranks, balance_cost=COST)
    assert many >= 0.95 * 16 * ranks
    assert waited < 0.5 * short


@pytest.mark.parametrize("make", ["padded", "packed"])
def test_windows_of_two_steps_are_of_two_steps_of_the_group(make: str) -> None:
    samples = data(4_000)
    how: dict[str, Any] = {"window": "steps", "micro_batches": 2}

    def batches(**group: Any) -> bf.Batches:
        if make == "padded":
            return samples.batch_by_tokens(4_096, **how, **group)
        return samples.pack(512, rows=2, **how, **group)

    alone, group, even = (
        len(next(batches(**how).plans()).window)
        for how in ({}, {"balance_group": 8}, {"balance_group": 8, "balance_cost": COST})
    )
    assert group == alone
    assert even == pytest.approx(8 * alone, rel=0.05)


def test_streams_of_one_step_do_equal_work(tmp_path: Path) -> None:
    for shard in range(RANKS):
        lengths = np.minimum(sft(400, seed=shard) // 8 + 1, 512).tolist()
        write(tmp_path / f"{shard}.jsonl", [{"input_ids": [0] * length} for length in lengths])
    streams = bf.from_files(str(tmp_path / "*.jsonl"), streams=RANKS)
    plain = streams.batch_by_tokens(2_048, window=400, balance_group=RANKS)
    even = streams.batch_by_tokens(2_048, window=400, balance_group=RANKS, balance_cost=COST)
    assert waiting(even) < 0.4 * waiting(plain)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.sampled_from(sorted(MAKES)),
    st.integers(1, 4),
    st.integers(1, 30),
    st.sampled_from([True, False, "stratified"]),
)
@examples(60)
@example([3], "packed", 2, 1, True)
def test_each_sample_is_there_once(lengths: list[int], make: str, group: int, window: int, order: Any) -> None:
    rows = bf.from_sequence([{"input_ids": [0] * length} for length in lengths])
    batches = {
        "budget": lambda **how: rows.batch_by_tokens(40, window=window, **how),
        "fixed": lambda **how: rows.batch(3, window=window, **how),
        "static": lambda **how: rows.batch(bf.StaticShapes([10, 30], 60), window=window, **how),
        "by a key": lambda **how: rows.batch_by(3, len_of, window=window, **how),
        "rows": lambda **how: rows.pack(30, window=window, **how),
        "packed": lambda **how: rows.pack(30, rows=2, window=window, **how),
    }[make](balance_group=group, balance_cost=COST, shuffle_batches=order)
    found = [batch.window.samples[batch.numbers].tolist() for batch in batches.plans()]
    assert sorted(number for batch in found for number in batch) == list(range(len(lengths)))


@pytest.mark.parametrize("cost", [None, COST])
def test_a_group_of_more_batches_than_there_are_takes_no_memory(cost: Any) -> None:
    batches = data(20).batch_by_tokens(512, window=10, balance_group=1 << 45, balance_cost=cost)
    assert sum(len(batch) for batch in batches.plans()) == 20


def test_pairs_cost_what_both_lengths_together_do() -> None:
    draw = np.random.default_rng(0)
    rows = [{"input_ids": [0] * a, "labels": [0] * b} for a, b in draw.integers(1, 60, (800, 2)).tolist()]
    pairs: dict[str, Any] = {"length_column": ("input_ids", "labels"), "token_columns": (), "window": 400}
    batches = bf.from_sequence(rows).batch_by_tokens(500, **pairs, balance_group=RANKS, balance_cost=COST)
    found = np.array([batch.padded_size * COST(1, sum(batch.widths)) for batch in batches.plans()])
    steps = found[: len(found) // RANKS * RANKS].reshape(-1, RANKS)
    assert (steps.max(axis=1) - steps.mean(axis=1)).sum() <= 0.02 * steps.sum() / RANKS


@pytest.mark.parametrize("overlong", ["truncate", "drop", "split"])
def test_samples_longer_than_a_row_are_balanced_too(overlong: Any) -> None:
    batches = data(600, longest=400).pack(
        256, rows=2, window=300, overlong=overlong, balance_group=2, balance_cost=COST
    )
    for batch in batches.plans():
        assert batch.pieces is not None
        assert np.bincount(batch.pieces.rows, batch.pieces.lengths).max() <= 256
    kept = sum(batch.num_tokens for batch in batches.plans())
    expected = data(600, longest=400).pack(256, rows=2, window=300, overlong=overlong)
    assert kept == sum(batch.num_tokens for batch in expected.plans())


@pytest.mark.parametrize("overlong", ["truncate", "drop", "alone"])
def test_samples_longer_than_the_budget_keep_their_word(overlong: Any) -> None:
    how: dict[str, Any] = {"window": 200, "overlong": overlong}
    even = data(600).batch_by_tokens(300, **how, balance_group=2, balance_cost=COST)
    found, expected = (
        sorted((*batch.widths, batch.padded_size) for batch in batches.plans())
        for batches in (even, data(600).batch_by_tokens(300, **how))
    )
    assert found == expected


@pytest.mark.parametrize("make", ["fixed", "packed"])
def test_drop_last_leaves_out_no_more_than_without(make: str) -> None:
    even = MAKES[make](data(), balance_group=RANKS, balance_cost=COST) if make == "fixed" else None
    even = even or data().pack(512, rows=4, window=1_100, drop_last=True, balance_group=RANKS, balance_cost=COST)
    windows = [batch.window.number for batch in even.plans()]
    full = data().batch(8, window=1_100, drop_last=True) if make == "fixed" else data().pack(512, rows=4, window=1_100)
    assert len(windows) >= len(full) - len(set(windows))
    for batch in even.plans():
        assert batch.pieces is None or set(batch.pieces.rows.tolist()) == set(range(4))


@pytest.mark.parametrize("rows", [0, 2])
def test_a_resume_is_exact_at_every_batch(rows: int) -> None:
    how: dict[str, Any] = {"window": 24, "balance_group": 3, "balance_cost": COST}
    assert_exact_resume(lambda: data(80).pack(512, rows=rows, **how) if rows else data(80).batch_by_tokens(512, **how))


def test_a_state_of_another_cost_is_refused() -> None:
    batches = data(200).batch_by_tokens(2_048, window=100, balance_group=2, balance_cost=COST)
    with batches.iter() as it:
        next(it)
        state = it.state_dict()
    for other in ({}, {"balance_cost": bf.AttentionCost(quadratic=1)}):
        changed = data(200).batch_by_tokens(2_048, window=100, balance_group=2, **other)
        with pytest.raises(bf.StateError, match="balance_cost"):
            next(changed.iter(state))


def test_batches_in_arrival_order_take_no_cost() -> None:
    with pytest.raises(ValueError, match=r"they keep the order of arrival. Give window=, or leave balance_cost out"):
        data(10).batch(2, balance_cost=COST)


@pytest.mark.parametrize("make", ["budget", "packed"])
@pytest.mark.parametrize(
    ("cost", "error", "message"),
    [
        (3, TypeError, r"balance_cost needs a function \(got 3\)"),
        (
            lambda rows, length: rows,
            TypeError,
            r"balance_cost must take one argument, .* \(got .*, which takes \(rows, length\)",
        ),
        (lambda length: "much", TypeError, r"balance_cost must give a number for a length \(cost\(\d+\) is much\)"),
        (lambda length: -length, ValueError, r"balance_cost must be finite and not negative \(cost\(\d+\) is -\d+"),
    ],
)
def test_an_error_of_a_cost_names_what_the_user_wrote(
    make: str, cost: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        next(MAKES[make](data(10), balance_cost=cost).plans())


# -- gradients -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """One causal layer over the samples of padded or packed rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv, self.head = nn.Embedding(16, 8), nn.Linear(8, 24), nn.Linear(8, 16)

    def loss_sum(self, batch: dict[str, Any]) -> torch.Tensor:
        ids = batch["input_ids"]
        kinds = batch.get("segment_ids", batch.get("attention_mask"))
        same = (kinds[:, :, None] == kinds[:, None]) & torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
        q, k, v = self.qkv(self.tokens(ids)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=same)
        logits = self.head(mixed)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum", ignore_index=-100)


def gradients(model: Attention, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("cost", [None, COST], ids=["neighbours", "even"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("make", ["padded", "packed", "micro batches"])
def test_gradients_of_a_step_are_those_of_one_big_batch(make: str, world_size: int, cost: Any) -> None:
    draw = np.random.default_rng(3)
    rows = [
        {
            "input_ids": draw.integers(1, 16, length).tolist(),
            "labels": [-100, *draw.integers(0, 16, length - 1).tolist()],
        }
        for length in draw.integers(2, 40, 60).tolist()
    ]
    samples = bf.from_sequence(rows, shuffle=True)
    order: dict[str, Any] = {"balance_group": world_size, "window": 60, "balance_cost": cost}
    batches = {
        "padded": lambda: samples.batch_by_tokens(120, **order),
        "packed": lambda: samples.pack(60, rows=2, **order),
        "micro batches": lambda: samples.batch_by_tokens(240, micro_batches=2, **order),
    }[make]()
    torch.manual_seed(0)
    model = Attention().double()
    steps = 2 if make == "micro batches" else 1
    ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
    for start in range(0, len(ranks[0]), steps):
        step = [rank[start : start + steps] for rank in ranks]
        dealt = [sum(bf.token_mean(model.loss_sum(batch), batch) for batch in rank) for rank in step]
        averaged = [sum(each) / world_size for each in zip(*(gradients(model, loss) for loss in dealt), strict=True)]
        own = [batch for rank in step for batch in rank if batch["weight"]]
        count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in own)
        whole = one_by_one(model, rows, own) / count
        torch.testing.assert_close(sum(dealt) / world_size, whole, rtol=1e-12, atol=0)
        torch.testing.assert_close(averaged, gradients(model, whole), rtol=1e-9, atol=1e-14)


def one_by_one(model: Attention, rows: list[dict[str, Any]], batches: list[Any]) -> torch.Tensor:
    """The losses of the samples in some batches, as one padded batch."""
    ids = {tuple(row["input_ids"]): row for row in rows}
    chosen = []
    for batch in batches:
        lengths = batch["lengths"].tolist()
        if "segment_ids" in batch:
            flat = batch["input_ids"][batch["segment_ids"] > 0].tolist()
            ends = np.cumsum([0, *lengths])
            chosen += [ids[tuple(flat[start:end])] for start, end in pairwise(ends)]
        else:
            chosen += [
                ids[tuple(row[:length])] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)
            ]
    return model.loss_sum(next(iter(bf.from_sequence(chosen).batch(len(chosen)))))
