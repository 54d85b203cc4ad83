"""Data-parallel processes that read streams: real ones, over gloo, with very unequal data."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from tests import ranks_child
from tests import strategies as draw

ROOT = Path(__file__).parents[1]
COUNTS = (3, 150, 0, 40, 0, 21)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = iter(draw.samples_of([1 + number * 7 % 29 for number in range(sum(COUNTS))]))
    for shard, count in enumerate(COUNTS):
        (tmp_path / f"shard-{shard}.jsonl").write_bytes(draw.json_lines([next(samples) for _ in range(count)]))
    return tmp_path


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(world_size: int, job: str, folder: Path, *arguments: str) -> list[Any]:
    """What each rank saw; None of one that was killed."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    command = [sys.executable, "-m", "tests.ranks_child", job, str(folder), *arguments]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"})
        for rank in range(world_size)
    ]
    try:
        for process in processes:
            process.wait(120)
    finally:
        for process in processes:
            process.kill()
    results = (folder / f"{job}-{world_size}-{rank}.json" for rank in range(world_size))
    return [json.loads(path.read_text()) if path.exists() else None for path in results]


def whole(folder: Path, epoch: int = 0) -> list[list[int]]:
    return [batch["id"].tolist() for batch in ranks_child.data(folder).iter(epoch=epoch)]


def in_turn(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The batches of all ranks in their global order, without fillers."""
    return [batch for step in zip(*ranks, strict=True) for batch in step if batch]


def test_ranks_with_unequal_streams_finish_under_every_rule(folder: Path) -> None:
    pad = run(2, "validate", folder, "pad")
    for epoch in range(2):
        assert in_turn([rank[epoch] for rank in pad]) == whole(folder, epoch)
    drop = run(2, "validate", folder, "drop")
    for epoch in range(2):
        taken = in_turn([rank[epoch] for rank in drop])
        assert taken == whole(folder, epoch)[: len(taken)]
    wrap = run(2, "validate", folder, "wrap")
    for epoch in range(2):
        taken = in_turn([rank[epoch] for rank in wrap])
        assert {number for batch in taken for number in batch} == set(range(sum(COUNTS)))
    error = run(2, "validate", folder, "error")
    assert error[0] == error[1]
    assert "streams have ended before the others; choose uneven='pad', 'drop' or 'wrap'" in error[0]


def test_a_rank_that_is_killed_is_named_by_the_others(folder: Path) -> None:
    (saw, _) = run(2, "killed", folder, "1")
    assert saw[0] == "TimeoutError"
    assert saw[1].startswith("waited 2 seconds for rank 1 (last came to round ")


def test_the_death_of_the_rank_that_hosts_the_store_is_said(folder: Path) -> None:
    (_, saw) = run(2, "killed", folder, "0")
    assert saw[0] in ("RankError", "TimeoutError")
    assert "rank 0" in saw[1]


@pytest.mark.parametrize("source", ["checkpoint", "file"])
def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_four(folder: Path, source: str) -> None:
    taken = in_turn(run(2, "save", folder, "5"))
    assert len(taken) > 5
    for world_size in (1, 4):
        assert taken + in_turn(run(world_size, "load", folder, source)) == whole(folder)


def test_states_of_other_steps_are_not_joined(folder: Path) -> None:
    made = ranks_child.data(folder)
    states = []
    for steps in (2, 3):
        with made.iter() as it:
            for _ in range(steps):
                next(it)
            states.append(it.state_dict())
    message = r"not saved after one step of one run: state\.position\.next is \d+ in state 0 and \d+ in state 1"
    with pytest.raises(bf.StateError, match=message):
        bf.merge_states(states)
    assert bf.merge_states([states[0]] * 3) == states[0]
    with pytest.raises(ValueError, match="at least one state"):
        bf.merge_states([])
