"""Which data-parallel rank a process is, by a device mesh with names."""

from __future__ import annotations

import subprocess
import sys

import pytest

MESH = """
import json, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
import brimful as bf

rank, shape, names = json.loads(sys.argv[1])
dist.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
batches = bf.from_sequence([[number] for number in range(8)]).batch(1).shard(mesh=mesh)
print([batch["input_ids"].item() - 0 for batch in batches])
"""


def taken(rank: int, shape: list[int], names: list[str]) -> str:
    import json

    made = subprocess.run(
        [sys.executable, "-c", MESH, json.dumps([rank, shape, names])], capture_output=True, text=True, check=False
    )
    return made.stdout.strip() or made.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("rank", "shape", "names", "found"),
    [
        (5, [4, 2], ["dp", "tp"], "[2, 6]"),  # (2, 1): the third of 4, whatever its place in the second dimension
        (4, [4, 2], ["dp", "tp"], "[2, 6]"),
        (5, [2, 2, 2], ["dp_replicate", "dp_shard", "cp"], "[2, 6]"),  # (1, 0, 1)
        (6, [2, 2, 2], ["pp", "dp_shard", "tp"], "[1, 3, 5, 7]"),  # (1, 1, 0)
        (3, [8], ["anything"], "[3]"),
    ],
)
def test_a_mesh_with_names_says_who_shares_out(rank: int, shape: list[int], names: list[str], found: str) -> None:
    assert taken(rank, shape, names) == found


def test_a_dimension_of_another_name_is_asked_for() -> None:
    assert "the device mesh has the dimensions replicas, tp: 'replicas', which may or may not share" in taken(
        0, [4, 2], ["replicas", "tp"]
    )
    assert "none that shares batches out" in taken(0, [4, 2], ["pp", "tp"])
