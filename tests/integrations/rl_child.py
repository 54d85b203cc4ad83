"""Data-parallel processes that cut their own samples into micro batches: the jobs of their ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from brimful.integrations.rl import rearrange_micro_batches
from tests.forks import serve


def indices(_folder: Path, lengths: list[list[int]], settings: dict[str, Any]) -> Any:
    """The samples of each micro batch of this rank, or the error."""
    dist.init_process_group("gloo")
    try:
        rows = [[0] * length for length in lengths[dist.get_rank()]]
        return rearrange_micro_batches({"input_ids": rows}, dp_group=dist.group.WORLD, **settings)[1]
    except ValueError as error:
        return str(error)  # the group is not destroyed: with torch 2.6 that waits without end for a rank that is gone


if __name__ == "__main__":
    serve({"indices": indices}, "torch.distributed")
