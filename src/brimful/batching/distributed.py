"""Which data-parallel rank this process is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from brimful.plan.errors import warn_once


class Rank(NamedTuple):
    """A data-parallel rank, and how many there are."""

    rank: int
    world_size: int


def resolve(rank: int | None = None, world_size: int | None = None, group: Any = None) -> Rank:
    """The *data-parallel* rank: from arguments, from a process group or device mesh, else from torch.distributed where it
    is initialised, else from RANK and WORLD_SIZE in the environment, else the only one.

    Raises:
        ValueError: one of rank and world_size without the other, a rank outside the world, or an environment that says
            WORLD_SIZE > 1 and not which RANK.

    >>> resolve(1, 4)
    Rank(rank=1, world_size=4)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together (got rank={rank}, world_size={world_size})")
    if rank is None or world_size is None:
        rank, world_size = _of_group(group) if group is not None else _of_process()
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and below world_size={world_size:,} (got {rank:,})")
    return Rank(rank, world_size)


def in_words(rank: int | None, world_size: int | None) -> str:
    """The rank as it was given; it is not looked up.

    >>> in_words(1, 4), in_words(None, None)
    ('rank 1 of 4', 'rank of this process')
    """
    return "rank of this process" if rank is None else f"rank {rank} of {world_size}"


def check_group(process_group: Any, mesh: Any) -> None:
    """Refuses what says nothing of ranks.

    Raises:
        TypeError: naming the parameter.
    """
    if mesh is not None and not hasattr(mesh, "get_local_rank"):
        raise TypeError(f"mesh takes a device mesh of torch.distributed, such as mesh['dp'] (got {mesh!r})")
    if process_group is not None and not (hasattr(process_group, "size") or hasattr(process_group, "wait")):
        raise TypeError(
            f"process_group takes a group of torch.distributed that this rank is in, or a Store (got {process_group!r})"
        )


def say_split_groups(settings: Mapping[str, Any], world_size: int) -> None:
    """Warns where a step of the ranks does not fit into a group of batches of like cost, as the settings of `Batched` say. A
    balance_cost does nothing for the ranks without groups."""
    balance_group = settings.get("balance_group", 1)
    if (balance_group > 1 or "balance_cost" in settings) and balance_group % world_size:
        alone = "balance_cost is given without balance_group, so the batches of a step differ in cost"
        split = f"balance_group={balance_group} is not a multiple of the {world_size} ranks, so the batches of a step come from "
        warn_once(
            "%s, and ranks wait for the dearest. Give balance_group=%d, or a multiple of all numbers of ranks that you use. "
            "A state keeps its group",
            *(alone if balance_group == 1 else f"{split}several groups", world_size),
        )


def world_size_here() -> int:
    """How many ranks there are, as far as torch.distributed, where it is in use, or the environment says; 1 otherwise."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def _of_group(group: Any) -> tuple[int, int]:
    if hasattr(group, "get_local_rank"):  # a DeviceMesh; of several dimensions, name the data-parallel one: mesh["dp"]
        if group.ndim != 1:
            raise ValueError(
                f"the device mesh has {group.ndim} dimensions; pass the data-parallel one, such as mesh['dp']"
            )
        return group.get_local_rank(), group.size()
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def _of_process() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    world_size = _number("WORLD_SIZE", "1")
    if world_size > 1 and "RANK" not in os.environ:
        raise ValueError(
            f"WORLD_SIZE={world_size} in the environment, but no RANK: give shard(rank=..., world_size=...), a process "
            "group, or initialise torch.distributed first"
        )
    return (_number("RANK", "0") if world_size > 1 else 0), world_size


def _number(name: str, default: str) -> int:
    text = os.environ.get(name, default)
    if not text.strip().isdecimal():
        raise ValueError(
            f"{name} in the environment must be a number (got {text!r}); set it, or give "
            "shard(rank=..., world_size=...)"
        )
    return int(text)
