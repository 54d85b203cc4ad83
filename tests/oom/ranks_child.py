"""Two data-parallel processes with guarded steps: `python -m tests.oom.ranks_child FOLDER` writes what each rank saw."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from brimful.memory import SimulatedOOM, oom_guard

RANKS = 2


def said(fn: Callable[[], Any]) -> str:
    try:
        return repr(fn())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def ddp(rank: int) -> dict[str, Any]:
    """Rank 1 is out of memory and splits, rank 0 does not; gradients are reduced once. The model is wrapped late."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False).double()
    wrapped: nn.Module = model
    device = SimulatedOOM(1 << 20)

    def step(batch: dict[str, torch.Tensor], scale: float) -> None:
        (wrapped(device(batch["x"])).square().mean() * scale).backward()

    guard = oom_guard(step, parameters=model.parameters(), distributed="ddp")
    batch = {"x": torch.arange(8.0, dtype=torch.float64).reshape(4, 2) + rank}
    guard(batch)
    model.zero_grad()
    device.limit = 1 << 20 if rank == 0 else 4
    wrapped = DistributedDataParallel(model)
    synced = said(lambda: guard(batch))
    with wrapped.no_sync():
        guard(batch)
    dist.all_reduce(model.weight.grad)
    counted = said(lambda: guard({**batch, "labels": torch.ones(4), "num_items_on_rank": 8}))
    return {"synced": synced, "gradient": model.weight.grad.tolist(), "ooms": guard.stats.ooms, "counted": counted}


def fsdp(rank: int) -> dict[str, Any]:
    """Rank 1 has learnt to split; each forward is a collective."""
    device = SimulatedOOM(1 << 20)
    forwards = 0

    def step(batch: dict[str, torch.Tensor], scale: float) -> None:
        nonlocal forwards
        device.check(batch["x"])
        dist.all_reduce(torch.ones(1))
        forwards += 1

    guard = oom_guard(step, parameters=[], distributed="fsdp")
    if rank == 1:
        guard.load_state_dict({"version": 1, "limits": [["samples", 2, [3]]]})
    guard({"x": torch.zeros(4 + 2 * rank, 3)})
    few = said(lambda: guard({"x": torch.zeros(1 if rank == 0 else 8, 3)}))
    device.limit = 0
    return {
        "forwards": forwards,
        "few": few,
        "oom": said(lambda: guard({"x": torch.zeros(8, 3)})),
        "learnt": guard.state_dict(),
    }


def rank_of(rank: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
    unsaid = said(lambda: oom_guard(lambda batch, scale: None))
    saw = {"unsaid": unsaid, "ddp": ddp(rank), "fsdp": fsdp(rank)}
    (folder / f"{rank}.json").write_text(json.dumps(saw))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    children = []
    for number in range(RANKS):
        child = os.fork()
        if not child:
            rank_of(number, Path(sys.argv[1]))
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children))
