"""Data-parallel ranks of indexed data, one after another in one process: they need nothing of each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import brimful as bf
from brimful.batching.batch import Batch

WORLDS = (1, 2, 3, 4, 6, 8)


def plans_by_step(batches: bf.Batches, world_size: int, epoch: int = 0, uneven: Any = "pad") -> Iterator[list[Batch]]:
    """What all ranks take as integers, step by step; they must take equally many."""
    ranks = [batches.shard(rank, world_size, uneven=uneven).plans(epoch) for rank in range(world_size)]
    return (list(step) for step in zip(*ranks, strict=True))


def taken_by_worlds(batches: bf.Batches, worlds: Iterable[tuple[int, int]], what: Callable[[Any], Any]) -> list[Any]:
    """`what` of each batch but the fillers, in their global order, over runs of (world size, most steps), each of which goes
    on from the state of the one before; all ranks must come equally far and have one state."""
    state, taken = None, []
    for world_size, most in worlds:
        ranks = [batches.shard(rank, world_size).iter(state) for rank in range(world_size)]
        for _ in range(most):
            step = [next(rank, None) for rank in ranks]
            assert len({batch is None for batch in step}) == 1
            taken += [what(batch) for batch in step if batch is not None and not batch["is_filler"]]
        states = {json.dumps(rank.state_dict()) for rank in ranks}
        assert len(states) == 1, "all ranks have one state"
        state = json.loads(states.pop())
        for rank in ranks:
            rank.close()
    return taken
