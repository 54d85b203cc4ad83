"""Several data sets mixed in fixed proportions."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import EMPTY, array_of, concat, token_counts
from brimful.blocks.resize import Cursor
from brimful.blocks.schema import as_text, from_text
from brimful.blocks.several import conformed, union_of
from brimful.blocks.typed import Typed
from brimful.core.errors import Counts, StateError, add_counts, apart
from brimful.core.repeat import Waiting, reached
from brimful.core.replay import REPLAY
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, described, runtime
from brimful.plan.mix import ENDLESS, Stop, check, due, stratified


@dataclass(frozen=True)
class Interleave(Typed):
    """Rows of each in stratified order (`plan.mix.due`). `stop` says what happens where a data set is due that has ended:

    "first" ends there; "all" leaves it out and goes on with the others; "all_repeat" begins it again, with its next
    epoch, until each has ended once. If that has no row, its turn is passed on, and its next turn begins another.

    `length_column` (None: weights are shares of rows) makes the weights shares of the tokens of that column: due is the
    least (tokens served + 1/2) / weight, which needs no length of a row to come; an empty row counts as one token. So
    shares are exact to one row of each at any time.

    A state that is given to other weights than it was saved with keeps those for what is read again; from there on the shares
    are counted anew.

    State: [epoch, [rows or tokens served, its epoch, 1 if it has ended once, state before its block, rows of the block served,
    the block's rows and their checksums] of each, the types as text, [rows or tokens, weights] of each of the weights that hold
    before those of this mixture, until so many are served].
    """

    verb = "interleave_datasets"
    fills_nulls: ClassVar[bool] = True

    upstreams: tuple[Stage[Block], ...]
    weights: tuple[float, ...]
    stop: Stop
    length_column: str | None = None
    saved_weights: tuple[float, ...] | None = runtime(None)
    """Those with which a state was saved, where others are to follow."""

    def __post_init__(self) -> None:
        check(len(self.upstreams), self.weights, self.stop)

    @property
    def endless(self) -> bool:
        return (all if self.stop == "first" else any)(one.endless for one in self.upstreams)

    def start(self, epoch: int) -> State:
        return [epoch, [[0, epoch, 0, upstream.start(epoch), 0, 0, []] for upstream in self.upstreams], ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, states, text, *earlier = at
        schema = from_text(text) if text else self.schema
        text = text or as_text(schema)
        replay = None
        if self.saved_weights is not None:
            earlier.append([ENDLESS, [*self.saved_weights]])
            replay = _Replay(self, at, [sum(state[0] for state in states), earlier[0][1]])
        with ExitStack() as stack:
            own = (_Source(*one, leaves=self.stop == "all") for one in zip(self.upstreams, states, strict=True))
            sources = [stack.enter_context(closing(source)) for source in own]
            block, state, past = EMPTY, at, 0
            while True:
                weights = earlier[past][1] if past < len(earlier) else self.weights
                for source, weight in zip(sources, weights, strict=True):
                    source.weight = weight
                more = True
                failure: Exception | None = None
                left_out: Counts = {}
                try:
                    more, left_out = apart(self._settle, sources)
                except Exception as error:  # raised once the rows before it are out
                    failure = error
                if replay is not None and not more:  # its end must come again too, also where it gave no row
                    served = max(1, sum(source.served for source in sources))
                    replay.place = [*earlier[:past], [served, earlier[past][1]]]
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
                if past < len(earlier) and sum(source.served for source in sources) >= earlier[past][0]:
                    past, block = past + 1, EMPTY
                    for source in sources:
                        source.served = 0
                    continue
                left = earlier[past][0] - sum(source.served for source in sources) if past < len(earlier) else ENDLESS
                block = _serve(sources, self.length_column, schema, left)
                state = [epoch, [source.state for source in sources], text, *earlier[past:]]
                if replay is not None:
                    replay.place = [*earlier[:past], [sum(source.served for source in sources), earlier[past][1]]]

    def saved_with(self, weights: Iterator[Any]) -> Interleave:
        own = self.over(*(one.saved_with(weights) for one in self.upstreams))
        saved = next(weights)
        return replace(own, saved_weights=None if saved == described(self.weights) else tuple(saved))

    def first_types(self) -> pa.Schema:
        return union_of(self.upstreams, "interleave_datasets")

    def _settle(self, sources: list[_Source]) -> bool:
        """Goes by `stop` until a source is due that has a row; False where none will have one."""
        while alive := [source for source in sources if not source.left_out]:
            source = alive[due([one.served for one in alive], [one.weight for one in alive])]
            if source.cursor.fill():
                return True
            if self.stop == "first":
                return False
            source.ended = True
            if self.stop == "all":
                continue
            if all(one.ended for one in alive):
                return False
            source.begin_again()
            if not source.cursor.fill():
                source.pass_on(min((one.time for one in alive if one is not source), default=0.0))
        return False


class _Replay:
    """A run of a mixture that has other weights than its state. `place`: how long each of those held so far."""

    def __init__(self, mixture: Interleave, at: State, place: State) -> None:
        self._mixture, self._at = mixture, at
        self.place = self._until = [place]
        if (found := REPLAY.get()) is not None:
            found.append(self)

    def reached(self) -> None:
        self._until = self.place

    def hold(self, parts: Collection[int]) -> None:
        """As `Replayed` says.

        Raises:
            StateError: the run began at the start of an epoch, of which the state says nothing.
        """
        held = [[served, weights] for served, weights in self._until if served]
        if id(self._at) in parts:
            self._at[3:] = held
        elif held:
            saved, ours = described(self._mixture.saved_weights), described(self._mixture.weights)
            raise StateError(
                f"{self._mixture.verb} cannot change weights {saved} to {ours} at this state: the rows that must be read again "
                f"go over the start of epoch {self._at[0]:,} of the mixture, and a state says only where they begin; go on with "
                f"weights {saved} for some batches, and change them at a later state"
            )


class _Source:
    """One of the data sets: how much it gave, and where it is. `leaves`: it is left out once it has ended."""

    def __init__(self, upstream: Stage[Block], state: State, leaves: bool) -> None:
        self.upstream, self._leaves = upstream, leaves
        self.served, self.epoch, ended, *at = state
        self.weight = 0.0  # that of the next rows
        self.ended = ended > 0
        self.cursor = Cursor(upstream, *at)
        self._waiting = Waiting(upstream, reached(self.epoch, None))

    @property
    def time(self) -> float:
        """When it is due: see `plan.mix.due`."""
        return float((self.served + 0.5) / self.weight)

    @property
    def left_out(self) -> bool:
        return self._leaves and self.ended

    @property
    def state(self) -> State:
        return [self.served, self.epoch, int(self.ended), *self.cursor.state]

    def begin_again(self) -> None:
        self.cursor.close()
        self.epoch += 1
        self.cursor = Cursor(self.upstream, self.upstream.start(self.epoch), 0, 0, [])

    def pass_on(self, time: float) -> None:
        """It has no row in this epoch: its turn goes to the others, the next of which is due at some time.

        Raises:
            DataError: so it was in 1,000 epochs.
        """
        self._waiting.got(0, reached(self.epoch, None))
        self.served = max(self.served + 1, int(min(time * self.weight, ENDLESS)))

    def at_hand(self, column: str | None) -> int | NDArray[np.int64]:
        """How many rows there are, or the tokens of each."""
        rows = self.cursor.fill()
        if column is None:
            return rows
        return np.maximum(token_counts(self.cursor.rest, (column,), rows > 0), 1)

    def take(self, rows: int, served: int) -> Block:
        self.served += served
        if rows:
            self._waiting.got(rows, reached(self.epoch, None))
        return self.cursor.take(rows)

    def close(self) -> None:
        self.cursor.close()


def _serve(sources: list[_Source], column: str | None, schema: pa.Schema, left: int) -> Block:
    """The next rows in their order, up to where a source without a row at hand is due, or `left` rows or tokens are served."""
    numbers, alive = zip(*((number, source) for number, source in enumerate(sources) if not source.left_out))
    at_hand = [source.at_hand(column) for source in alive]
    owners = stratified([one.served for one in alive], at_hand, [one.weight for one in alive])[:BLOCK_ROWS]
    if left < ENDLESS:
        served = np.ones(len(owners), dtype=np.int64)
        for number, given in enumerate(at_hand):
            if not isinstance(given, int):
                served[owners == number] = given[: np.count_nonzero(owners == number)]
        owners = owners[: int(np.searchsorted(np.cumsum(served), left)) + 1]
    counts = np.bincount(owners, minlength=len(alive)).tolist()
    sizes = [rows if isinstance(given, int) else int(given[:rows].sum()) for given, rows in zip(at_hand, counts)]
    taken = [source.take(*share) for source, *share in zip(alive, counts, sizes, strict=True)]
    block = concat(
        conformed(rows, schema, "interleave_datasets", number) for number, rows in zip(numbers, taken) if rows.num_rows
    )
    places = np.empty(len(owners), dtype=np.int64)
    places[np.argsort(owners, kind="stable")] = np.arange(len(owners))
    return block.take(array_of(places))
