"""Loaders in checkpoints of torch.distributed.checkpoint. (Of several processes: tests/batching/test_rendezvous.py.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

import brimful as bf
from tests.integrations.unequal import batches, one, write_shards

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is .*unavailable or uninitialized:UserWarning",
    "ignore:TypedStorage is deprecated:UserWarning",  # PyTorch 2.6's own
)

LOADERS: dict[str, Any] = {
    "streamed": lambda folder: batches("streamed", folder).loader(),
    "indexed": lambda folder: batches("indexed", folder).loader(),
    "steps": lambda folder: batches("streamed", folder).loader(steps_per_epoch=7),
    "ahead": lambda folder: bf.AsyncLoader(LOADERS["streamed"](folder), "cpu"),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("taken", [0, 1, 6, 14])
def test_a_checkpoint_of_a_loader_goes_on_from_its_place(tmp_path: Path, kind: str, taken: int) -> None:
    write_shards(tmp_path)
    loader = LOADERS[kind](tmp_path)
    seen = [one(batch) for _ in range(3) for batch in loader]
    loader = LOADERS[kind](tmp_path)
    given = (batch for _ in range(3) for batch in loader)
    for _ in zip(range(taken), given):
        pass
    checkpoint.save({"loader": loader, "step": torch.tensor(taken)}, checkpoint_id=tmp_path / "saved")
    again = LOADERS[kind](tmp_path)
    checkpoint.load({"loader": again, "step": torch.tensor(0)}, checkpoint_id=tmp_path / "saved")
    rest: list[list[int]] = []
    while len(rest) < len(seen) - taken:
        rest += [one(batch) for batch in again]
    assert rest == seen[taken:]
