"""Windows to batches: the plan of each window, its batches in a random order."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful import random
from brimful.errors import require
from brimful.plan import Plan
from brimful.planners import Planner
from brimful.rows import check_replay
from brimful.stream import END, Stage, State, place, running
from brimful.windows import Batch, Window


@dataclass(frozen=True)
class Batched(Stage[Batch]):
    """Each window's plan, batch by batch.

    `group` > 1 shuffles batches in aligned groups of that many neighbours in cost, so that the ranks of one step do
    equal work. State: [windows' state before the window, batches of it handed on, its crc32].
    """

    upstream: Stage[Window]
    planner: Planner
    drop_last: bool
    shuffle_batches: bool
    group: int
    seed: int

    def __post_init__(self) -> None:
        require("group", self.group, 1, "batch")

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0]

    def items(self, at: State) -> Generator[tuple[Batch, State], None, None]:
        before, done, crc = at
        here = place(self)
        with running(self.upstream, before) as windows:
            for window, after in windows:
                if done:
                    check_replay("Batched", window.crc32, crc, f"window {window.number}")
                plan = self.planner.plan(window, first=not done)
                key = random.key(self.seed, here, window.epoch, window.number)
                order = self._order(plan, after == END, key)
                while done < len(order):
                    batch = plan_batch(window, plan, int(order[done]))
                    done += 1
                    if done < len(order):
                        yield batch, [before, done, window.crc32]
                    else:
                        yield batch, END if after == END else [after, 0, 0]
                before, done = after, 0

    def _order(self, plan: Plan, last: bool, key: int) -> NDArray[np.int64]:
        """The order of a plan's batches, without the incomplete ones where they are not wanted."""
        order = np.arange(len(plan))
        if self.shuffle_batches:
            groups = random.permutation(-(-len(plan) // self.group), key)
            order = (groups[:, None] * self.group + np.arange(self.group)).ravel()
            order = order[order < len(plan)]
        if self.drop_last:
            order = order[self.planner.complete(plan, last)[order]]
        return order


def plan_batch(window: Window, plan: Plan, number: int) -> Batch:
    """One batch of a window's plan."""
    length = plan.padded_lengths[number]
    padded = int(length) if length.ndim == 0 else tuple(int(one) for one in length)
    return Batch(window, plan.batches[number], padded, int(plan.padded_sizes[number]))
