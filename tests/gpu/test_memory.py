"""On a device: what a loader learns from the steps that its batches were run by.

    .venv/bin/pytest tests/gpu

Skipped where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful.memory import MemoryModel
from brimful.memory.device import StepPeaks
from tests import tokenizers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BYTES_A_SLOT = 1 << 16


def run(batch: dict[str, Any]) -> None:
    """A step whose peak is known: so many bytes for each slot, in a block that is the allocator's own size (2 MB)."""
    torch.empty(batch["input_ids"].numel() * BYTES_A_SLOT, dtype=torch.uint8, device="cuda")


def test_the_peak_between_two_calls_is_the_allocators_and_none_where_nothing_ran() -> None:
    peaks, held = StepPeaks(), torch.zeros(1 << 20, device="cuda")
    peaks.begin()
    assert peaks.end() is None
    peaks.begin()
    scratch = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    del scratch
    found = peaks.end()
    assert found == torch.cuda.memory_allocated() + (1 << 26)
    assert found > held.nbytes


def test_a_loader_learns_until_memory_runs_out() -> None:
    """In a process of its own, so that nothing else is on the device."""
    root = Path(__file__).parents[2]
    code = "from tests.gpu import test_memory; test_memory.learn_until_memory_runs_out()"
    env = {**os.environ, "PYTHONPATH": f"{Path(bf.__file__).parents[1]}{os.pathsep}{root}"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, cwd=root, env=env)


def learn_until_memory_runs_out() -> None:
    torch.zeros(1, device="cuda")
    shapes = [(batch, length) for batch in (1, 4, 16) for length in (4, 16, 64)]
    model = MemoryModel.fit(shapes, [10_000 + batch * length * BYTES_A_SLOT * 2 for batch, length in shapes])
    texts = ["word " * (1 + number % 40) for number in range(400)]
    loader: Any = bf.build_dynamic_batch_dataloader(texts, tokenizers.bert(), 4, 64, num_workers=0, memory_model=model)
    found = []
    for batch in loader:
        run(batch)
        found.append(batch["input_ids"].shape)
    assert sum(rows for rows, _ in found) == 400
    learnt = loader.memory_model
    assert len(learnt.margin) == len(model.margin) + len(found)
    rows, length = found[0]
    assert learnt.predict(rows, length) < 0.8 * model.predict(rows, length)
    for number, batch in enumerate(loader):
        if number == 2:
            before = len(loader.memory_model.margin)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        run(batch)
    assert len(loader.memory_model.margin) == before
