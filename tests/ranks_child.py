"""One of several data-parallel processes: `python -m tests.ranks_child JOB FOLDER ...`, with RANK and WORLD_SIZE set.

Writes what it saw to FOLDER/JOB-world_size-rank.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import brimful as bf
from brimful.loader import Loader

STREAMS = 4


def data(folder: Path) -> bf.Batches:
    """Streams of very unequal length."""
    return bf.from_files(str(folder / "shard-*.jsonl"), streams=STREAMS).shuffle(16).batch_by_tokens(64, window=16)


def one(batch: Any) -> list[int]:
    return [] if batch["is_filler"] else list(batch["id"].tolist())


def in_step(batches: Any) -> Iterator[Any]:
    """Batches, each with a collective, as a step of training has it: who takes fewer than the others makes them hang."""
    for batch in batches:
        dist.all_reduce(torch.ones(1))
        yield batch


def validate(folder: Path, uneven: Any) -> Any:
    """An epoch under a rule, and another one after it; the ranks are those of torch.distributed, a mesh, or a group."""
    world_size = dist.get_world_size()
    groups = {"drop": init_device_mesh("cpu", (world_size,)), "wrap": dist.new_group(list(range(world_size)))}
    seen = []
    for epoch in range(2):
        made = data(folder).shard(group=groups.get(uneven), uneven=uneven, timeout_seconds=30)
        it = made.iter(epoch=epoch)
        try:
            seen.append([one(batch) for batch in in_step(it)])
        except bf.DataError as error:
            return str(error)
    return seen


def killed(folder: Path, victim: str) -> Any:
    """The rank `victim` is killed; what the other says."""
    taken = 0
    try:
        for _ in data(folder).shard(timeout_seconds=2):
            taken += 1
            if dist.get_rank() == int(victim):
                os.kill(os.getpid(), signal.SIGKILL)
    except (TimeoutError, bf.RankError) as error:
        return [type(error).__name__, str(error)]
    return f"ended after {taken} batches"


def loader(folder: Path) -> Loader:
    return data(folder).shard(timeout_seconds=30).loader()


def save(folder: Path, steps: str) -> Any:
    """Some steps, then a checkpoint of torch's, and the states of all ranks joined in a file."""
    made = loader(folder)
    seen = []
    for batch in in_step(made):
        seen.append(one(batch))
        if len(seen) == int(steps):
            break
    dcp.save({"loader": made, "step": torch.tensor(len(seen))}, checkpoint_id=folder / "checkpoint")
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, made.state_dict())
    if dist.get_rank() == 0:
        (folder / "state.json").write_text(json.dumps(bf.merge_states(states)))
    return seen


def load(folder: Path, source: str) -> Any:
    """The rest of the epoch from the checkpoint, or from the file."""
    made = loader(folder)
    if source == "checkpoint":
        dcp.load({"loader": made, "step": torch.tensor(0)}, checkpoint_id=folder / "checkpoint")
    else:
        made.load_state_dict(json.loads((folder / "state.json").read_text()))
    return [one(batch) for batch in in_step(made)]


JOBS: dict[str, Callable[..., Any]] = {"validate": validate, "killed": killed, "save": save, "load": load}


def main() -> None:
    job, folder, *arguments = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    saw = JOBS[job](Path(folder), *arguments)
    (Path(folder) / f"{job}-{world_size}-{rank}.json").write_text(json.dumps(saw))
    os._exit(0)  # without waiting for a rank that was killed


if __name__ == "__main__":
    main()
