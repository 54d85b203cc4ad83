"""Windows to batches: each window's plan, its batches in a random order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeVar, get_args
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import Batch, PlannedBatches, apart
from brimful.batching.facts import BatchFacts
from brimful.batching.labels import LabelsFollow
from brimful.batching.planners import BatchPlanner
from brimful.batching.window import PlanningWindow
from brimful.batching.windows import parts_of_windows
from brimful.core.counters import Counts, add_counts, count, counting
from brimful.core.counters import apart as counts_apart
from brimful.core.facts import Facts, following, rng_slot
from brimful.core.header import described
from brimful.core.repeat import EmptyEpochGuard
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, StreamId, not_in_state, running
from brimful.plan import random
from brimful.plan.balancing import in_turns
from brimful.plan.budget import SampleCost
from brimful.plan.errors import StateError, check_bool, check_count, logger
from brimful.plan.mix import low_discrepancy_order
from brimful.tables.describe import written
from brimful.tables.origins import where

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


def _count_empty(batches: PlannedBatches, asked: bool) -> None:
    """Says once that there are batches without a token, as of blank lines. Where all are, lengths must be `asked` for."""
    if batches.window.lengths.all():
        return
    empty = np.flatnonzero(np.array(batches.num_tokens) == 0)
    if 0 < len(empty) < len(batches) + asked:
        window, samples = batches.window, batches.part(empty).numbers
        streamed = window.index is None  # the rows are here
        first = f" (one is {where(window.block, int(window.rows[samples.min()]))})" if streamed else ""
        count(
            "empty",
            len(samples),
            f"{len(empty):,} of {len(batches):,} batches of a window have no tokens: {len(samples):,} samples have none{first}."
            " The mean of a loss over no tokens is NaN. To leave them out: .filter(lambda sample: len(sample['input_ids']) > 0)",
        )


def _counted_in_turn(
    planned: PlannedBatches, left_out: Counts, parts: Iterator[tuple[T, int]]
) -> Iterator[tuple[T, int]]:
    """The parts of batches, each of which counts by itself what a resume after it does not plan again."""
    turn = planned.window.turn
    assert turn is not None
    empty = counting() and not planned.window.lengths.all()  # else nobody counts, or there is nothing
    before = 0
    for part, done in parts:
        turn.left_out(done)
        if empty:
            _count_empty(planned.part(np.arange(before, done or len(planned))), turn.measured)
        if not done:
            add_counts(left_out)
            left_out = {}
        before = done
        yield part, done
    turn.left_out(0)
    add_counts(left_out)


def _other_plan(window: PlanningWindow, by: str, run: Run) -> None:
    """Refuses to go on in a window whose plan is another one than that of which batches were handed on, unless other rows are
    allowed.

    Raises:
        StateError: with what to do.
    """
    words = (
        f"{by} makes other batches of window {window.number:,} than when the state was saved: those that were handed on "
        "then would come again in part, and other samples never"
    )
    if not run.other_rows_allowed:
        raise StateError(
            f"{words}. A policy, or a function that plans (key, boundary_key, batch_size, a cost), is another one or is random. "
            "Go on with the one that saved it, change it between two epochs, or start anew. allow={'functions'} needs the same "
            "plan here"
        )
    logger.warning("%s. This run goes on, as allow={'rows'} says", words)


@dataclass(frozen=True)
class Batched(Stage[Batch]):
    """Each window's plan, batch by batch.

    `shuffle_batches` is True for a random order, "stratified" for one of which every stretch covers short and long batches
    alike. `balance_group` > 1 keeps aligned groups of that many neighbours in cost together, so that the ranks of one step do
    equal work; of streams, which ranks share out, a stratified order has neighbours of so many streams. Where `balance_cost` says
    what a sample costs, the groups are aligned in the whole epoch.

    State: see `parts_of_windows`, in batches; where some of a window were handed on, "plan", a checksum of its plan; with a
    `balance_cost` also "before", the batches before the window, modulo `balance_group`.
    """

    verb = ""

    upstream: Stage[PlanningWindow]
    planner: BatchPlanner
    drop_last: bool
    shuffle_batches: ShuffleBatches
    balance_group: int
    seed: int
    balance_cost: SampleCost | None = None
    lane: StreamId | None = not_in_state(None)
    labels_follow: LabelsFollow = not_in_state(LabelsFollow())
    window: int | str = not_in_state("auto")  # as users write it

    def __post_init__(self) -> None:
        check_bool("drop_last", self.drop_last)
        check_count(self, "balance_group", 1, "batch")
        check_count(self, "seed", None)

    @property
    def label(self) -> str:
        return self.planner.verb

    def settings(self) -> dict[str, Any]:
        order: dict[str, Any] = {"drop_last": self.drop_last, "shuffle_batches": self.shuffle_batches}
        if self.shuffle_batches:
            order |= {"balance_group": self.balance_group, "seed": self.seed}
        if self.balance_cost is not None:
            order |= {"balance_group": self.balance_group, "balance_cost": described(self.balance_cost)}
        return {**self.planner.settings(), **order}

    def facts(self, *inputs: Facts) -> Facts:
        """Batches in arrival order fill up with what comes next, if of another epoch; what is sorted or shuffled stays in one,
        unless tokens are carried into the next."""
        one = inputs[0]
        flows = one.carries or (self.planner.in_order and not self.shuffle_batches)
        return following(
            self,
            one,
            seam="passes" if flows else "ends",
            num_items=lambda most: None if one.streamed_by or not one.ends() else self._count(most),
            batches=BatchFacts(self, self.planned_by, self.planner.shapes),
        )

    @property
    def planned_by(self) -> str:
        """See `BatchFacts`."""
        unset = {"shuffle_batches": None} if self.planner.in_order else {"window": self.window}
        return written(self.settings() | unset)

    def for_stream(self, number: int, count: int) -> Batched:
        return replace(self, seed=random.key(self.seed, number), lane=StreamId(number, count, self.seed))

    def _count(self, most: int | None) -> int:
        """Price: that of planning an epoch."""
        with running(self, self.start(0)) as batches:
            return sum(1 for _ in islice(batches, most))

    def start(self, epoch: int) -> State:
        return {"windows": self.upstream.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        def batches(plan: PlannedBatches, order: NDArray[np.int64], done: int) -> Iterator[tuple[Batch, int]]:
            planned = plan.part(order)
            for number in range(done, len(planned)):
                last = number + 1 == len(planned)
                yield Batch(planned, number, last=last or planned.window.turn is not None), 0 if last else number + 1

        yield from self.parts(at, run, batches)

    def parts(
        self, at: State, run: Run, parts: Callable[[PlannedBatches, NDArray[np.int64], int], Iterator[tuple[T, int]]]
    ) -> Generator[tuple[T, State], None, None]:
        """The parts that `parts` makes of the batches of each window and their order; see `parts_of_windows`.

        Raises:
            StateError: the window that is read again is made into other batches, of which some would be lost.
        """
        here = rng_slot(self)
        waiting = EmptyEpochGuard(self, at["windows"])
        made, saved = 0, at.get("plan", 0)
        before = after = at.get("before", 0)

        def of_window(window: PlanningWindow, done: int, state: State) -> Iterator[tuple[T, int]]:
            nonlocal before, after, made
            key = random.key(self.seed, here, window.epoch, window.number)
            (planned, order), left_out = counts_apart(self._planned, window, key, after, state == END)
            made = crc32(np.concatenate([planned.numbers, planned.bounds, order]).data)
            if done and made != saved:
                _other_plan(window, f"{self.label}({self.planned_by})", run)
            before, after = after, (after + len(order)) % self.balance_group
            waiting.saw(len(order), state)
            if window.turn is not None:
                return _counted_in_turn(planned.part(order), left_out, parts(planned, order, done))
            if not done:  # else it was counted before
                add_counts(left_out)
            return parts(planned, order, done)

        with closing(parts_of_windows(self.upstream, at, run, of_window)) as found:
            for part, state in found:
                if state == END:
                    yield part, state
                else:
                    inside = "done" in state
                    turn = {"before": before if inside else after} if self.balance_cost is not None else {}
                    yield part, state | ({"plan": made} if inside else {}) | turn

    def _planned(
        self, window: PlanningWindow, key: int, before: int, last: bool
    ) -> tuple[PlannedBatches, NDArray[np.int64]]:
        """The batches of a window, and their order without the incomplete ones where these are not wanted."""
        batches = self.planner.batches(window, key)
        if counting() and window.turn is None:  # else somebody counts batches, or they are counted in turn
            _count_empty(batches, self.planner.needs_lengths)
        complete = self.planner.complete(batches, last) if self.drop_last else np.ones(len(batches), dtype=bool)
        if not complete.all():
            incomplete = batches.part(np.flatnonzero(~complete))
            left_out = sum(incomplete.num_samples)
            count("dropped", left_out, f"drop_last: {left_out:,} samples of a window fill no batch and are left out")
            count("dropped_tokens", sum(incomplete.num_tokens))
        if self.balance_cost is None:
            shuffled = self._shuffled(len(batches), window, key)
            return batches, shuffled[complete[shuffled]]
        kept = np.flatnonzero(complete)
        return batches, kept[self._balanced(batches.costs(self.balance_cost)[kept], window, key, before)]

    def _shuffled(self, count: int, window: PlanningWindow, key: int) -> NDArray[np.int64]:
        """An order in which neighbours stay together."""
        size = self.balance_group
        if self.shuffle_batches == "stratified" and self.lane is not None:
            shared = random.key(self.lane.seed, rng_slot(self), window.epoch, window.number)
            steps = max(1, self.lane.lanes // size)
            return low_discrepancy_order(count, shared, first=self.lane.number // size, step=steps, own_key=key)
        order = (self._turns(-(-count // size), key)[:, None] * size + np.arange(min(size, count))).ravel()
        return order[order < count]

    def _balanced(self, costs: NDArray[np.float64], window: PlanningWindow, key: int, before: int) -> NDArray[np.int64]:
        """An order in which groups cost the same and are aligned in the epoch. Ranks that take turns come to equal sums, too.

        What is in no whole group is of middling cost, and so is what it meets of the windows on both sides.
        """
        dearest = np.argsort(-costs, kind="stable")
        if self.lane is not None:
            return dearest[self._shuffled(len(costs), window, key)]
        size = self.balance_group
        head = min(-before % size, len(costs))
        rest = head + (len(costs) - head) % size
        middle = (len(costs) - rest) // size // 2 * size
        begin, end = np.split(dearest[middle : middle + rest], [head])
        groups = np.delete(dearest, np.s_[middle : middle + rest]).reshape(-1, size)
        groups = groups[self._turns(len(groups), key)]
        placed = np.empty_like(groups)
        np.put_along_axis(placed, in_turns(costs[groups].ravel(), size).reshape(groups.shape), groups, axis=1)
        return np.concatenate([begin, placed.ravel(), end])

    def _turns(self, num_groups: int, key: int) -> NDArray[np.int64]:
        if self.shuffle_batches == "stratified":
            return low_discrepancy_order(num_groups, key)
        return random.permutation(num_groups, key) if self.shuffle_batches else np.arange(num_groups)


@dataclass(frozen=True)
class Narrowed(Stage[Batch]):
    """The batches, each with a window of its own samples: for data whose rows are fetched one by one, and cost more than the call
    that fetches several. The state is passed on."""

    verb = ""

    upstream: Stage[Batch]

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="passes")

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        with running(self.upstream, at, run) as batches:
            for batch, after in batches:
                yield apart(batch), after
