"""The example of gradient caching, run as a user would: alone, and on two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import environment, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "contrastive.py"


@pytest.mark.parametrize("world_size", [1, 2])
def test_loss_and_gradients_of_cached_parts_are_those_of_the_whole_step(world_size: int) -> None:
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
    counts = [re.findall(r"(\d+) texts in (\d+) parts", text) for text in printed]
    assert counts[0] == counts[-1]
    assert [int(samples) for samples, _ in counts[0]] == [64, 64, 32]
    assert all(int(parts) > 1 for _, parts in counts[0])
