"""The example of rollouts, run as a user would: alone, and on two processes."""

from __future__ import annotations

import re

import pytest

from tests.forks import printed_by


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_of_micro_batches_are_those_of_one_batch(world_size: int) -> None:
    counts = []
    for text in printed_by("rl_rollouts.py", world_size):
        found = re.search(r"in (\d+) micro batches of \[(.*)\] tokens; gradients as of one batch", text)
        assert found is not None
        tokens = [int(one) for one in found[2].split(",")]
        assert max(tokens) <= 512
        counts.append(len(tokens))
    assert counts == [10 // world_size] * world_size
