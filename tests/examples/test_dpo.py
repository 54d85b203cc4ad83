"""The example of preferences, run as a user would: alone, and on two and four processes."""

from __future__ import annotations

import re

import pytest

from tests.forks import printed_by


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_loss_and_gradients_of_batches_are_those_of_pairs_one_by_one(world_size: int) -> None:
    counts = []
    for text in printed_by("dpo.py", world_size):
        found = re.search(r"batches of \[(.*)\] slots; loss and gradients as one by one", text)
        assert found is not None
        slots = [int(one) for one in found[1].split(",")]
        assert max(slots) <= 1_024
        counts.append(len(slots))
    assert counts == [-(-21 // world_size)] * world_size
