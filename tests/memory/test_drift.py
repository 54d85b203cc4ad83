"""A device that holds less and less: what a guard, and a policy that learns from it, make of that."""

from __future__ import annotations

from typing import Any

import numpy as np

import brimful as bf
from brimful.memory import SimulatedOOM, oom_guard

SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (16, 64, 256) if batch * length <= 2048]
BATCHES = 1_000
EPOCH = 1_000


def run(*, learn: bool) -> tuple[int, int, float]:
    """How often memory ran out, how many batches were split, and the share of the device that was used. Each sample comes
    once an epoch."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(40), 0.7, EPOCH), 4, 256).astype(int).tolist()
    rows = [{"id": row, "input_ids": [1] * length} for row, length in enumerate(lengths)]
    model = bf.MemoryModel.fit(SHAPES, [1e6 + 1000 * batch * length for batch, length in SHAPES])
    policy = bf.MemoryBudget(model, 1e6 + 1000 * 1_000, learn=learn)
    batches = bf.from_sequence(rows, shuffle=True, repeat=True).batch(policy, window=250).take(BATCHES)
    device = SimulatedOOM(0)
    ran: list[int] = []
    seen: list[int] = []
    used = 0.0

    def step(part: Any, scale: float) -> None:
        if int(part["id"][0]) == first:  # of a run that may have begun anew
            ran.clear()
        device(part["input_ids"])
        ran.extend(part["id"].tolist())

    with batches.iter() as it:
        guard = oom_guard(step, parameters=[], learn=it.learn if learn else None)
        for number, batch in enumerate(it):
            first = int(batch["id"][0])
            device.limit = int(1_000 - 375 * number / BATCHES + random.integers(-25, 25))
            before = guard.stats.ooms, guard.stats.split
            guard(batch)
            assert ran == batch["id"].tolist(), "each sample once, in order, in the run that counts"
            seen += ran
            slots = batch["input_ids"].numel()
            used += slots / device.limit
            if learn and (guard.stats.ooms, guard.stats.split) == before:
                it.learn(batch, 1e6 + 1000 * slots)  # as a guard does on a GPU
    for at in range(0, len(seen) - EPOCH + 1, EPOCH):
        assert sorted(seen[at : at + EPOCH]) == [*range(EPOCH)]
    return guard.stats.ooms, guard.stats.split, used / BATCHES


def test_what_runs_out_of_a_drifting_memory_is_planned_smaller() -> None:
    """A guard alone runs most batches in parts in the end; what is planned smaller seldom needs that, though the peaks that are
    told say that all is well."""
    alone, split_alone, _ = run(learn=False)
    ooms, split, used = run(learn=True)
    assert ooms < 1.5 * alone
    assert split < split_alone / 3
    assert used > 0.8
