"""Inference on a batch of any size: the results are those of the whole, in its order."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from brimful.memory import SimulatedOOM, oom_safe, oom_safe_generate


class Output(NamedTuple):
    logits: torch.Tensor
    names: list[str]


def test_results_of_any_kind_are_joined_in_order() -> None:
    device = SimulatedOOM(10)

    def forward(batch: dict[str, Any]) -> Output:
        return Output(device(batch["x"]) * 2, [name.upper() for name in batch["name"]])

    batch = {"x": torch.arange(14.0).reshape(7, 2), "name": list("abcdefg")}
    safe = oom_safe(forward)
    found = safe(batch)
    assert found.logits.equal(batch["x"] * 2)
    assert found.names == list("ABCDEFG")
    safe(batch)
    assert (safe.stats.ooms, safe.stats.split) == (1, 2)
    other = oom_safe(forward)
    other.load_state_dict(safe.state_dict())
    other(batch)
    assert other.stats.ooms == 0


def test_results_that_cannot_be_joined_are_refused() -> None:
    device = SimulatedOOM(4)
    batch = {"x": torch.arange(8).reshape(4, 2)}

    def ragged(part: dict[str, Any]) -> torch.Tensor:
        return device(part["x"]).new_zeros(len(part["x"]), 1 + int(part["x"].max()))

    with pytest.raises(
        ValueError, match=r"ragged returned tensors of shapes \(2, 4\) and \(2, 8\) .* give oom_safe a pad_value"
    ):
        oom_safe(ragged)(batch)
    assert oom_safe(ragged, pad_value=9)(batch)[0].tolist() == [0] * 4 + [9] * 4

    def short(part: dict[str, Any]) -> list[int]:
        return device(part["x"])[1:].tolist()

    with pytest.raises(
        ValueError, match="short returned 1 results for a batch of 2 samples; it must return one for each"
    ):
        oom_safe(short)(batch)


def test_sequences_generated_in_parts_are_those_of_the_whole() -> None:
    from tests.oom import generating_child

    whole = generating_child.generator()
    device = SimulatedOOM(1 << 30)
    parts = generating_child.generator(logits_processor=[lambda ids, scores: scores + 0 * len(device(scores))])
    ids = torch.randint(2, 60, (9, 12), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "text": ["unused"] * 9}
    expected = whole(batch)
    device.limit = 4 * 60  # of scores (B, vocabulary)
    assert parts(batch).equal(expected)
    assert parts.stats.ooms == 2
    with pytest.raises(ValueError, match=r"one sequence a sample can be put in order \(got num_return_sequences=2\)"):
        oom_safe_generate(None, num_return_sequences=2)
