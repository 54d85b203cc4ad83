"""Several data sets as one: mixed, one after another, or side by side."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import Counts, add_counts, apart
from brimful.core.facts import Facts, facts_of, following, refuse_streams, refuse_units, same_units, verb_of
from brimful.core.header import described
from brimful.core.repeat import EmptyEpochGuard, reached
from brimful.core.run import Run
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, not_in_state, running
from brimful.plan.errors import StateError
from brimful.plan.mix import ENDLESS, Stop, due, stratified, time_of
from brimful.plan.schedule import Schedule, Segment, Span, check, owed_after, segments_of, spans_of
from brimful.rows.buffer import ReplayBuffer
from brimful.rows.units import fill_units, held_units
from brimful.tables.blocks import Block, concat, visible
from brimful.tables.combine import beside, conformed, nulls_of, require_distinct, unequal, union_of
from brimful.tables.learnt import Learnt, known_by, schema_of
from brimful.tables.ragged import EMPTY, array_of, token_counts
from brimful.tables.units import begins_unit, with_own_units

MIXED: Final = (
    "interleave_datasets takes rows of each data set in turn. Call units on each data set, before they are mixed"
)


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

    With `names`, data sets may be added where a state is read, and left out where no row of theirs is to come again.

    State: {"epoch", "sources": [{"name", where it has one, "served": rows or tokens since weights changed, "epoch": its own, if
    that is another one, "ended" once, "passed" a turn on since, and the position of its `ReplayBuffer`}]}. Once weights have
    changed, also "since" (rows or tokens served up to there), "owed" (to each source, then), "before": [{"until": so many are
    served, "weights" by name, or "points" and "between" of a schedule, "ends" if the epoch ends there}] of the weights that hold
    before those of this mixture, and "passed_on" (since then, by data sets without a row). What is 0, false or empty is left out.
    """

    verb = "interleave_datasets"

    upstreams: tuple[Stage[Block], ...]
    weights: tuple[float, ...] | Schedule
    stop: Stop
    length_column: str | None = None
    names: tuple[str, ...] = ()
    draws: int | None = not_in_state(None)
    """What a state says of how many stages draw random numbers here; None: as many as do."""
    saved: Mapping[str, Any] | None = not_in_state(None)
    """The entry of the header that a state was saved with, where it has other weights or sources."""
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def __post_init__(self) -> None:
        check(len(self.upstreams), self.weights, self.stop)

    def settings(self) -> dict[str, Any]:
        return mixture_settings(self, "forward", self.length_column)

    def facts(self, *inputs: Facts) -> Facts:
        least = any if self.stop == "first" else all
        found = following(self, *inputs, units=same_units(self, inputs), mixed_by=MIXED, **known_by(self))
        return replace(
            found,
            ends=lambda: least(one.ends() for one in inputs),
            nulls=nulls_of(*inputs),
            draws=found.draws if self.draws is None else self.draws,
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the data sets, or else their numbers."""
        return keys_of(self.names, len(self.upstreams))

    def start(self, epoch: int) -> State:
        begun = [{"rows": one.start(epoch)} for one in self.upstreams]
        return {"epoch": epoch, "sources": self._named(begun)}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, schema, keeps = at["epoch"], schema_of(self, run), facts_of(self).units is not None
        weights = self.weights if self.saved is None else weights_saved(self.saved, self.keys)
        course = _WeightsNow(weights, self.keys, at)
        replay = None
        if run.replay is not None and self.saved is not None:
            self._require_sources(at, self.saved)
            replay = _Replay(self, self.saved, at, course, run.replay)
        with ExitStack() as stack:
            own = (
                _Source(upstream, one, epoch, leaves=self.stop == "all", run=run)
                for upstream, one in zip(self.upstreams, self.parts(at))
            )
            sources = [stack.enter_context(closing(source)) for source in own]
            if run.replay is not None:  # so that a mixture below one without a share is asked, too
                for source in sources:
                    source.held.fill()
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
                if replay is not None and not more:  # its end must come again too
                    replay.ends = True
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
                block = _serve(sources, self.length_column, schema, course.left(sources), keeps)
                states = self._named([source.state(epoch) for source in sources])
                state = {"epoch": epoch, "sources": states, **course.state}
                if replay is not None:
                    replay.place = course.served(sources)

    def _named(self, states: list[Any]) -> list[Any]:
        return [{"name": name, **one} for name, one in zip(self.names, states)] if self.names else states

    def parts(self, at: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What a state says of each data set; {} of one that was added since."""
        saved = {one.get("name", str(number)): one for number, one in enumerate(at["sources"])}
        return [saved.get(key, {}) for key in self.keys]

    def for_stream(self, number: int, count: int) -> Interleave:
        def part(weights: Any) -> Any:
            return weights.of_stream(number, count) if isinstance(weights, Schedule) else weights

        if self.saved is None:
            return replace(self, weights=part(self.weights))
        saved = {**self.saved, "weights": described(part(weights_saved(self.saved, keys_saved(self.saved))))}
        return replace(self, weights=part(self.weights), saved=saved)

    def as_saved(self, entry: Mapping[str, Any]) -> Interleave:
        """The same with what the header of a state says and no code does."""
        return replace(self, draws=entry["draws"]) if "draws" in entry and self.names else self

    def before_edit(self, entry: Mapping[str, Any]) -> Interleave:
        """The same, as a state was saved that has this in its header: the same object, where it has our weights and sources."""
        if is_unchanged(self, entry):
            return self
        return replace(self, saved=entry)

    def after_edit(self, entry: Mapping[str, Any], before: Interleave) -> Interleave:
        """The same: its position says how it goes on."""
        return self

    def _require_sources(self, at: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        """Refuses to leave out a data set of which rows may have to come again.

        Raises:
            StateError: naming it, and what to do.
        """
        gone = [key for key in keys_saved(saved) if key not in self.keys]
        if gone and (shares := _WeightsNow(weights_saved(saved, gone), gone, at).shares):
            raise StateError(
                f"interleave_datasets cannot leave out {gone[shares[0]]!r} at this state: it has a share of the rows that may "
                "have to be read again. Give it once more, with a weight of 0 and allow={'weights'}, and leave it out at a later "
                "state"
            )

    def first_types(self, epoch: int) -> pa.Schema:
        return union_of(self.upstreams, "interleave_datasets")

    def _settle(self, sources: list[_Source], course: _WeightsNow) -> bool:
        """Goes by `stop` until a source is due that has a row; False where none will have one."""
        if course.is_over(sources) or (self.stop == "all_repeat" and course.all_ended(sources)):
            return False
        while alive := [source for source in sources if not source.left_out]:
            source = alive[due(*_shares(alive))]
            if not source.weight:  # all others have ended: those that are left wait for weights of their own
                if not course.skip(sources):
                    return False
                continue
            if source.held.fill():
                return True
            if self.stop == "first":
                return False
            source.ended = True
            if self.stop == "all":
                continue
            if course.all_ended(sources):
                return False
            source.begin_again()
            if source.held.fill():
                continue
            if all(one.passed or not one.weight for one in alive if one is not source):  # what has a share has no row
                source.passed = True
                if course.skip(sources):
                    continue
            others = [one for one in alive if one is not source]
            with_rows = [one for one in others if not one.passed]  # two without a row would pass turns to each other
            course.passed_on += source.pass_on(min((one.time for one in with_rows or others), default=0.0))
        return False


def _as_json(weights: tuple[float, ...] | Schedule, keys: Sequence[str]) -> dict[str, Any]:
    """Weights by name, in a state."""

    def named(values: Sequence[float]) -> list[Any]:
        return [[key, value] for key, value in zip(keys, values) if value]

    if isinstance(weights, Schedule):
        return {"points": [[one.start, named(one.weights)] for one in weights.points], "between": weights.between}
    return {"weights": named(weights)}


def _weights_in(one: Mapping[str, Any], keys: Sequence[str]) -> tuple[float, ...] | Schedule:
    """The weights of some data sets that `_as_json` wrote; 0 of those that it does not name."""

    def of(values: Any) -> tuple[float, ...]:
        known = dict(values)
        return tuple(known.get(key, 0.0) for key in keys)

    if "weights" in one:
        return of(one["weights"])
    return Schedule(tuple(Segment(start, of(values)) for start, values in one["points"]), "samples", one["between"])


def _ending_at(until: int, one: dict[str, Any]) -> dict[str, Any]:
    """The same weights up to there at most: an epoch that ended with them later does not end there."""
    if one["until"] <= until:
        return one
    return {name: value for name, value in one.items() if name != "ends"} | {"until": until}


class _WeightsNow:
    """Which weights hold, and what each source is owed since they do.

    Args:
        keys: the name of each source.
        at: the state of the mixture.
    """

    def __init__(self, weights: tuple[float, ...] | Schedule, keys: Sequence[str], at: Mapping[str, Any]) -> None:
        self._keys, self._own = keys, weights
        self.since: int = at.get("since", 0)
        self.passed_on: int = at.get("passed_on", 0)
        owed = dict(at.get("owed", ()))
        self.owed: list[float] = [owed.get(key, 0.0) for key in keys]
        self._before: list[dict[str, Any]] = at.get("before", [])
        self._pieces: list[Span] = []
        after = 0
        for one in self._before:
            self._pieces += spans_of(_weights_in(one, keys), after, one["until"])
            after = one["until"]
        self._kept = after
        self._ends = after if self._before and "ends" in self._before[-1] else ENDLESS
        self._pieces += spans_of(weights, after)
        self._last = segments_of(weights)[-1].weights

    @property
    def state(self) -> dict[str, Any]:
        before = [one for one in self._before if one["until"] > self.since or "ends" in one]
        return self.begun | ({"before": before} if before else {})

    @property
    def begun(self) -> dict[str, Any]:
        """What a state says of when the weights changed that hold now."""
        owed = [[key, one] for key, one in zip(self._keys, self.owed) if one]
        known = {"since": self.since, "owed": owed, "passed_on": self.passed_on}
        return {name: value for name, value in known.items() if value}

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

    def all_ended(self, sources: Sequence[_Source]) -> bool:
        """Whether all sources have ended once that have a share to the last. Up to where weights changed all have: no epoch did
        end there."""
        kept = self.since < self._kept
        return all(one.ended or not (kept or self._last[number] > 0) for number, one in enumerate(sources))

    @property
    def shares(self) -> list[int]:
        """The numbers of the sources that have a share, now or later."""
        left = [piece.weights for piece in self._pieces if piece.end > self.since]
        return [number for number in range(len(self._keys)) if any(weights[number] > 0 for weights in left)]

    def before(self, since: int, until: int, ends: bool) -> list[dict[str, Any]]:
        """What a state says of these weights between two counts of what is served, where others are to follow; `ends`: the epoch
        ends there."""
        found = [_ending_at(until, one) for one in self._before if one["until"] > since]
        if not found or found[-1]["until"] < until:
            found.append({"until": until, **_as_json(self._own, self._keys)})
        if ends:
            return [*found[:-1], {**found[-1], "ends": 1}]
        return [one for one in found if one["until"] > since]

    def is_over(self, sources: Sequence[_Source]) -> bool:
        """Whether the epoch ended here before the weights changed: then it ends so again."""
        return self.served(sources) >= self._ends

    @property
    def _now(self) -> Span:
        """The one that holds now."""
        return next(piece for piece in self._pieces if piece.end > self.since)

    def _change(self, sources: Sequence[_Source], since: int) -> None:
        gone = [number for number, source in enumerate(sources) if source.left_out or source.passed]
        self.owed = owed_after(self.owed, [source.served for source in sources], self._now.weights, gone)
        self.since, self.passed_on = since, 0
        for source in sources:
            source.served, source.passed = 0, False


class _Replay:
    """A run of a mixture that has other weights than its state. `place`: how much was served so far.

    Raises:
        StateError: a source that has a share of what may have to come again is none of ours.
    """

    def __init__(
        self, mixture: Interleave, saved: Mapping[str, Any], at: State, course: _WeightsNow, replay: list[Any]
    ) -> None:
        self._mixture, self._saved, self._at, self._course = mixture, saved, at, course
        self._began = course.begun
        served = sum(one.get("served", 0) for one in mixture.parts(at))
        self.place = self._until = course.since - course.passed_on + served
        self.ends = self._ends = False
        replay.append(self)

    def reached(self) -> None:
        self._until, self._ends = self.place, self.ends

    def hold(self, parts: Collection[int]) -> tuple[str, int] | None:
        """As `Replayed` says.

        Raises:
            StateError: the run began at the start of an epoch, of which the state says nothing.
        """
        if id(self._at) in parts:
            sources = [one for one in self._mixture.parts(self._at) if one]
            before = self._course.before(self._began.get("since", 0), self._until, self._ends)
            epoch = self._at["epoch"]
            self._at.clear()
            self._at.update(epoch=epoch, sources=sources, **self._began, **({"before": before} if before else {}))
            return "sample" if self._mixture.length_column is None else "token", self._until
        if self._until or self._ends:
            saved, ours = self._saved["weights"], described(self._mixture.weights)
            raise StateError(
                f"{verb_of(self._mixture)} cannot change weights {saved} to {ours} at this state: the rows that must be read "
                f"again go over the start of epoch {self._at['epoch']:,} of the mixture, and a state says only where they begin; "
                f"go on with weights {saved} for some batches, and change them at a later state"
            )
        return None


class _Source:
    """One of the data sets: how much it gave, and where it is. `leaves`: it is left out once it has ended."""

    def __init__(self, upstream: Stage[Block], state: Mapping[str, Any], epoch: int, leaves: bool, run: Run) -> None:
        self.upstream, self._leaves, self._run = upstream, leaves, run
        self.served: int = state.get("served", 0)
        self.epoch: int = state.get("epoch", epoch)
        self.weight = self.owed = 0.0  # of the next rows
        self.ended, self.passed = "ended" in state, "passed" in state
        self.held = ReplayBuffer(upstream, state or {"rows": upstream.start(epoch)}, run, joins=True)
        self._waiting = EmptyEpochGuard(upstream, reached(self.epoch, None))

    @property
    def time(self) -> float:
        """When it is due: see `plan.mix.due`."""
        return time_of(self.served, self.weight, 0.5 - self.owed)

    @property
    def left_out(self) -> bool:
        return self._leaves and self.ended

    def state(self, epoch: int) -> State:
        """In this epoch of the mixture."""
        own = {"served": self.served, "ended": self.ended, "passed": self.passed}
        known = {name: int(value) for name, value in own.items() if value}
        return known | ({"epoch": self.epoch} if self.epoch != epoch else {}) | self.held.position

    def begin_again(self) -> None:
        self.held.close()
        self.epoch += 1
        self.held = ReplayBuffer(self.upstream, {"rows": self.upstream.start(self.epoch)}, self._run, joins=True)

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
        """How many rows there are, or the tokens of each; nothing is read of a source without a share."""
        rows = self.held.fill() if self.weight else 0
        return rows if column is None else self._tokens(column, rows)

    def units_at_hand(self, column: str | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each whole unit that there is, its rows, and what it serves: rows or tokens."""
        rows = fill_units(self.held, 1) if self.weight else 0
        begins = np.flatnonzero(begins_unit(held_units(self.held)[:rows]))
        sizes = np.diff(begins, append=rows)
        return sizes, sizes if column is None else np.add.reduceat(
            self._tokens(column, rows), begins
        ) if rows else sizes

    def _tokens(self, column: str, rows: int) -> NDArray[np.int64]:
        return np.maximum(token_counts(self.held.peek().slice(0, rows), (column,), rows > 0), 1)

    def take(self, rows: int, served: int) -> Block:
        self.served += served
        if rows:
            self._waiting.saw(rows, reached(self.epoch, None))
        return self.held.take(rows)

    def close(self) -> None:
        self.held.close()


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


def _serve(sources: list[_Source], column: str | None, schema: pa.Schema, left: int, keeps: bool) -> Block:
    """The next rows in their order, up to where a source without a row at hand is due, or nothing is `left`; whole units, where
    the mixture `keeps` them."""
    numbers, alive = zip(*((number, source) for number, source in enumerate(sources) if not source.left_out))
    units = [source.units_at_hand(column) for source in alive] if keeps else []
    at_hand = [serves for _, serves in units] if keeps else [source.at_hand(column) for source in alive]
    served, weights, owed = _shares(alive)
    owners = stratified(served, at_hand, weights, owed)[:BLOCK_ROWS]
    owners = owners[: _rows_of(owners, at_hand, left)]
    counts = np.bincount(owners, minlength=len(alive)).tolist()
    sizes = [rows if isinstance(given, int) else int(given[:rows].sum()) for given, rows in zip(at_hand, counts)]
    if keeps:
        rows_in = [own[:count] for (own, _), count in zip(units, counts)]
        counts = [int(own.sum()) for own in rows_in]
        lengths = np.empty(len(owners), dtype=np.int64)
        lengths[np.argsort(owners, kind="stable")] = np.concatenate(rows_in)
        owners = np.repeat(owners, lengths)
    served_rows = [source.take(*share) for source, *share in zip(alive, counts, sizes, strict=True)]
    block = concat(
        with_own_units(conformed(rows, schema, "interleave_datasets", number), number, len(sources))
        for number, rows in zip(numbers, served_rows)
        if rows.num_rows
    )
    places = np.empty(len(owners), dtype=np.int64)
    places[np.argsort(owners, kind="stable")] = np.arange(len(owners))
    return block.take(array_of(places))


def mixture_settings(stage: Any, runs: str, length_column: str | None = None) -> dict[str, Any]:
    """The settings of a mixture, streamed or indexed. Of named data sets, which may be others at a resume, the header keeps how
    many stages draw random numbers there: so no choice above changes.

    Args:
        runs: how it finds its rows.
    """
    known = {"sources": [*stage.names], "draws": facts_of(stage).draws} if stage.names else {}
    own = {"length_column": length_column, "runs": runs, "weights": described(stage.weights), "stop": stage.stop}
    return known | own


def keys_of(names: Sequence[str], count: int) -> tuple[str, ...]:
    """The names of the data sets of a mixture, or else their numbers."""
    return tuple(names) or tuple(map(str, range(count)))


def keys_saved(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """As `keys_of`, of the mixture in a header."""
    weights = entry["weights"]
    return keys_of(entry.get("sources", ()), len(weights if isinstance(weights, list) else weights["points"][0][1]))


def is_unchanged(stage: Any, entry: Mapping[str, Any]) -> bool:
    """Whether a mixture has the weights and the names of a header."""
    return bool(entry["weights"] == described(stage.weights) and entry.get("sources", []) == [*stage.names])


def weights_saved(entry: Mapping[str, Any], keys: Sequence[str]) -> tuple[float, ...] | Schedule:
    """The weights in a header of some data sets; 0 of those that it does not have."""
    saved = keys_saved(entry)

    def of(weights: Sequence[float]) -> tuple[float, ...]:
        return tuple(weights[saved.index(key)] if key in saved else 0.0 for key in keys)

    weights = entry["weights"]
    if isinstance(weights, list):
        return of(weights)
    points = tuple(Segment(start, of(own)) for start, own in weights["points"])
    return Schedule(points, weights["by"], weights["between"])


@dataclass(frozen=True)
class Concat(Stage[Block]):
    """All rows of the first, then all of the second, and so on, in the columns of all of them.

    State: {"epoch", "source": which one, "rows": its state}.
    """

    verb = "concat_datasets"

    upstreams: tuple[Stage[Block], ...]
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, units=same_units(self, inputs), nulls=nulls_of(*inputs), **known_by(self))

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "source": 0, "rows": self.upstreams[0].start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, number, before = at["epoch"], at["source"], at["rows"]
        schema = schema_of(self, run)
        for which in range(number, len(self.upstreams)):
            if which > number:
                before = self.upstreams[which].start(epoch)
            with running(self.upstreams[which], before, run) as items:
                for block, after in items:
                    out = conformed(block, schema, verb_of(self), which) if block.num_rows else block
                    out = with_own_units(out, which, len(self.upstreams))
                    if after != END:
                        yield out, {"epoch": epoch, "source": which, "rows": after}
                    elif which + 1 < len(self.upstreams):
                        begun = self.upstreams[which + 1].start(epoch)
                        yield out, {"epoch": epoch, "source": which + 1, "rows": begun}
                    else:
                        yield out, END

    def first_types(self, epoch: int) -> pa.Schema:
        return union_of(self.upstreams, "concat_datasets")


COUNTED: Final = 1_000_000
"""Rows that are read beyond the end of the shortest, to say how many the others have."""


@dataclass(frozen=True)
class Zip(Stage[Block]):
    """Row i has the columns of row i of each; all must have equally many, which is known when the first of them ends.

    State: {"number": rows handed on, "rows": [position of its `ReplayBuffer`] of each}.
    """

    verb = "zip_datasets"

    upstreams: tuple[Stage[Block], ...]

    def __post_init__(self) -> None:
        for upstream in self.upstreams:
            refuse_streams(upstream, "zip_datasets", "pairs")
            refuse_units(upstream, "zip_datasets", "pairs rows one by one", "call units on the result of zip_datasets")

    def start(self, epoch: int) -> State:
        return {"number": 0, "rows": [{"rows": upstream.start(epoch)} for upstream in self.upstreams]}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        done = at["number"]
        with ExitStack() as stack:
            own = (ReplayBuffer(*one, run, joins=True) for one in zip(self.upstreams, at["rows"], strict=True))
            sources = [stack.enter_context(source) for source in own]
            rows = self._at_hand(sources, done)
            if not rows:
                yield EMPTY, END
            while rows:
                require_distinct([visible(source.peek()).schema for source in sources])
                block = beside([source.take(rows) for source in sources])
                done += rows
                state = {"number": done, "rows": [source.position for source in sources]}
                failure: Exception | None = None
                left_out: Counts = {}
                try:
                    rows, left_out = apart(self._at_hand, sources, done)
                except Exception as error:  # raised once the rows before it are out
                    failure = error
                if not rows:  # nothing will be asked for after the last block
                    add_counts(left_out)
                yield block, state if rows or failure else END
                if rows:
                    add_counts(left_out)
                if failure is not None:
                    raise failure

    def _at_hand(self, sources: Sequence[ReplayBuffer], done: int) -> int:
        """How many rows all of them have at hand; 0 where all have ended.

        Raises:
            DataError: one has ended and another has not.
        """
        rows = [source.fill() for source in sources]
        if 0 in rows and any(rows):
            ended, longer = rows.index(0), next(number for number, count in enumerate(rows) if count)
            raise unequal(ended, f"{done:,} rows", longer, _counted(sources[longer], done))
        return min(BLOCK_ROWS, *rows)


def _counted(source: ReplayBuffer, done: int) -> str:
    """How many rows a data set has, of which some are done, as far as that is soon known."""
    count = done
    while rows := source.fill():
        count += rows
        source.take(rows)
        if count - done > COUNTED:
            return f"more than {count:,} rows"
    return f"{count:,} rows"
