"""Windows to batches: each window's plan, its batches in a random order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import Batch, PlannedBatches
from brimful.batching.labels import LabelsFollow
from brimful.batching.planners import BatchPlanner
from brimful.batching.sharded import Sharded
from brimful.batching.window import PlanningWindow
from brimful.batching.windows import parts_of_windows
from brimful.core import random
from brimful.core.errors import count, settle
from brimful.core.once import once
from brimful.core.repeat import Waiting
from brimful.core.stage import Lane, Stage, State, place, running, runtime
from brimful.plan import low_discrepancy_order

T = TypeVar("T")

ShuffleBatches = Literal[True, False, "stratified"]


def check_shuffle(value: Any) -> ShuffleBatches:
    """Checks the order that a user wants for batches.

    Raises:
        ValueError: for another word.
    """
    if value not in get_args(ShuffleBatches):
        raise ValueError(f"shuffle_batches must be True, False or 'stratified' (got {value!r})")
    return "stratified" if isinstance(value, str) else bool(value)


@dataclass(frozen=True)
class Batched(Stage[Batch]):
    """Each window's plan, batch by batch.

    `shuffle_batches` is True for a random order, "stratified" for one of which every stretch covers short and long batches
    alike. `balance_group` > 1 keeps aligned groups of that many neighbours in cost together, so that the ranks of one step do
    equal work; of streams, which ranks share out, a stratified order has neighbours of so many streams. State: see
    `parts_of_windows`, in batches.
    """

    verb = ""

    upstream: Stage[PlanningWindow]
    planner: BatchPlanner
    drop_last: bool
    shuffle_batches: ShuffleBatches
    balance_group: int
    seed: int
    lane: Lane | None = runtime(None)
    labels_follow: LabelsFollow = runtime(LabelsFollow())

    def __post_init__(self) -> None:
        settle(self, "balance_group", 1, "batch")
        settle(self, "seed", None)

    @property
    def label(self) -> str:
        return self.planner.verb

    def settings(self) -> dict[str, Any]:
        order: dict[str, Any] = {"drop_last": self.drop_last, "shuffle_batches": self.shuffle_batches}
        if self.shuffle_batches:
            order |= {"balance_group": self.balance_group, "seed": self.seed}
        return {**self.planner.settings(), **order}

    def stream(self, number: int, count: int) -> Batched:
        own = self.over(self.upstream.stream(number, count))
        return replace(own, seed=random.key(self.seed, number), lane=Lane(number, count, self.seed))

    def num_items(self, most: int | None = None) -> int | None:
        """Price: that of planning an epoch, of indexed data; None of others."""
        if self.upstream.streamed_by or self.upstream.endless:
            return None
        with running(self, self.start(0)) as batches:
            return sum(1 for _ in islice(batches, most))

    def sharded(self, **how: Any) -> Sharded:
        how.pop("timeout_seconds", None)  # ranks that share an index wait for nobody
        return Sharded(self, **how, streamed=self.streamed_by, labels_follow=self.labels_follow)

    def shapes(self) -> list[tuple[int, ...]] | None:
        return self.planner.shapes()

    @property
    def planned(self) -> Stage[Batch]:
        return self

    limited = planned

    @once
    def over_epochs(self) -> Stage[Batch] | None:
        """Batches in arrival order fill up with what comes next, if of another epoch; what is sorted or shuffled stays in one."""
        windows = self.upstream.over_epochs if self.planner.in_order and not self.shuffle_batches else None
        return None if windows is None else replace(self, upstream=windows)

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0]

    def items(self, at: State) -> Generator[tuple[Batch, State], None, None]:
        def batches(plan: PlannedBatches, order: NDArray[np.int64], done: int) -> Iterator[tuple[Batch, int]]:
            planned = plan.part(order)
            for number in range(done, len(planned)):
                last = number + 1 == len(planned)
                yield planned.batch(number, last), 0 if last else number + 1

        yield from self.parts(at, batches)

    def parts(
        self, at: State, parts: Callable[[PlannedBatches, NDArray[np.int64], int], Iterator[tuple[T, int]]]
    ) -> Generator[tuple[T, State], None, None]:
        """The parts that `parts` makes of the batches of each window and their order; see `parts_of_windows`."""
        here = place(self)
        waiting = Waiting()

        def of_window(window: PlanningWindow, done: int, last: bool) -> Iterator[tuple[T, int]]:
            key = random.key(self.seed, here, window.epoch, window.number)
            planned = self.planner.batches(window, key, first=not done)
            order = self._order(planned, window, key, last=last, first=not done)
            waiting.got(len(order))
            return parts(planned, order, done)

        yield from parts_of_windows(self.upstream, at, of_window)

    def _order(
        self, batches: PlannedBatches, window: PlanningWindow, key: int, *, last: bool, first: bool
    ) -> NDArray[np.int64]:
        """The order of a plan's batches, without the incomplete ones where they are not wanted."""
        if self.shuffle_batches == "stratified":
            order = self._stratified(len(batches), window, key)
        elif self.shuffle_batches:
            order = _in_groups(
                random.permutation(-(-len(batches) // self.balance_group), key), self.balance_group, len(batches)
            )
        else:
            order = np.arange(len(batches))
        if self.drop_last:
            complete = self.planner.complete(batches, last)
            order = order[complete[order]]
            if first and not complete.all():
                incomplete = batches.part(np.flatnonzero(~complete))
                left_out = sum(incomplete.num_samples)
                count(
                    "dropped", left_out, f"drop_last: {left_out:,} samples of a window are in no batch that is complete"
                )
                count("dropped_tokens", sum(incomplete.num_tokens))
        return order

    def _stratified(self, count: int, window: PlanningWindow, key: int) -> NDArray[np.int64]:
        if self.lane is None:
            return _in_groups(low_discrepancy_order(-(-count // self.balance_group), key), self.balance_group, count)
        shared = random.key(self.lane.seed, place(self), window.epoch, window.number)
        steps = max(1, self.lane.lanes // self.balance_group)
        return low_discrepancy_order(
            count, shared, first=self.lane.number // self.balance_group, step=steps, own_key=key
        )


def _in_groups(groups: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Groups of so many numbers, below `count`, in the order given."""
    order = (groups[:, None] * size + np.arange(size)).ravel()
    return order[order < count]
