"""The whole chain again and again, with the next epoch; and what becomes of epochs that give nothing: whoever waits for a row of
theirs gets an error, and does not wait for ever."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from brimful.core.facts import Facts, facts_of, following, shown
from brimful.core.run import Run
from brimful.core.stage import CARRY, Stage, State, running, with_inputs
from brimful.plan.errors import DataError, logger
from brimful.plan.once import once

T = TypeVar("T")

MOST_EPOCHS: Final = 1_000
"""A random filter may leave out every row of a small epoch now and then, but not of so many."""


@dataclass(frozen=True)
class Repeat(Stage[T]):
    """Epoch after epoch without an end. Stages that flow over the seams of epochs (`repeated`) run as one stream, and the data
    below them repeat.

    State: {"repeated": the epoch, "rows": upstream's state in it}; of what flows its own.
    """

    upstream: Stage[T]

    def facts(self, *inputs: Facts) -> Facts:
        endless = {"ends": lambda: False, "num_items": lambda most: most, "carries": False}
        return following(self, *inputs, originals=inputs[0].originals, **endless)

    def start(self, epoch: int) -> State:
        flowing = self._flowing
        return reached(epoch, self.upstream.start(epoch)) if flowing is None else flowing.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[T, State], None, None]:
        if self._flowing is not None:
            yield from self._flowing.items(at, run)
            return
        waiting = EmptyEpochGuard(self, at)
        epoch, before = at["repeated"], at["rows"]
        while True:
            with running(self.upstream, before, run) as items:
                for item, after in items:
                    state = reached(epoch, after)
                    waiting.saw(getattr(item, "num_rows", 1), state)
                    yield item, state
            epoch += 1
            before = self.upstream.start(epoch)
            waiting.saw(0, reached(epoch, before))  # an epoch of batches may have no item at all

    @once
    def _flowing(self) -> Stage[T] | None:
        return repeated(self.upstream)


def repeated(stage: Stage[T]) -> Stage[T] | None:
    """The chain as it runs over epochs without an end, where its items may reach over their seams: then what repeats stands
    below. None: all of it ends with an epoch, and begins again."""
    found = facts_of(stage)
    if found.seam == "joins":
        return with_inputs(stage, *map(found.again or endless, stage.inputs))
    flowing = repeated(stage.inputs[0]) if found.seam == "passes" else None
    if flowing is None:
        return None
    over = with_inputs(stage, flowing)
    return over.over_seams() if hasattr(over, "over_seams") else over


def endless(stage: Stage[T]) -> Stage[T]:
    """Epoch after epoch, for a stage that flows over their seams."""
    return repeated(stage) or Repeat(stage)


# -- epochs that give nothing --------------------------------------------------------------------------------------------


def reached(epoch: int, rows: State) -> State:
    """The state of what repeats: the epoch that it has come to, and its place there."""
    return {"repeated": epoch, "rows": rows}


def epoch_of(state: State) -> int | None:
    """The epoch that what repeats has come to in a state, the least of several that are joined; None: nothing repeats there.

    >>> epoch_of([[reached(7, [2, 3]), 0], {"rows": reached(5, "end"), "done": 2}]), epoch_of([7, 2])
    (5, None)
    """
    if isinstance(state, list):
        return min((epoch for one in state if (epoch := epoch_of(one)) is not None), default=None)
    if not isinstance(state, dict) or "passing" in state:
        return None
    parts = [one for name, one in state.items() if name != CARRY]
    found: int | None = state["repeated"] if "repeated" in state else epoch_of(parts)
    return found


def passing(state: State) -> State:
    """The state of a stage that passes over rows which it counts: `epoch_of` does not look into it. It waits for rows itself.

    >>> epoch_of(passing({"rows": reached(7, [2, 3]), "left": 5}))
    """
    return {**state, "passing": 1} if isinstance(state, dict) else state


class EmptyEpochGuard:
    """Somebody who waits for rows of a stage: after 2 epochs without one there is a warning, after 1,000 an error.

    Epochs are told by the states that arrive with rows, and with blocks that have none. So it does not matter which thread reads,
    and how far ahead; and rows that a window or a chunker holds have not gone by: its state is where they begin.
    """

    def __init__(self, stage: Stage[Any], at: State) -> None:
        self._stage = stage
        self._since = at
        self._warned = False

    def saw(self, rows: int, after: State) -> None:
        """So many rows came, with the state after them.

        Raises:
            DataError: everything that repeats has given 1,000 epochs since the last row.
        """
        if rows:
            self._since = after
            return
        now, then = epoch_of(after), epoch_of(self._since)
        if now is None or then is None:
            self._since = self._since if now is None else after
            return
        if now - then >= MOST_EPOCHS:
            raise DataError(
                f"{now - then:,} epochs of {self._data} went by without a sample. The data are empty, or something "
                "leaves out every sample: a filter, on_error='skip', overlong='drop'. Look at one epoch without repeat"
            )
        if now - then >= 2 and not self._warned:
            self._warned = True
            logger.warning(
                "%d epochs of %s went by without a sample; reading goes on, up to %s such epochs in a row",
                now - then,
                self._data,
                f"{MOST_EPOCHS:,}",
            )

    @property
    def _data(self) -> str:
        first = facts_of(self._stage).first_shard()
        return shown(self._stage) + (f" (whose first file is {first})" if first else "")


@contextmanager
def awaited(stage: Stage[Any], at: State, run: Run | None = None) -> Iterator[Iterator[tuple[Any, State]]]:
    """The blocks of `stage` that follow `at`, as `running` gives them, for somebody who waits for a row of theirs."""
    waiting = EmptyEpochGuard(stage, at)

    def counted(items: Iterator[tuple[Any, State]]) -> Iterator[tuple[Any, State]]:
        for block, after in items:
            waiting.saw(block.num_rows, after)
            yield block, after

    with running(stage, at, run) as items:
        yield counted(items)
