"""The script of docs/how-to/several-gpus.md, killed on two processes, and resumed on one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forks import environment, free_port
from tests.test_readme import blocks, is_unseen


@pytest.fixture(scope="module")
def script() -> str:
    """The first block that a reader sees, with time after each step to be killed in."""
    text = next(one.text for one in blocks("docs/how-to/several-gpus.md", "python") if not is_unseen(one))
    slow = text.replace(
        "            step += 1\n", '            step += 1\n            __import__("time").sleep(0.05)\n'
    )
    assert slow != text
    return slow


def start(script: str, folder: Path, world_size: int) -> list[subprocess.Popen[bytes]]:
    """The processes that torchrun would start."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    ranks = [environment(rank, world_size, port) for rank in range(world_size)]
    return [
        subprocess.Popen([sys.executable, "-c", script], cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"} | rank)
        for rank in ranks
    ]


def checkpoints(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: torch.load(path) for path in sorted(folder.glob("checkpoints/*.pt"))}


@pytest.mark.timeout(280)
def test_the_script_of_the_page_goes_on_with_the_next_step_after_a_kill(script: str, tmp_path: Path) -> None:
    (alone,) = start(script, tmp_path / "whole", 1)
    processes = start(script, tmp_path / "killed", 2)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/checkpoints/*.pt")):
        assert all(process.poll() is None for process in processes), "training ended by itself"
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.05)
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = checkpoints(tmp_path / "killed")
    (resumed,) = start(script, tmp_path / "killed", 1)
    assert resumed.wait() == alone.wait() == 0
    expected, got = checkpoints(tmp_path / "whole"), checkpoints(tmp_path / "killed")
    assert len(expected) == 7
    assert got.keys() == expected.keys()
    assert before.keys() < expected.keys()
    for name in expected.keys() - before.keys():
        assert got[name]["step"] == expected[name]["step"]
        assert got[name]["loader"] == expected[name]["loader"]
        for key, weight in expected[name]["model"].items():
            torch.testing.assert_close(got[name]["model"][key], weight, rtol=1e-4, atol=1e-5)
