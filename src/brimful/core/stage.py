"""The core: a stage, and items that carry the state after them.

    Stage[T]   inputs                                       the stages that it reads from
               start(epoch) -> State                        the place before the first item of that epoch
               items(at: State, run) -> Iterator[(T, State)]  each item with the state from which the rest follows
               settings() -> dict                           what a state is compared with
               facts(*inputs: Facts) -> Facts               what is known of it without reading
    State      plain JSON: lists, ints, strings; positions only, never changed once yielded

The law, for every item k with state s_k: `list(stage.items(s_k, run)) == items[k+1:]`, on a fresh object and through JSON.
Because each item travels with its own state, whatever lies between producer and consumer (a thread, a queue, a process)
adds nothing to it: a checkpoint is the state of the last item that the consumer took.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from brimful.core.facts import Facts, following, named
from brimful.core.header import compared
from brimful.core.run import Run
from brimful.plan.once import settings_of

T = TypeVar("T")
S = TypeVar("S", bound="Stage[Any]")
T_co = TypeVar("T_co", covariant=True)
State: TypeAlias = Any  # plain JSON

END: Final = "end"
"""The state after the last item of an epoch: nothing follows it."""

BLOCK_ROWS: Final = 4096
BLOCK_BYTES: Final = 1 << 20


class Stage(ABC, Generic[T_co]):
    """A description of a stream: a frozen dataclass, without a state of its own.

    Each input item leads to at least one output item, if need be with 0 rows, so that states advance under a filter
    that drops everything. Items of inputs are read through `running`, which closes them with the reader.
    """

    @property
    def inputs(self) -> tuple[Stage[Any], ...]:
        """The stages that it reads from: its fields that are stages, or tuples of them."""
        several = [value if isinstance(value, tuple) else (value,) for value in settings_of(self).values()]
        return tuple(value for group in several for value in group if isinstance(value, Stage))

    def start(self, epoch: int) -> State:
        """The state before the first item of an epoch; by default, that of its input."""
        return self.inputs[0].start(epoch)

    @abstractmethod
    def items(self, at: State, run: Run) -> Generator[tuple[T_co, State], None, None]:
        """The items that follow the state `at` (never END), each with the state after it. Inputs are handed the same run."""

    def settings(self) -> dict[str, Any]:
        """The parameters that change the order of the data, by the names that users write, as plain JSON."""
        return compared(self, "upstream", "upstreams")

    def facts(self, *inputs: Facts) -> Facts:
        """What is known of it, by the facts of its inputs. Ask `facts_of`."""
        return following(self, *inputs)

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)


@contextmanager
def running(stage: Stage[T], at: State, run: Run | None = None) -> Iterator[Iterator[tuple[T, State]]]:
    """The items of `stage` that follow `at`, closed on the way out, by the thread that ran them; without a `run`, in one of their
    own."""
    if at == END:
        yield iter(())
    elif run is None:
        alone = Run()
        try:
            with closing(stage.items(at, alone)) as items:
                yield items
        finally:
            alone.close()
    else:
        with closing(stage.items(at, run)) as items:
            yield items


def with_inputs(stage: S, *inputs: Stage[Any]) -> S:
    """The same stage, which reads from others: as many as `inputs` has, in that order."""
    if not inputs:
        return stage
    given = iter(inputs)
    changes: dict[str, Any] = {}
    for name, value in settings_of(stage).items():
        if isinstance(value, Stage):
            changes[name] = next(given)
        elif isinstance(value, tuple) and any(isinstance(one, Stage) for one in value):
            changes[name] = tuple(next(given) for _ in value)
    return cast(S, dataclasses.replace(cast(Any, stage), **changes))


def not_in_state(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that does not change the order of the data (workers, prefetch, timeouts): it is never compared."""
    return dataclasses.field(default=default, metadata={"runtime": True})


def stream_part(stage: S, number: int, count: int) -> S:
    """The chain that gives stream `number` of `count`: its sources give a part, and what draws random numbers has a seed of its
    own. A stage that must know which stream it serves has a method `for_stream`.

    Raises:
        ValueError: it has a source that gives no part.
    """
    if hasattr(stage, "for_stream"):
        stage = stage.for_stream(number, count)
    elif not stage.inputs:
        raise ValueError(
            f"{named(stage)} cannot be read as {count:,} streams, as from_files(streams=...) can: each stream would read "
            "all of it"
        )
    return with_inputs(stage, *(stream_part(one, number, count) for one in stage.inputs))


CARRY: Final = "carry"
"""The name under which a position has a value of the user's, into which nobody looks."""

MOST_STAGES: Final = 64
"""In one chain. Each takes up to 10 of the 1,000 calls that Python nests."""


def check_depth(stage: Stage[Any]) -> None:
    """Refuses a chain of more stages than Python could run.

    Raises:
        ValueError: with both numbers.
    """
    if (depth := _depth(stage)) > MOST_STAGES:
        raise ValueError(
            f"{named(stage)} makes a chain of {depth:,} stages, and one may have {MOST_STAGES}; put what several functions do "
            "into one"
        )


def _depth(stage: Stage[Any]) -> int:
    return 1 + max(map(_depth, stage.inputs), default=0)


class StreamId(NamedTuple):
    """Which of several streams a stage serves: its number, how many they are, and the stage's seed before it had one for each."""

    number: int
    lanes: int
    seed: int


def share(count: int, stream: int, count_of_streams: int) -> int:
    """How many of the first `count` items are a stream's where an item of each is taken in turn.

    >>> [share(7, stream, 3) for stream in range(3)]
    [3, 2, 2]
    """
    return (count + count_of_streams - 1 - stream) // count_of_streams
