"""Several data sets as one: mixed, one after another, or side by side."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import Counts, add_counts, apart
from brimful.core.facts import Facts, following, refuse_streams, verb_of
from brimful.core.header import described
from brimful.core.repeat import EmptyEpochGuard, reached
from brimful.core.run import Run
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, not_in_state, running
from brimful.plan.errors import StateError
from brimful.plan.mix import ENDLESS, Stop, due, stratified, time_of
from brimful.plan.schedule import Schedule, Segment, check, owed_after, segments_of
from brimful.rows.buffer import Cursor
from brimful.tables.blocks import Block, concat, visible
from brimful.tables.combine import beside, conformed, nulls_of, require_distinct, unequal, union_of
from brimful.tables.learnt import Learnt, known_by, schema_of
from brimful.tables.ragged import EMPTY, array_of, token_counts


@dataclass(frozen=True)
class Interleave(Stage[Block]):
    """Rows of each in stratified order (`plan.mix.due`), by weights that may change (`plan.schedule`). `stop` says what happens
    where a data set is due that has ended:

    "first" ends there; "all" leaves it out and goes on with the others; "all_repeat" begins it again, with its next
    epoch, until each has ended once. If that has no row, its turn is passed on, and its next turn begins another.

    `length_column` (None: weights are shares of rows) makes the weights shares of the tokens of that column: due is the
    least (tokens served + 1/2) / weight, which needs no length of a row to come; an empty row counts as one token. So
    shares are exact to one row of each at any time.

    A state that is given to other weights than it was saved with keeps those for what is read again; from there on those of
    this mixture hold.

    State: [epoch, [rows or tokens served since the weights changed, its epoch, 1 if it has ended once and 2 more if it has passed
    a turn on since, state before its block, rows of the block served, the block's rows and their checksums] of each]. Once
    weights have changed, also `since` (rows or tokens served up to there), `owed` (to each, then), `until` ([rows or tokens,
    weights] of each of the weights that hold before those of this mixture, until so many are served), and `passed_on` (since
    then, by data sets without a row).
    """

    verb = "interleave_datasets"

    upstreams: tuple[Stage[Block], ...]
    weights: tuple[float, ...] | Schedule
    stop: Stop
    length_column: str | None = None
    saved_weights: tuple[float, ...] | Schedule | None = not_in_state(None)
    """Those with which a state was saved, where others are to follow."""
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def __post_init__(self) -> None:
        check(len(self.upstreams), self.weights, self.stop)

    def facts(self, *inputs: Facts) -> Facts:
        least = any if self.stop == "first" else all
        return replace(
            following(self, *inputs, **known_by(self)),
            ends=lambda: least(one.ends() for one in inputs),
            nulls=nulls_of(*inputs),
        )

    def start(self, epoch: int) -> State:
        return [epoch, [[0, epoch, 0, upstream.start(epoch), 0, 0, []] for upstream in self.upstreams]]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, states, *changed = at
        schema = schema_of(self, run)
        course = _WeightsNow(self.weights if self.saved_weights is None else self.saved_weights, len(states), *changed)
        replay = None
        if self.saved_weights is not None:
            replay = _Replay(self, at, course, sum(state[0] for state in states), run)
        with ExitStack() as stack:
            own = (
                _Source(*one, leaves=self.stop == "all", run=run) for one in zip(self.upstreams, states, strict=True)
            )
            sources = [stack.enter_context(closing(source)) for source in own]
            block, state = EMPTY, at
            while True:
                course.settle(sources)
                more = True
                failure: Exception | None = None
                left_out: Counts = {}
                try:
                    more, left_out = apart(self._settle, sources, course)
                except Exception as error:  # raised once the rows before it are out
                    failure = error
                if replay is not None and not more:  # its end must come again too: these weights hold for one row more
                    replay.place = course.served(sources) + 1
                if not more:  # nothing will be asked for after the last block
                    add_counts(left_out)
                    left_out = {}
                if block.num_rows or not more:
                    yield block, state if more else END
                add_counts(left_out)
                if failure is not None:
                    raise failure
                if not more:
                    return
                block = _serve(sources, self.length_column, schema, course.left(sources))
                state = [epoch, [source.state for source in sources], *course.state]
                if replay is not None:
                    replay.place = course.served(sources)

    def for_stream(self, number: int, count: int) -> Interleave:
        def part(weights: Any) -> Any:
            return weights.of_stream(number, count) if isinstance(weights, Schedule) else weights

        return replace(self, weights=part(self.weights), saved_weights=part(self.saved_weights))

    def with_saved_weights(self, saved: Any) -> Interleave:
        """The same, as a state was saved that has these weights."""
        return replace(self, saved_weights=None if saved == described(self.weights) else _weights_of(saved))

    def first_types(self, epoch: int) -> pa.Schema:
        return union_of(self.upstreams, "interleave_datasets")

    def _settle(self, sources: list[_Source], course: _WeightsNow) -> bool:
        """Goes by `stop` until a source is due that has a row; False where none will have one."""
        while alive := [source for source in sources if not source.left_out]:
            source = alive[due(*_shares(alive))]
            if not source.weight:  # all others have ended: those that are left wait for weights of their own
                if not course.skip(sources):
                    return False
                continue
            if source.cursor.fill():
                return True
            if self.stop == "first":
                return False
            source.ended = True
            if self.stop == "all":
                continue
            if all(one.ended or not course.waits_for(number) for number, one in enumerate(sources)):
                return False
            source.begin_again()
            if source.cursor.fill():
                continue
            if all(one.passed or not one.weight for one in alive if one is not source):  # what has a share has no row
                source.passed = True
                if course.skip(sources):
                    continue
            course.passed_on += source.pass_on(min((one.time for one in alive if one is not source), default=0.0))
        return False


_UNCHANGED: Final[Mapping[str, Any]] = {"since": 0, "owed": None, "until": [], "passed_on": 0}


class _InForce(NamedTuple):
    """Weights, and how much is served in all where they end."""

    end: int
    weights: Sequence[float]


class _WeightsNow:
    """Which weights hold, and what each source is owed since they do.

    Args:
        changed: what a state says once weights have changed.
    """

    def __init__(
        self, weights: tuple[float, ...] | Schedule, count: int, changed: Mapping[str, Any] = _UNCHANGED
    ) -> None:
        self.since: int = changed["since"]
        self.passed_on: int = changed["passed_on"]
        self.owed: list[float] = changed["owed"] or [0.0] * count
        self._until: list[list[Any]] = changed["until"]
        own = segments_of(weights)
        after = self._until[-1][0] if self._until else 0
        ends = [*(segment.start for segment in own[1:]), ENDLESS]
        self._pieces = [*map(_InForce._make, self._until)]
        self._pieces += [_InForce(end, one.weights) for end, one in zip(ends, own) if end > after]
        self._last = own[-1].weights

    @property
    def state(self) -> list[Any]:
        until = [one for one in self._until if one[0] > self.since]
        if not (self.since or until or self.passed_on):
            return []
        return [{"since": self.since, "owed": self.owed, "until": until, "passed_on": self.passed_on}]

    def served(self, sources: Sequence[_Source]) -> int:
        return self.since - self.passed_on + sum(source.served for source in sources)

    def left(self, sources: Sequence[_Source]) -> int:
        """How much is served before the weights change."""
        return self._now.end - self.served(sources)

    def settle(self, sources: Sequence[_Source]) -> None:
        """Gives the sources the weights that hold now."""
        while self.left(sources) <= 0:
            self._change(sources, self.served(sources))
        for source, weight, owed in zip(sources, self._now.weights, self.owed, strict=True):
            source.weight, source.owed = weight, owed

    def skip(self, sources: Sequence[_Source]) -> bool:
        """Goes on to the next weights under which a source that is left has a share; False if there are none."""
        left = [number for number, source in enumerate(sources) if not (source.left_out or source.weight)]
        end = self._now.end
        later = [piece for piece in self._pieces if piece.end > end]
        if not any(piece.weights[number] > 0 for piece in later for number in left):
            return False
        self._change(sources, end)
        self.settle(sources)
        return True

    def waits_for(self, number: int) -> bool:
        """Whether a source has a share to the last."""
        return self._last[number] > 0

    def until(self, since: int, served: int) -> list[list[Any]]:
        """The weights that hold from one count of what is served to another, each with where it ends."""
        found: list[list[Any]] = []
        for end, weights in self._pieces:
            if end > since:
                found.append([min(end, served), [*weights]])
            if end >= served:
                break
        return found

    @property
    def _now(self) -> _InForce:
        """The one that holds now."""
        return next(piece for piece in self._pieces if piece.end > self.since)

    def _change(self, sources: Sequence[_Source], since: int) -> None:
        gone = [number for number, source in enumerate(sources) if source.left_out or source.passed]
        self.owed = owed_after(self.owed, [source.served for source in sources], self._now.weights, gone)
        self.since, self.passed_on = since, 0
        for source in sources:
            source.served, source.passed = 0, False


class _Replay:
    """A run of a mixture that has other weights than its state. `place`: how much was served so far."""

    def __init__(self, mixture: Interleave, at: State, course: _WeightsNow, served: int, run: Run) -> None:
        self._mixture, self._at, self._course = mixture, at, course
        self._began: dict[str, Any] = {"since": course.since, "owed": course.owed, "passed_on": course.passed_on}
        self.place = self._until = course.since - course.passed_on + served
        if run.replay is not None:
            run.replay.append(self)

    def reached(self) -> None:
        self._until = self.place

    def hold(self, parts: Collection[int]) -> None:
        """As `Replayed` says.

        Raises:
            StateError: the run began at the start of an epoch, of which the state says nothing.
        """
        if id(self._at) in parts:
            self._at[2:] = [{**self._began, "until": self._course.until(self._began["since"], self._until)}]
        elif self._until:
            saved, ours = described(self._mixture.saved_weights), described(self._mixture.weights)
            raise StateError(
                f"{verb_of(self._mixture)} cannot change weights {saved} to {ours} at this state: the rows that must be read "
                f"again go over the start of epoch {self._at[0]:,} of the mixture, and a state says only where they begin; go on "
                f"with weights {saved} for some batches, and change them at a later state"
            )


class _Source:
    """One of the data sets: how much it gave, and where it is. `leaves`: it is left out once it has ended."""

    def __init__(self, upstream: Stage[Block], state: State, leaves: bool, run: Run) -> None:
        self.upstream, self._leaves, self._run = upstream, leaves, run
        self.served: int
        self.served, self.epoch, flags, *at = state
        self.weight = self.owed = 0.0  # of the next rows
        self.ended, self.passed = bool(flags & 1), bool(flags & 2)
        self.cursor = Cursor(upstream, run, *at)
        self._waiting = EmptyEpochGuard(upstream, reached(self.epoch, None))

    @property
    def time(self) -> float:
        """When it is due: see `plan.mix.due`."""
        return time_of(self.served, self.weight, 0.5 - self.owed)

    @property
    def left_out(self) -> bool:
        return self._leaves and self.ended

    @property
    def state(self) -> State:
        return [self.served, self.epoch, self.ended + 2 * self.passed, *self.cursor.state]

    def begin_again(self) -> None:
        self.cursor.close()
        self.epoch += 1
        self.cursor = Cursor(self.upstream, self._run, self.upstream.start(self.epoch), 0, 0, [])

    def pass_on(self, time: float) -> int:
        """It has no row in this epoch: its turn goes to the others, the next of which is due at some time. How many it passes on.

        Raises:
            DataError: so it was in 1,000 epochs.
        """
        self._waiting.saw(0, reached(self.epoch, None))
        before, self.passed = self.served, True
        self.served = max(self.served + 1, int(min(time * self.weight, ENDLESS)))
        return self.served - before

    def at_hand(self, column: str | None) -> int | NDArray[np.int64]:
        """How many rows there are, or the tokens of each."""
        rows = self.cursor.fill()
        if column is None:
            return rows
        return np.maximum(token_counts(self.cursor.rest, (column,), rows > 0), 1)

    def take(self, rows: int, served: int) -> Block:
        self.served += served
        if rows:
            self._waiting.saw(rows, reached(self.epoch, None))
        return self.cursor.take(rows)

    def close(self) -> None:
        self.cursor.close()


def _weights_of(saved: Any) -> tuple[float, ...] | Schedule:
    """Those that a header describes."""
    if isinstance(saved, list):
        return tuple(saved)
    return Schedule(
        tuple(Segment(start, tuple(weights)) for start, weights in saved["points"]), saved["by"], saved["between"]
    )


def _shares(sources: Sequence[_Source]) -> tuple[list[int], list[float], list[float]]:
    return [one.served for one in sources], [one.weight for one in sources], [one.owed for one in sources]


def _rows_of(owners: NDArray[np.int64], at_hand: Sequence[int | NDArray[np.int64]], left: int) -> int:
    """How many rows, of these sources in turn, serve all that is left; the last one may serve more than that."""
    sizes = np.ones(len(owners), dtype=np.int64)
    for source, given in enumerate(at_hand):
        if not isinstance(given, int):
            own = owners == source
            sizes[own] = given[: np.count_nonzero(own)]
    return 1 + int(np.searchsorted(np.cumsum(sizes), left))


def _serve(sources: list[_Source], column: str | None, schema: pa.Schema, left: int) -> Block:
    """The next rows in their order, up to where a source without a row at hand is due, or nothing is `left`."""
    numbers, alive = zip(*((number, source) for number, source in enumerate(sources) if not source.left_out))
    at_hand = [source.at_hand(column) for source in alive]
    served, weights, owed = _shares(alive)
    owners = stratified(served, at_hand, weights, owed)[:BLOCK_ROWS]
    owners = owners[: _rows_of(owners, at_hand, left)]
    counts = np.bincount(owners, minlength=len(alive)).tolist()
    sizes = [rows if isinstance(given, int) else int(given[:rows].sum()) for given, rows in zip(at_hand, counts)]
    served_rows = [source.take(*share) for source, *share in zip(alive, counts, sizes, strict=True)]
    block = concat(
        conformed(rows, schema, "interleave_datasets", number)
        for number, rows in zip(numbers, served_rows)
        if rows.num_rows
    )
    places = np.empty(len(owners), dtype=np.int64)
    places[np.argsort(owners, kind="stable")] = np.arange(len(owners))
    return block.take(array_of(places))


@dataclass(frozen=True)
class Concat(Stage[Block]):
    """All rows of the first, then all of the second, and so on, in the columns of all of them.

    State: [epoch, which one, its state].
    """

    verb = "concat_datasets"

    upstreams: tuple[Stage[Block], ...]
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, nulls=nulls_of(*inputs), **known_by(self))

    def start(self, epoch: int) -> State:
        return [epoch, 0, self.upstreams[0].start(epoch)]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, number, before = at
        schema = schema_of(self, run)
        for which in range(number, len(self.upstreams)):
            if which > number:
                before = self.upstreams[which].start(epoch)
            with running(self.upstreams[which], before, run) as items:
                for block, after in items:
                    out = conformed(block, schema, verb_of(self), which) if block.num_rows else block
                    if after != END:
                        yield out, [epoch, which, after]
                    elif which + 1 < len(self.upstreams):
                        yield out, [epoch, which + 1, self.upstreams[which + 1].start(epoch)]
                    else:
                        yield out, END

    def first_types(self, epoch: int) -> pa.Schema:
        return union_of(self.upstreams, "concat_datasets")


COUNTED: Final = 1_000_000
"""Rows that are read beyond the end of the shortest, to say how many the others have."""


@dataclass(frozen=True)
class Zip(Stage[Block]):
    """Row i has the columns of row i of each; all must have equally many, which is known when the first of them ends.

    State: [rows handed on, [state before its block, rows of the block taken, the block's rows and their checksums] of each].
    """

    verb = "zip_datasets"

    upstreams: tuple[Stage[Block], ...]

    def __post_init__(self) -> None:
        for upstream in self.upstreams:
            refuse_streams(upstream, "zip_datasets", "pairs")

    def start(self, epoch: int) -> State:
        return [0, [[upstream.start(epoch), 0, 0, []] for upstream in self.upstreams]]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        done, states = at
        with ExitStack() as stack:
            own = (Cursor(upstream, run, *state) for upstream, state in zip(self.upstreams, states, strict=True))
            cursors = [stack.enter_context(closing(cursor)) for cursor in own]
            rows = self._at_hand(cursors, done)
            if not rows:
                yield EMPTY, END
            while rows:
                require_distinct([visible(cursor.rest).schema for cursor in cursors])
                block = beside([cursor.take(rows) for cursor in cursors])
                done += rows
                state = [done, [cursor.state for cursor in cursors]]
                failure: Exception | None = None
                left_out: Counts = {}
                try:
                    rows, left_out = apart(self._at_hand, cursors, done)
                except Exception as error:  # raised once the rows before it are out
                    failure = error
                if not rows:  # nothing will be asked for after the last block
                    add_counts(left_out)
                yield block, state if rows or failure else END
                if rows:
                    add_counts(left_out)
                if failure is not None:
                    raise failure

    def _at_hand(self, cursors: Sequence[Cursor], done: int) -> int:
        """How many rows all of them have at hand; 0 where all have ended.

        Raises:
            DataError: one has ended and another has not.
        """
        rows = [cursor.fill() for cursor in cursors]
        if 0 in rows and any(rows):
            ended, longer = rows.index(0), next(number for number, count in enumerate(rows) if count)
            raise unequal(ended, f"{done:,} rows", longer, _counted(cursors[longer], done))
        return min(BLOCK_ROWS, *rows)


def _counted(cursor: Cursor, done: int) -> str:
    """How many rows a data set has, of which some are done, as far as that is soon known."""
    count = done
    while rows := cursor.fill():
        count += rows
        cursor.take(rows)
        if count - done > COUNTED:
            return f"more than {count:,} rows"
    return f"{count:,} rows"
