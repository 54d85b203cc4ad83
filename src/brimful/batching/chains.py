"""Chains of batches rewritten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brimful.batching.batched import Batched
from brimful.batching.round_robin import RoundRobin
from brimful.batching.sharded import Sharded
from brimful.core.facts import facts_of
from brimful.core.stage import Stage, with_inputs


def sharded(stage: Stage[Any], *, timeout_seconds: float, **how: Any) -> Stage[Any]:
    """The batches of one data-parallel rank: rank, world_size, process_group, uneven."""
    if isinstance(stage, Batched):
        found = facts_of(stage)  # ranks that share an index wait for nobody
        return Sharded(stage, **how, streamed="" if found.from_index else found.streamed_by)
    if isinstance(stage, RoundRobin):
        return replace(stage, is_sharded=True, timeout_seconds=timeout_seconds, **how)
    below = sharded(stage.inputs[0], timeout_seconds=timeout_seconds, **how)
    return below if isinstance(stage, Sharded) else with_inputs(stage, below)
