"""The data-parallel example, run by torchrun, killed, and resumed with another world size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"
STEPS = 24


def start(folder: Path, world_size: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    arguments = [str(EXAMPLE), "--folder", str(folder), "--steps", str(STEPS), *more]
    return subprocess.Popen([*command, *arguments], start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def losses(folder: Path) -> list[float]:
    recorded: list[float] = json.loads((folder / "losses.json").read_text())
    return recorded


def killed_in_the_middle(folder: Path, world_size: int) -> None:
    """Starts training and kills all its processes some steps after the first checkpoint."""
    process = start(folder, world_size, "--seconds-per-step", "0.3")
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, "training ended by itself"
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.05)
    time.sleep(1)
    # torchrun starts workers in sessions of their own: all processes that have the folder as an argument
    subprocess.run(["pkill", "-KILL", "-f", str(folder)], check=True)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "losses.json").exists()


@pytest.mark.timeout(280)
def test_losses_are_the_same_on_one_process_on_two_and_after_a_kill_on_the_other(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two", "two-one")}
    for folder in folders.values():
        folder.mkdir()
    assert start(folders["one"], 1).wait() == 0
    assert start(folders["two"], 2).wait() == 0
    killed_in_the_middle(folders["two-one"], 2)
    assert start(folders["two-one"], 1).wait() == 0
    expected = losses(folders["one"])
    assert len(expected) == STEPS
    assert expected[-1] < expected[0]
    for name in ("two", "two-one"):
        assert losses(folders[name]) == pytest.approx(expected, rel=1e-10), name
