"""How many batches there are, where it is known before they are made."""

from __future__ import annotations

from itertools import islice
from typing import Any

from brimful.core.repeat import Repeat
from brimful.core.stream import Stage, running, upstreams
from brimful.core.take_items import TakeItems
from brimful.steps.batched import Batched
from brimful.steps.round_robin import RoundRobin
from brimful.steps.sharded import Sharded
from brimful.windows.planned import Planned


def num_items(stage: Stage[Any], most: int | None = None) -> int | None:
    """How many items a stage of batches has, where indexed data say it; counted up to `most`, and planned no further."""
    if isinstance(stage, RoundRobin):
        return None
    below = upstreams(stage)[0]
    if isinstance(stage, Batched):
        if not isinstance(below, Planned) or below.upstream.count is None:
            return None
        with running(stage, stage.start(0)) as batches:
            return sum(1 for _ in islice(batches, most))
    if isinstance(stage, Repeat):
        return most
    if isinstance(stage, Sharded):
        length = num_items(below, None if most is None else most * stage.num_ranks)
        return None if length is None else stage.num_steps(length)
    if isinstance(stage, TakeItems):
        return num_items(below, stage.n if most is None else min(stage.n, most))
    return num_items(below, most)
