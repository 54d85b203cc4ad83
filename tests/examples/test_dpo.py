"""The example of preferences, run as a user would: alone, and on two and four processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import environment, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "dpo.py"


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_loss_and_gradients_of_batches_are_those_of_pairs_one_by_one(world_size: int) -> None:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment(rank, world_size, port) if world_size > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    printed = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world_size
    counts = []
    for text in printed:
        found = re.search(r"batches of \[(.*)\] slots; loss and gradients as one by one", text)
        assert found is not None
        slots = [int(one) for one in found[1].split(",")]
        assert max(slots) <= 1_024
        counts.append(len(slots))
    assert counts == [-(-21 // world_size)] * world_size
