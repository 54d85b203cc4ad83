"""Which data-parallel rank this process is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from brimful.plan.errors import warn_once


class Placement(NamedTuple):
    """Who of the data-parallel ranks gets a batch: this one, of so many."""

    data_rank: int
    data_ranks: int


@dataclass(frozen=True)
class Ranks:
    """The data-parallel ranks as a user gives them; they are looked up when batches are wanted.

    Args:
        rank, world_size: both, or neither.
        group: where these are not given: a process group, or a device mesh. Beside them a Store through which ranks agree.
    """

    rank: int | None = None
    world_size: int | None = None
    group: Any = None

    @property
    def here(self) -> Placement:
        """That of this process: see `resolve`."""
        return resolve(self.rank, self.world_size, self.group)

    def __str__(self) -> str:
        return "rank of this process" if self.rank is None else f"rank {self.rank} of {self.world_size}"


def resolve(rank: int | None = None, world_size: int | None = None, group: Any = None) -> Placement:
    """The *data-parallel* rank: from arguments, from a process group or device mesh, else from torch.distributed where it
    is initialised, else from RANK and WORLD_SIZE in the environment, else the only one.

    Raises:
        ValueError: one of rank and world_size without the other, a rank outside the world, a mesh with dimensions of other names,
            or an environment that says WORLD_SIZE > 1 and not which RANK.

    >>> resolve(1, 4)
    Placement(data_rank=1, data_ranks=4)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together (got rank={rank}, world_size={world_size})")
    if rank is None or world_size is None:
        rank, world_size = _of_group(group) if group is not None else _of_process()
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and below world_size={world_size:,} (got {rank:,})")
    return Placement(rank, world_size)


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
    """Warns where a step of the ranks does not fit into a group of batches of like cost, as the settings of `PlannedWindows` say.
    A balance_cost does nothing for the ranks without groups."""
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
    if (dist := _initialised()) is not None:
        return int(dist.get_world_size())
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def _initialised() -> Any:
    """torch.distributed, where it is initialised; whoever has not imported it has not."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


DATA_DIMS: Final = (
    "dp",
    "ddp",
    "fsdp",
    "hsdp",
    "data",
    "data_parallel",
    "dp_replicate",
    "dp_shard",
    "replicate",
    "shard",
    "batch",
)
"""Names of the dimensions of a mesh over which batches are shared out, as trainers use them."""
MODEL_DIMS: Final = (
    "tp",
    "cp",
    "pp",
    "ep",
    "sp",
    "etp",
    "model",
    "tensor",
    "context",
    "pipeline",
    "expert",
    "sequence",
)
"""Those whose ranks work on the same batches."""


def _of_group(group: Any) -> tuple[int, int]:
    if hasattr(group, "get_local_rank"):
        return _of_mesh(group)
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def _of_mesh(mesh: Any) -> tuple[int, int]:
    """The rank in all dimensions over which data are shared out, the first one outermost; in a single one, whatever its name."""
    if mesh.ndim == 1:
        return mesh.get_local_rank(), mesh.size()
    names = tuple(mesh.mesh_dim_names or ())
    unknown = [name for name in names if name not in DATA_DIMS + MODEL_DIMS]
    if unknown or not any(name in DATA_DIMS for name in names):
        said = f"{unknown[0]!r}, which may or may not share batches out" if unknown else "none that shares batches out"
        raise ValueError(
            f"the device mesh has the dimensions {', '.join(names) or mesh.ndim}: {said}. Pass the data-parallel one, such as "
            f"mesh['dp'], or name it one of {', '.join(DATA_DIMS)}"
        )
    rank, world_size = 0, 1
    for number, name in enumerate(names):
        if name in DATA_DIMS:
            rank, world_size = rank * mesh.size(number) + mesh.get_local_rank(number), world_size * mesh.size(number)
    return rank, world_size


def _of_process() -> tuple[int, int]:
    if (dist := _initialised()) is not None:
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
