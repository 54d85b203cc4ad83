"""Windows to batches: each window's plan, its batches in a random order."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from brimful.batching.batch import Batch, OrderedBatches, PlannedWindow, fetch_only_own_rows
from brimful.batching.facts import BatchFacts, batch_facts, with_batches
from brimful.batching.labels import LabelsFollow
from brimful.batching.order import ShuffleBatches, balance, dearest_first, drop_incomplete, shuffle, shuffle_stream
from brimful.batching.planners import BatchPlanner
from brimful.batching.sizes import of_whole_sample
from brimful.batching.window import PlanningWindow
from brimful.batching.windows import replayed_windows
from brimful.core.counters import Counts, add_counts, apart, count, counting
from brimful.core.facts import Facts, facts_of, following, rng_slot
from brimful.core.header import described
from brimful.core.repeat import EmptyEpochGuard
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, StreamId, not_in_state, running
from brimful.plan import random
from brimful.plan.costs import SampleCost
from brimful.plan.errors import StateError, check_bool, check_count, logger
from brimful.tables.describe import written
from brimful.tables.origins import where
from brimful.tables.ragged import TOKENS


def count_empty(batches: PlannedWindow, asked: bool) -> None:
    """Says once that there are batches without a token, as of blank lines. Where all are, lengths must be `asked` for."""
    if batches.window.lengths.all():
        return
    empty = np.flatnonzero(np.array(batches.num_tokens) == 0)
    if 0 < len(empty) < len(batches) + asked and not of_whole_sample(batches.window):
        window, samples = batches.window, batches.select(empty).numbers
        streamed = window.index is None  # the rows are here
        first = f" (one is {where(window.block, int(window.rows[samples.min()]))})" if streamed else ""
        count(
            "empty",
            len(samples),
            f"{len(empty):,} of {len(batches):,} batches of a window have no tokens: {len(samples):,} samples have none{first}."
            " The mean of a loss over no tokens is NaN. To leave them out: .filter(lambda sample: "
            f"len(sample[{window.sizes[0] if window.sizes else TOKENS!r}]) > 0)",
        )


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
class PlannedWindows(Stage[OrderedBatches]):
    """Each window's plan, with its batches in the order in which they are handed on.

    `shuffle_batches` is True for a random order, "stratified" for one of which every stretch covers short and long batches
    alike. `balance_group` > 1 keeps aligned groups of that many neighbours in cost together, so that the ranks of one step do
    equal work; of streams, which ranks share out, a stratified order has neighbours of so many streams. Where `balance_cost` says
    what a sample costs, the groups are aligned in the whole epoch.

    State: see `replayed_windows`, in batches; where some of a window were handed on, "plan", a checksum of its plan; with a
    `balance_cost` also "before", the batches before the window, modulo `balance_group`. After a state inside a window come the
    batches of it that were not handed on.
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
    samples_per_step: int | None = None  # each window is an optimizer step of so many

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
        steps = {} if self.samples_per_step is None else {"samples_per_step": self.samples_per_step}
        return {**self.planner.settings(), **order, **steps}

    def facts(self, *inputs: Facts) -> Facts:
        """Batches in arrival order fill up with what comes next, if of another epoch; what is sorted or shuffled stays in one,
        unless tokens are carried into the next."""
        one = inputs[0]
        flows = one.carries or (self.planner.sizing.in_order and not self.shuffle_batches)
        flows = flows and self.samples_per_step is None
        unset = {"shuffle_batches": None} if self.planner.sizing.in_order else {"window": self.window}
        planned_by = written(self.settings() | unset)
        return following(
            self,
            one,
            seam="passes" if flows else "ends",
            num_items=lambda most: None if one.streamed_by or not one.ends() else self._count(most),
            batches=BatchFacts(self, planned_by, self.planner.shapes),
        )

    def _count(self, most: int | None) -> int:
        """How many batches an epoch has, counted up to a number. Price: that of planning an epoch."""
        counted = 0
        with running(self, self.start(0)) as windows:
            for planned, _ in windows:
                counted += len(planned)
                if most is not None and counted >= most:
                    return most
        return counted

    def for_stream(self, number: int, count: int) -> PlannedWindows:
        return replace(self, seed=random.key(self.seed, number), lane=StreamId(number, count, self.seed))

    def start(self, epoch: int) -> State:
        return {"windows": self.upstream.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[OrderedBatches, State], None, None]:
        """
        Raises:
            StateError: the window that is read again is made into other batches, of which some would be lost.
        """
        here = rng_slot(self)
        waiting = EmptyEpochGuard(self, at["windows"])
        saved, before = at.get("plan", 0), at.get("before", 0)
        with closing(replayed_windows(self.upstream, at, run)) as windows:
            for window, done, inside, after, _ in windows:
                ordered, left_out = apart(self._ordered, window, here, before, after == END)
                made = _checksum(ordered)
                if done and made != saved:
                    _other_plan(window, f"{self.label}({batch_facts(self).planned_by})", run)
                total = len(ordered)
                waiting.saw(total, after)
                inside |= {"plan": made, **self._aligned(before)}
                before = (before + total) % self.balance_group
                after = END if after == END else {"windows": after, **self._aligned(before)}
                rest = OrderedBatches(ordered.select(np.arange(done, total))) if done else ordered
                if window.turn is not None:
                    handed_on: Callable[[int], State] = _HandedOnInTurn(rest, window, left_out, after)
                else:
                    handed_on = _HandedOn(done, total, inside, after)
                    if not done:  # else it was counted before
                        add_counts(left_out)
                yield replace(rest, handed_on=handed_on), after

    def _aligned(self, before: int) -> dict[str, int]:
        return {} if self.balance_cost is None else {"before": before}

    def _ordered(self, window: PlanningWindow, here: int, before: int, last: bool) -> OrderedBatches:
        key = random.key(self.seed, here, window.epoch, window.number)
        together = facts_of(self).units
        if together is not None and together.within == "step":  # a step is a window, and its batches may part units
            window = replace(window, units=None)
        planned = self.planner.batches(window, key)
        if counting() and window.turn is None:  # else nobody counts batches, or they are counted in turn
            count_empty(planned, self.planner.sizing.needs_lengths)
        batches = OrderedBatches(planned)
        if self.samples_per_step is not None:
            if self.drop_last and last and len(window) < self.samples_per_step:
                batches = drop_incomplete(batches, np.zeros(len(batches), bool))
            return batches if self.balance_cost is None else dearest_first(batches, self.balance_cost)
        if self.drop_last:
            batches = drop_incomplete(batches, self.planner.complete(planned, last))
        how, group = self.shuffle_batches, self.balance_group
        if self.balance_cost is not None and self.lane is None:
            return balance(batches, self.balance_cost, how, group, key, before)
        if self.balance_cost is not None:
            batches = dearest_first(batches, self.balance_cost)
        if self.lane is not None and how == "stratified":
            shared_key = random.key(self.lane.seed, here, window.epoch, window.number)
            return shuffle_stream(batches, group, key, self.lane, shared_key)
        return shuffle(batches, how, group, key)


def _checksum(batches: OrderedBatches) -> int:
    """Of which samples are in which batch, and of the order of the batches."""
    planned, order = batches.planned, batches.order
    found = crc32(planned.bounds.data, random.checksum(planned.numbers))
    return found if order is None else crc32(order.data, found)


@dataclass(frozen=True)
class _HandedOn:
    """The state after some batches of what is left of a window; see `OrderedBatches.handed_on`."""

    done: int
    count: int
    inside: State
    after: State

    def __call__(self, batches: int) -> State:
        done = self.done + batches
        return self.after if done == self.count else {**self.inside, "done": done}


class _HandedOnInTurn:
    """The same of a window in arrival order: what a resume after a batch does not plan again is counted with that batch.

    Args:
        window: as it was planned, with the lengths of samples before they were cut.
    """

    def __init__(self, batches: OrderedBatches, window: PlanningWindow, left_out: Counts, after: State) -> None:
        assert window.turn is not None
        self._batches, self._turn, self._left_out, self._after = batches, window.turn, left_out, after
        self._lengths = window.lengths
        self._empty = counting() and not batches.planned.window.lengths.all()  # else nobody counts, or there is nothing
        self._counted = 0

    def __call__(self, batches: int) -> State:
        is_last = batches == len(self._batches)
        self._turn.left_out(0 if is_last else batches)
        if batches > self._counted and (self._empty or "truncated" in self._left_out):
            new = self._batches.select(np.arange(self._counted, batches))
            if self._empty:
                count_empty(new, self._turn.measured)
            self._count_cut(new)
        self._counted = max(self._counted, batches)
        if not is_last:
            return {"windows": self._turn.state(batches)}
        add_counts(self._left_out)
        self._left_out = {}
        return self._after

    def _count_cut(self, batches: PlannedWindow) -> None:
        """Counts the samples of these batches that are cut, of those of the window."""
        cut = (self._lengths[batches.numbers] - batches.sizes).reshape(len(batches.numbers), -1).sum(axis=1)
        for name, number in ("truncated", int(np.count_nonzero(cut))), ("dropped_tokens", int(cut.sum())):
            left, message = self._left_out.get(name, (0, None))
            if number := min(number, left):
                count(name, number, message)
                self._left_out = {**self._left_out, name: (left - number, message)}


@dataclass(frozen=True)
class Batched(Stage[Batch]):
    """The batches of planned windows, one by one. Those of rows that are fetched one by one have a window of their own rows, but
    for `whole_windows`. State: that of the windows."""

    verb = ""

    upstream: Stage[OrderedBatches]
    whole_windows: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        return with_batches(following(self, *inputs, seam="passes"), planned=self)

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        narrow = facts_of(self).one_by_one and not self.whole_windows
        with running(self.upstream, at, run) as windows:
            for ordered, _ in windows:
                planned = ordered.laid_out()
                for place in range(len(planned)):
                    batch = Batch(planned, place)
                    yield fetch_only_own_rows(batch) if narrow else batch, ordered.handed_on(place + 1)
                if not len(planned):
                    ordered.handed_on(0)  # counts what was left out of it
