"""On a device: values are right while buffers turn over, copies hide behind compute, nobody waits on the host.

    .venv/bin/pytest tests/gpu

Skipped where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import brimful as bf

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

ROWS, LENGTH = 64, 2_048


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": torch.full((ROWS, LENGTH), number), "name": f"batch {number}"} for number in range(count)]


def busy(milliseconds: int) -> None:
    """Keeps the current stream busy."""
    torch.cuda._sleep(milliseconds * 1_000_000)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 8])
@pytest.mark.parametrize("static_buffers", [False, True])
def test_values_are_right_while_a_kernel_runs_long_and_buffers_turn_over(prefetch: int, static_buffers: bool) -> None:
    """The host runs far ahead of the device: a buffer that came back too early would hold a later batch's values."""
    sums = []
    for batch in bf.AsyncLoader(numbered(200), "cuda", prefetch=prefetch, static_buffers=static_buffers):
        busy(2)
        sums.append(batch["input_ids"].sum())
        scratch = torch.full((ROWS, LENGTH), -1, device="cuda")  # wants the memory of batches that were dropped
        del batch, scratch
    assert torch.stack(sums).tolist() == [number * ROWS * LENGTH for number in range(200)]


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_what_a_loader_fills_again_on_the_device_is_seen_as_it_was(prefetch: int) -> None:
    class Again:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64, device="cuda")
            for number in range(100):
                yield {"input_ids": ids.fill_(number)}

    sums = []
    for batch in bf.AsyncLoader(Again(), "cuda", prefetch=prefetch):
        sums.append(batch["input_ids"].sum())
        busy(2)
    assert torch.stack(sums).tolist() == [number * ROWS * LENGTH for number in range(100)]


def test_batches_used_on_another_stream_are_kept_for_it() -> None:
    side = torch.cuda.Stream()
    sums = []
    with torch.cuda.stream(side):
        for batch in bf.AsyncLoader(numbered(100), "cuda"):
            busy(2)
            sums.append(batch["input_ids"].sum())
    side.synchronize()
    assert torch.stack(sums).tolist() == [number * ROWS * LENGTH for number in range(100)]


@pytest.mark.parametrize("pad_on_device", [False, True])
def test_batches_are_those_of_the_cpu(pad_on_device: bool) -> None:
    data = bf.from_sequence([{"input_ids": [i] * (1 + i % 97), "labels": [i] * (1 + i % 97)} for i in range(2_000)])
    batches = data.batch_by_tokens(1_024, window=500)
    for here, there in zip(batches, batches.to_device("cuda", pad_on_device=pad_on_device), strict=True):
        assert list(here) == list(there)
        for name, tensor in here.items():
            assert there[name].device.type == "cuda"
            assert torch.equal(there[name].cpu(), tensor)


def test_nested_tensors_arrive_whole() -> None:
    data = bf.from_sequence([{"input_ids": [i] * (1 + i % 9)} for i in range(200)])
    batches = data.batch_by_tokens(64, window=50, layout="nested")
    for here, there in zip(batches, batches.to_device("cuda"), strict=True):
        busy(1)
        assert torch.equal(there["input_ids"].values().cpu(), here["input_ids"].values())
        assert torch.equal(there["input_ids"].offsets().cpu(), here["input_ids"].offsets())


def test_the_device_holds_a_few_batches_and_no_more() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for batch in bf.AsyncLoader(numbered(300), "cuda", prefetch=2):
        batch["input_ids"].sum()
    size = ROWS * LENGTH * 8
    assert torch.cuda.max_memory_allocated() - before <= 6 * size + (1 << 20)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_the_host_is_never_made_to_wait() -> None:
    try:
        torch.cuda.set_sync_debug_mode("error")
        for batch in bf.AsyncLoader(numbered(20), "cuda"):
            batch["input_ids"].add_(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_graph_a_shape_replays_on_static_buffers() -> None:
    data = bf.from_sequence([{"input_ids": [i] * (1 + i % 50)} for i in range(1_000)])
    batches = data.batch(bf.StaticShapes([10, 25, 50], 500), window=1_000).to_device("cuda", static_buffers=True)
    graphs: dict[Any, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def step(batch: Any) -> torch.Tensor:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if ids.shape not in graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total = (ids * mask).sum()
            graphs[ids.shape] = graph, total
        graph, total = graphs[ids.shape]
        graph.replay()
        return total.clone()

    bf.warm_up(step, batches)
    assert len(graphs) == 3
    for batch in batches:
        assert step(batch).item() == (batch["input_ids"] * batch["attention_mask"]).sum().item()
    assert len(graphs) == 3
