"""What a run that goes on from a state reads again. It must come as it did before, also where weights have changed since."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextvars import copy_context
from itertools import islice
from operator import is_
from typing import Any, Protocol, TypeVar

from brimful.core.counters import COUNTERS, quiet_counters
from brimful.core.run import Run
from brimful.core.stage import Stage, State, running, with_inputs

T = TypeVar("T")


class Replayed(Protocol):
    """A run of a stage that has the setting with which the state was saved, and has another one now."""

    def reached(self) -> None:
        """What it gave so far must come again."""

    def hold(self, parts: Collection[int]) -> None:
        """Writes into the state where the run began how far the saved setting holds.

        Args:
            parts: the ids of all parts of the position that the state is in.
        """


def shards_differ(saved: Any, ours: Any) -> str:
    """How the lists of shards of two headers differ in number, and what to do; "" where they do not.

    >>> two, three = ([{"verb": "from_files", "urls": {"shards": count, "digest": ""}}] for count in (2, 3))
    >>> shards_differ(two, three)
    'has changed (from 2 to 3), and a new shard may be read in this window: add shards between two epochs'
    """
    if isinstance(saved, list) and isinstance(ours, list):
        return next(filter(None, map(shards_differ, saved, ours)), "")
    if not isinstance(saved, dict) or not isinstance(ours, dict):
        return ""
    if "urls" not in saved or "urls" not in ours:
        return next(filter(None, (shards_differ(saved[name], ours[name]) for name in saved if name in ours)), "")
    then, now = saved["urls"]["shards"], ours["urls"]["shards"]
    if then == now:
        return ""
    added = "and a new shard may be read in this window: add shards between two epochs"
    return (
        f"has changed (from {then:,} to {now:,}), {added if then < now else 'so put back those that were taken away'}"
    )


def reached(run: Run) -> None:
    """A stage has read again all that it must."""
    for one in run.replay or ():
        one.reached()


def whole_step(items: Iterator[T], count: int, run: Run) -> Iterator[T]:
    """The next `count` items, which must come again where a state has the labels of all of them."""
    if run.replay is not None:
        run.step = count
    yield from islice(items, count)
    reached(run)


def replayed(stage: Stage[Any], at: State, step: int = 1) -> list[Replayed]:
    """The runs that lead to the last of the next `step` items after a state."""
    outer = Run.here()
    run = Run(outer)
    run.wholes = {} if outer is None else outer.wholes
    run.replay = found = list[Replayed]()
    context = copy_context()
    context.run(COUNTERS.set, quiet_counters())
    context.run(_first, stage, at, run, step)
    return found


def keep_weights(stage: Stage[Any], position: State, saved: Any, ours: Any) -> None:
    """Has a position say how far the weights in the header `saved` still hold, where `ours` has others. It is changed in place.

    Price: what the position has read again is read once more, by one thread.
    """
    weights = [*_weights(saved)]
    if weights != [*_weights(ours)]:
        parts = {*_ids(position)}
        for one in replayed(with_saved_weights(stage, iter(weights)), position):
            one.hold(parts)


def with_saved_weights(stage: Stage[T], weights: Iterator[Any]) -> Stage[T]:
    """The chain as a state was saved that has these weights of its mixtures, from the sources on; the rest is as it is. A mixture
    has a method for it."""
    inputs = tuple(with_saved_weights(one, weights) for one in stage.inputs)
    own = stage if all(map(is_, inputs, stage.inputs)) else with_inputs(stage, *inputs)
    return own.with_saved_weights(next(weights)) if hasattr(own, "with_saved_weights") else own


def _first(stage: Stage[Any], at: State, run: Run, step: int) -> None:
    with run.entered(), running(stage, at, run) as items:
        deque(islice(items, step), maxlen=0)
    run.close()


def _weights(header: Any) -> Iterator[list[float]]:
    """Those of each mixture of streams, in the order of `with_saved_weights`."""
    for one in header:
        for branch in one.get("datasets", ()):
            yield from _weights(branch)
        if one.get("verb") == "interleave_datasets" and "weights" in one:
            yield one["weights"]


def _ids(position: State) -> Iterator[int]:
    yield id(position)
    if isinstance(position, dict | list):
        for one in position.values() if isinstance(position, dict) else position:
            yield from _ids(one)
