"""What a run that goes on from a state reads again. It must come as it did before, also where weights or sources of mixtures have
changed since."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import copy_context
from itertools import islice
from operator import is_
from typing import Any, Final, Protocol, TypeVar

from brimful.core.counters import COUNTERS, quiet_counters
from brimful.core.header import in_header
from brimful.core.run import Run
from brimful.core.stage import Stage, State, running, with_inputs
from brimful.plan.errors import logger

T = TypeVar("T")


class Replayed(Protocol):
    """A run of what reads mixtures that have other weights, or sources, than the state was saved with."""

    def reached(self) -> None:
        """What it gave so far must come again."""

    def hold(self, parts: Collection[int]) -> tuple[str, int] | None:
        """Has it known how far the saved weights hold; their unit and how many that are, where it knows.

        Args:
            parts: the ids of all parts of the position that the run began in.
        """


class Mixture(Protocol):
    """A stage whose order a header holds, and which may be another one at a resume."""

    def as_saved(self, entry: Mapping[str, Any]) -> Any:
        """The same with what the entry of a header says and no code does."""

    def before_edit(self, entry: Mapping[str, Any]) -> Any:
        """The same as a state was saved that has this entry; the same object, where nothing differs."""

    def after_edit(self, entry: Mapping[str, Any], before: Any) -> Any:
        """The same as it goes on, once `before` has been read again."""


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


def as_saved(stage: Stage[T], header: Any) -> Stage[T]:
    """The chain with what a header says of its mixtures and no code does."""
    return _rewritten(stage, header, lambda one, entry: one.as_saved(entry))


def edited(stage: Stage[T], position: State, header: Any) -> Stage[T]:
    """The chain that goes on from a position, where it has other weights, or sources, than the header that the position was saved
    with. What must come again keeps those; the others begin after it, which is said once. Positions of streams are changed in
    place.

    Price: what the position has read again is read once more, by one thread.
    Raises:
        StateError: they cannot change at this position.
    """
    mixtures: dict[int, Any] = {}

    def before(one: Mixture, entry: dict[str, Any]) -> Any:
        mixtures[id(entry)] = one.before_edit(entry)
        return mixtures[id(entry)]

    saved = _rewritten(stage, header, before)
    if saved is stage:
        return stage
    parts = {*_ids(position)}
    held = [place for one in replayed(saved, position) if (place := one.hold(parts))]
    places = sorted({count for _, count in held})
    if places:
        shown = ", ".join(f"{place:,}" for place in places[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
        apart = "" if len(places) == 1 else " of its streams or places"
        logger.warning(
            "interleave_datasets goes on with other weights or sources from %s %s%s on, as allow= says. What must be read again "
            "keeps the old ones",
            held[0][0],
            shown,
            apart,
        )
    return _rewritten(stage, header, lambda one, entry: one.after_edit(entry, mixtures.get(id(entry), one)))


_SHOWN: Final = 8


def _rewritten(stage: Stage[T], header: Any, change: Callable[[Any, Any], Any]) -> Stage[T]:
    """The chain with each mixture as `change` makes it, which is called with it and its entry in a header, from the sources on.
    What it leaves as it is stays the same object."""
    entry, parts = in_header(stage, header)
    inputs = tuple(_rewritten(one, part, change) for one, part in zip(stage.inputs, parts))
    own = stage if all(map(is_, inputs, stage.inputs)) else with_inputs(stage, *inputs)
    return change(own, entry) if entry is not None and hasattr(own, "before_edit") else own


def _first(stage: Stage[Any], at: State, run: Run, step: int) -> None:
    with run.entered(), running(stage, at, run) as items:
        deque(islice(items, step), maxlen=0)
    run.close()


def _ids(position: State) -> Iterator[int]:
    yield id(position)
    if isinstance(position, dict | list):
        for one in position.values() if isinstance(position, dict) else position:
            yield from _ids(one)
