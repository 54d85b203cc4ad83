"""Data-parallel processes: the jobs of their ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import brimful as bf
from brimful.batching import rendezvous
from brimful.batching.batch import Uneven
from brimful.core import run
from brimful.loader import Loader
from tests.forks import serve

STREAMS = 4


def data(folder: Path) -> bf.Batches:
    """Streams of very unequal length."""
    return bf.from_files(str(folder / "shard-*.jsonl"), streams=STREAMS).shuffle(16).batch_by_tokens(64, window=16)


def mixture() -> bf.Dataset:
    """Two shuffled, filtered sources two to one, and shuffled once more."""
    sources = []
    for first, count in ((0, 150), (1000, 90)):
        lengths = np.random.default_rng(first).integers(1, 60, count).tolist()
        rows = [{"id": first + row, "input_ids": [first + row] * length} for row, length in enumerate(lengths)]
        sources.append(bf.from_sequence(rows, shuffle=True).filter(lambda sample: sample["id"] % 7 != 3))
    return bf.interleave_datasets(sources, weights=[2, 1], stop="all").shuffle(64)


def batches(kind: str, folder: Path) -> bf.Batches:
    if kind == "streams":
        return data(folder)
    if kind == "buckets":
        return mixture().batch(bf.StaticShapes([10, 30, 60], 120), window=64, balance_group=2)
    return mixture().pack(64, rows=2, window=40)


def one(batch: Any) -> list[int]:
    """The samples of a batch; of packed rows their tokens, one a sample."""
    if batch["is_filler"]:
        return []
    return list(dict.fromkeys(batch["input_ids"].flatten().tolist())) if "cu_seqlens" in batch else batch["id"].tolist()


def in_step(batches: Any) -> Iterator[Any]:
    """Batches, each with a collective, as a step of training has it: who takes fewer than the others makes them hang."""
    for batch in batches:
        dist.all_reduce(torch.ones(1))
        yield batch


def validate(folder: Path) -> Any:
    """Under each rule an epoch and another one after it; the ranks are those of torch.distributed, a mesh, or a group."""
    world_size = dist.get_world_size()
    groups = {"drop": init_device_mesh("cpu", (world_size,)), "wrap": dist.new_group(list(range(world_size)))}
    return {uneven: epochs(folder, uneven, groups.get(uneven)) for uneven in get_args(Uneven)}


def epochs(folder: Path, uneven: Any, group: Any) -> Any:
    seen = []
    for epoch in range(2):
        it = data(folder).shard(process_group=group, uneven=uneven, timeout_seconds=30).iter(epoch=epoch)
        try:
            seen.append([one(batch) for batch in in_step(it)])
        except bf.DataError as error:
            return str(error)
    return seen


def killed(folder: Path, victim: str) -> Any:
    """The rank `victim` is killed; what the other says."""
    taken = 0
    try:
        for _ in data(folder).shard(timeout_seconds=4):
            taken += 1
            if dist.get_rank() == int(victim):
                os.kill(os.getpid(), signal.SIGKILL)
    except (TimeoutError, bf.RankError) as error:
        return [type(error).__name__, str(error)]
    return f"ended after {taken} batches"


held: list[Any] = []


def ends(folder: Path) -> Any:
    """Rank 1 ends as after an error in its training loop, with its iterator still there; what the other says."""
    held.append(data(folder).shard().iter())
    try:
        for _ in held[0]:
            if dist.get_rank() == 1:
                sys.exit(1)
    except bf.RankError as error:
        return str(error)
    return "no error"


def stuck(folder: Path) -> Any:
    """Rank 0, which hosts the store, is stopped; what the other says."""
    pids: list[Any] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    rendezvous._GRACE = run.JOIN_SECONDS = 0.5  # type: ignore[misc]
    try:
        for _ in data(folder).shard(timeout_seconds=4):
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
    except (TimeoutError, bf.RankError) as error:
        os.kill(pids[0], signal.SIGKILL)
        return [type(error).__name__, str(error)]
    return "no error"


def loader(kind: str, folder: Path) -> Loader:
    return batches(kind, folder).shard(timeout_seconds=30).loader()


def save(folder: Path, kind: str, steps: str) -> Any:
    """Some steps, then a checkpoint of torch's, and the states of all ranks joined in a file."""
    made = loader(kind, folder)
    seen = []
    for batch in in_step(made):
        seen.append(one(batch))
        if len(seen) == int(steps):
            break
    from torch.distributed import checkpoint

    checkpoint.save({"loader": made, "step": torch.tensor(len(seen))}, checkpoint_id=folder / "checkpoint")
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, made.state_dict())
    if dist.get_rank() == 0:
        (folder / "state.json").write_text(json.dumps(bf.merge_states(states)))
    return seen


def load(folder: Path, kind: str, source: str) -> Any:
    """The rest of the epoch from the checkpoint, or from the file."""
    made = loader(kind, folder)
    if source == "checkpoint":
        from torch.distributed import checkpoint

        checkpoint.load({"loader": made, "step": torch.tensor(0)}, checkpoint_id=folder / "checkpoint")
    else:
        made.load_state_dict(json.loads((folder / "state.json").read_text()))
    return [one(batch) for batch in in_step(made)]


def interrupted(folder: Path, victim: str) -> Any:
    """The rank `victim` gets Ctrl-C while it waits for the other one to begin, and goes on."""
    rank, seen, interrupts = dist.get_rank(), [], 0
    it = data(folder).shard(timeout_seconds=30).iter()
    dist.barrier()
    if rank == int(victim):
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    else:
        time.sleep(1.5)
    while True:
        try:
            for batch in it:
                seen.append(one(batch))
            return [seen, interrupts]
        except KeyboardInterrupt:
            interrupts += 1


def refuses(folder: Path, how: str) -> Any:
    """Rank 1 gets a state that it refuses, and ends; what the other one says, which would wait for ten minutes."""
    if how == "load_state_dict":  # of other verbs
        state = [data(folder), data(folder).take(9)][dist.get_rank()].shard().loader()
        next(iter(state))
    else:
        state = data(folder).shard().iter()
        next(state)
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state.state_dict())
    made = data(folder).shard(timeout_seconds=600)
    try:
        if how == "load_state_dict":
            loader = made.loader()
            loader.load_state_dict(states[dist.get_rank()])
            next(iter(loader))
        else:
            next(made.iter(states[0]))
    except (bf.StateError, bf.RankError) as error:
        return [type(error).__name__, str(error)]
    return "no error"


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (validate, killed, ends, stuck, save, load, interrupted, refuses)
}


def ranked(job: Callable[..., Any]) -> Callable[..., Any]:
    """A job of a rank that knows the others."""

    def run(folder: Path, *arguments: str) -> Any:
        dist.init_process_group("gloo")
        return job(folder, *arguments)

    return run


if __name__ == "__main__":
    serve({name: ranked(job) for name, job in JOBS.items()}, "torch.distributed.checkpoint", alone=True)
