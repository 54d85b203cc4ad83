"""A guard on several data-parallel ranks. It cannot see how their gradients are reduced."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch.distributed
from torch import nn

from brimful.core.errors import RankError

Distributed = Literal["ddp", "fsdp"]


def world_size() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def refuse_unsaid(distributed: Distributed | None) -> None:
    """Refuses several ranks if the user did not say how they work together.

    Raises:
        ValueError: with the two ways to say it.
    """
    ranks = world_size()
    if ranks > 1 and distributed is None:
        raise ValueError(
            f"there are {ranks} ranks, and the guard cannot see how their gradients come together: say distributed='ddp' "
            "where steps run under no_sync() and the gradients are reduced once, by you, or distributed='fsdp', where "
            "all ranks agree on the number of parts before each step"
        )


def agreed(count: int, samples: int) -> int:
    """The greatest of the numbers of parts that the ranks want to take, as each forward is a collective of all of them.

    Raises:
        RankError: a rank has fewer samples than that: on all ranks, which is named.
    """
    if world_size() == 1:
        return count
    found: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(found, (count, samples))
    wanted: int = max(parts for parts, _ in found)
    for rank, (_, most) in enumerate(found):
        if most < wanted:
            raise RankError(
                f"a batch must be split into {wanted:,} parts on every rank, as under FSDP each forward gathers the "
                f"parameters from all of them, and rank {rank} has {most:,} samples; take smaller batches"
            )
    return wanted


def reducing_modules(distributed: Distributed | None) -> list[nn.Module]:
    """The DistributedDataParallel modules of this process, which reduce gradients in their backward unless told not to.

    Price: a look at every object, .1 s or so, only under "ddp" with several ranks.
    """
    if distributed != "ddp" or world_size() == 1:
        return []
    wrapper: Any = torch.nn.parallel.DistributedDataParallel
    return [thing for thing in gc.get_objects() if issubclass(type(thing), wrapper)]


@contextmanager
def unsynced(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Refuses, while it lasts, a forward that would reduce gradients in its backward: a rank that runs a batch in parts would
    take part in other collectives than the rest, for ever.

    Raises:
        RuntimeError: from that forward.
    """
    handles = [module.register_forward_pre_hook(_refuse_sync) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_sync(module: Any, inputs: Any) -> None:
    if torch.is_grad_enabled() and module.require_backward_grad_sync:
        raise RuntimeError(
            "a guarded step under distributed='ddp' ran a forward of DistributedDataParallel outside of no_sync(): its "
            "backward reduces gradients, once a part, and ranks with other numbers of parts would wait for ever; call "
            "the guard under model.no_sync(), and reduce the gradients once after it"
        )
