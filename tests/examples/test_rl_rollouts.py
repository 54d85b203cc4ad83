"""The example of rollouts, run as a user would: alone, and on two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import environment, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_rollouts.py"


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_of_micro_batches_are_those_of_one_batch(world_size: int) -> None:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment(rank, 2, port) if world_size == 2 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    printed = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world_size
    counts = []
    for text in printed:
        found = re.search(r"in (\d+) micro batches of \[(.*)\] tokens; gradients as of one batch", text)
        assert found is not None
        tokens = [int(one) for one in found[2].split(",")]
        assert max(tokens) <= 512
        counts.append(len(tokens))
    assert counts == [10 // world_size] * world_size
