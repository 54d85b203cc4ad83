"""The largest token budget that memory allows, held against all budgets."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import brimful as bf
from brimful.memory import fit_budget, probe
from brimful.memory.budget import MOST_PROBES, budget_within


def counted(peak: Callable[[int, int], float]) -> tuple[Callable[..., float], list[tuple[int, int]]]:
    asked: list[tuple[int, int]] = []

    def meter(batch: int, length: int) -> float:
        asked.append((batch, length))
        return peak(batch, length)

    return meter, asked


@given(
    stays=st.integers(0, 10**6),
    token=st.integers(64, 10_000),
    pair=st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    row=st.sampled_from([0, 10, 5_000]),
    rounds=st.sampled_from([1, 512]),
    memory=st.sampled_from([inf, 1.0, 1.2]),
    room=st.floats(1.0, 2_000.0),
)
@settings(max_examples=300, deadline=None)
def test_every_batch_of_the_budget_fits_and_hardly_more_would(
    stays: int, token: int, pair: float, row: int, rounds: int, memory: float, room: float
) -> None:
    def exact(batch: int, length: int) -> float:
        return stays + batch * (row + length * (token + pair * length))

    def peak(batch: int, length: int) -> float:
        found = -(-exact(batch, length) // rounds) * rounds
        return inf if found > memory * limit else found  # out of memory, soon after the limit

    limit = -(-exact(1, 512) // rounds) * rounds * room
    meter, asked = counted(peak)
    most, lengths = 4_096, [16, 512]
    try:
        found = budget_within(meter, lengths, limit, most)
    except ValueError as error:  # it would hold no sample of 512 tokens
        assert "cannot hold a sample of 512 tokens" in str(error)  # noqa: PT017
        found = None
    assert len(asked) <= MOST_PROBES
    assert found is None or all(peak(found.max_tokens // length, length) <= limit for length in lengths)
    best = next(  # no budget beyond it fits both
        tokens
        for tokens in sorted({(rows + 1) * n - 1 for n in lengths for rows in range(1, most + 1)}, reverse=True)
        if all(tokens // n <= most and peak(tokens // n, n) <= limit for n in lengths)
    )
    if found is None:
        assert 0.9 * best - 512 < 512
        return
    assert found.max_tokens <= best
    assert found.max_tokens >= 0.9 * best - 512
    assert {*map(tuple, found.peaks.shapes.tolist())} | {*map(tuple, found.peaks.out_of_memory.tolist())} <= {*asked}


def test_a_step_on_this_machine_keeps_to_the_limit() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100))

    def step(batch: torch.Tensor) -> None:
        model(batch).sum().backward()
        model.zero_grad(set_to_none=True)

    def make_batch(batch: int, length: int) -> torch.Tensor:
        return torch.zeros(batch, length, dtype=torch.int64)

    found = fit_budget(step, make_batch, 4_000_000, lengths=[8, 64], device="cpu")
    shapes = [(found.max_tokens // length, length) for length in (8, 23, 64)]
    assert probe(step, make_batch, shapes, "cpu").peak_bytes.max() <= 4_000_000
    assert probe(step, make_batch, [(found.max_tokens // 7, 8)], "cpu").peak_bytes.min() > 4_000_000
    assert bf.TokenBudget(found.max_tokens).plan([8] * 1_000)


def test_it_needs_no_device() -> None:
    def make_batch(batch: int, length: int) -> torch.Tensor:
        return torch.zeros(batch, length, 64)

    def make_step(layer: torch.nn.Module) -> Callable[[torch.Tensor], None]:
        return lambda batch: layer(batch).sum().backward()

    layer = torch.nn.Linear(64, 64)
    fake = fit_budget(layer, make_batch, 2**24, lengths=[16, 128], device="fake", make_step=make_step)
    real = fit_budget(make_step(layer), make_batch, 2**24, lengths=[16, 128], device="cpu")
    assert fake.max_tokens == pytest.approx(real.max_tokens, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": []}, r"lengths must be 1 to 3 lengths \(got 0\)"),
        ({"lengths": [0]}, "lengths must be at least 1 token"),
        ({"lengths": [8], "make_step": lambda model: model}, "make_step goes with device='fake'"),
        (
            {"lengths": [10**6]},
            "a batch of 1 x 1,000,000 tokens peaks at 8,000,512 bytes, which is above limit_bytes=1,000",
        ),
        ({"lengths": [8], "limit_bytes": 0}, "limit_bytes must be"),
        ({"lengths": 512}, r"lengths must be a list: the shortest and the longest length of your data \(got 512\)"),
        ({"lengths": [8], "device": "fake"}, r"estimate takes a model, or a function .* Give the step by make_step="),
        ({"lengths": [8], "device": None}, r"device must be cpu or cuda \(got None\)"),
    ],
)
def test_what_cannot_be_fitted_is_refused(settings: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"limit_bytes": 1_000, "device": "cpu"} | settings
    with pytest.raises((TypeError, ValueError), match=words):
        fit_budget(lambda batch: batch.exp(), torch.ones, **given)  # type: ignore[arg-type]


def test_one_sample_a_batch_is_enough() -> None:
    found = budget_within(lambda batch, length: 1e6 + 1e3 * batch * length, [16, 24], 30e6, 1)
    assert found.max_tokens == 31


def test_a_budget_that_holds_no_sample_of_the_longest_is_refused() -> None:
    words = (
        r"2 x 128 tokens are the largest .* cannot hold a sample of 512 tokens\. Raise limit_bytes=.* max_batch_size=2"
    )
    with pytest.raises(ValueError, match=words):
        budget_within(lambda batch, length: batch * length, [128, 512], 1e9, 2)


def test_a_sample_that_runs_out_of_memory_is_told() -> None:
    with pytest.raises(ValueError, match="a batch of 1 x 16 tokens runs out of memory"):
        budget_within(lambda batch, length: inf, [16], 1e9, 2)
