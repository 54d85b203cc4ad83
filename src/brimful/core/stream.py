"""The core: a stage, and items that carry the state after them.

    Stage[T]   start(epoch) -> State                        the place before the first item of that epoch
               items(at: State) -> Iterator[(T, State)]     each item with the state from which the rest follows
    State      plain JSON: lists, ints, strings; positions only, never changed once yielded

The law, for every item k with state s_k: `list(stage.items(s_k)) == items[k+1:]`, on a fresh object and through JSON.
Because each item travels with its own state, whatever lies between producer and consumer (a thread, a queue, a process)
adds nothing to it: a checkpoint is the state of the last item that the consumer took.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from math import isfinite
from numbers import Real
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from brimful.core import random
from brimful.core.errors import StateError
from brimful.core.once import settings_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
State: TypeAlias = Any  # plain JSON

END: Final = "end"
"""The state after the last item of an epoch: nothing follows it."""

BLOCK_ROWS: Final = 4096
BLOCK_BYTES: Final = 1 << 20
VERSION: Final = 4


class Stage(ABC, Generic[T_co]):
    """A description of a stream: a frozen dataclass with two methods, and no state of its own.

    Each input item leads to at least one output item, if need be with 0 rows, so that states advance under a filter
    that drops everything. Upstream items are read through `running`, which closes them with the reader.
    """

    transparent: ClassVar[bool] = False
    """Whether the stage changes neither the order nor states (reading ahead, other columns): places pass it over."""

    flat: ClassVar[bool] = False
    """Whether those that follow one another have one place, as a + b + c, which is one stage."""

    makes_long_blocks: ClassVar[bool] = False
    """Whether a block of rows may become one of more than 4,096, which is cut before others have it."""

    by_row: ClassVar[bool] = False
    """Whether what becomes of a row depends on that row alone, not on those beside it or on how many came before: it may then
    be worked out anywhere. Rows keep their order, and where they came from."""

    @abstractmethod
    def start(self, epoch: int) -> State:
        """The state before the first item of an epoch."""

    @abstractmethod
    def items(self, at: State) -> Generator[tuple[T_co, State], None, None]:
        """The items that follow the state `at` (never END), each with the state after it."""

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @property
    def verb(self) -> str:
        """What users write for it; "" where it only serves what they wrote: messages then speak of the stage below."""
        return _WORDS.sub("_", type(self).__name__).lower()

    @property
    def label(self) -> str:
        """What it is shown as: the verb, and what it found out for itself."""
        return self.verb


_WORDS: Final = re.compile("(?<!^)(?=[A-Z])")


@contextmanager
def running(stage: Stage[T], at: State) -> Iterator[Iterator[tuple[T, State]]]:
    """The items of `stage` that follow `at`, closed on the way out, by the thread that ran them."""
    if at == END:
        yield iter(())
    else:
        with closing(stage.items(at)) as items:
            yield items


# -- headers: what a state must agree on with the pipeline that it is given to -------------------------------------------


def runtime(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that does not change the order of the data (workers, prefetch, timeouts): it is never compared."""
    return dataclasses.field(default=default, metadata={"runtime": True})


def describe(value: Any) -> Any:
    """A stage, or a setting of one, as plain JSON: every setting by value, less those marked `runtime`.

    An object with a method `fingerprint()` stands as what that returns; a function stands as its name; a number that JSON
    does not know (nan, inf) as a string.

    >>> from brimful.plan import TokenBudget
    >>> describe(TokenBudget(512))["max_tokens"]
    512
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Real):
        number = float(value)
        return number if isfinite(number) else str(number)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [describe(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    if hasattr(value, "fingerprint"):
        return value.fingerprint()
    if isinstance(value, Stage) and not value.verb:
        return describe(upstreams(value)[0])
    if dataclasses.is_dataclass(value):
        compared = [field for field in dataclasses.fields(value) if not field.metadata.get("runtime")]
        kind = getattr(value, "verb", type(value).__name__)
        return {"type": kind} | {field.name: describe(getattr(value, field.name)) for field in compared}
    return str(getattr(value, "__name__", type(value).__name__))


_REMEDIES: Final = {
    "urls": "a shard was added, taken away, renamed, put elsewhere in the list, or edited so that its size changed (a state has "
    "the digest of all names and sizes, not each of them): go on with those that saved it, or with these all the same by "
    "allow={'urls'}",
    "fixed_weights": "a place in a mixture of indexed data is counted with its weights, which allow={'weights'} cannot change: "
    "end the epoch with those that saved it, and begin the next with others, or mix streamed data",
}
"""What to do where a setting differs, by its name."""


_ALLOWED: Final = ("urls", "weights")
"""The settings in which a state may differ, where the caller says so."""


def allowed(names: Collection[str]) -> frozenset[str]:
    """The names of settings that a user gave, one or several.

    Raises:
        ValueError: for one that is not known, with those that are.
    """
    found = frozenset((names,) if isinstance(names, str) else names)
    for name in sorted(found - {*_ALLOWED}, key=str):
        raise ValueError(f"allow takes the names {' and '.join(map(repr, _ALLOWED))} (got {name!r})")
    return found


def check_header(saved: Any, ours: Any, allow: frozenset[str] = frozenset()) -> None:
    """Refuses a state whose header differs from the pipeline's, naming the setting and both values.

    Raises:
        StateError: at the first difference, except at settings named in `allow`.
    """
    difference = header_difference(saved, ours, allow)
    if difference is not None:
        name, then, now = difference
        remedy = _REMEDIES.get(name.rpartition(".")[2].partition("[")[0], "use the pipeline that saved it")
        raise StateError(
            f"this state belongs to another pipeline: {name} was {then} when it was saved and is {now} here; {remedy}"
        )


def header_difference(
    saved: Any, ours: Any, allow: frozenset[str] = frozenset(), path: str = ""
) -> tuple[str, str, str] | None:
    """The first setting in which two headers differ, and both its values; None where they are equal.

    >>> header_difference({"type": "take", "n": 1}, {"type": "take", "n": 2})
    ('take.n', '1', '2')
    """
    if isinstance(saved, dict) and isinstance(ours, dict) and saved.get("type") == ours.get("type"):
        inside = f"{path}." if path and not path.endswith(".") else path
        here = f"{inside}{ours['type']}." if ours.get("type") else inside
        pairs = (
            (saved.get(name), ours.get(name), here if name == "upstream" else f"{here}{name}")
            for name in [*ours, *(name for name in saved if name not in ours)]
            if name not in allow
        )
        if {"shards", "digest"} <= ours.keys() & saved.keys():  # neither says much without the other
            return None if saved == ours else (path, _brief(saved), _brief(ours))
    elif isinstance(saved, list) and isinstance(ours, list) and len(saved) == len(ours):
        pairs = ((one, other, f"{path}[{number}]") for number, (one, other) in enumerate(zip(saved, ours)))
    else:
        return None if saved == ours else (path.rstrip(".") or "pipeline", _brief(saved), _brief(ours))
    return next(filter(None, (header_difference(one, other, allow, name) for one, other, name in pairs)), None)


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        return str(value["type"])
    if isinstance(value, dict) and "shards" in value:
        return f"{value['shards']:,} shard{'s' * (value['shards'] != 1)} with the digest {value['digest']}"
    return repr(value)


def place(stage: Stage[Any]) -> int:
    """A stage's place in the chain: how many stages that change the order lie below it.

    Part of the key of every random choice, so that two stages with one seed differ.
    """
    return max((_places(below, False) for below in upstreams(stage)), default=0)


def _places(stage: Stage[Any], below_flat: bool) -> int:
    """How many places a stage and those below it have; `below_flat`: the stage that it serves is flat."""
    own = not stage.transparent and not (stage.flat and below_flat)
    flat = below_flat if stage.transparent else stage.flat
    return own + max((_places(below, flat) for below in upstreams(stage)), default=0)


def upstreams(stage: Stage[Any]) -> list[Stage[Any]]:
    """The stages that a stage reads from: its fields that are stages, or tuples of them."""
    values = [getattr(stage, field.name) for field in dataclasses.fields(cast(Any, stage))]
    several = [value if isinstance(value, tuple) else (value,) for value in values]
    return [value for group in several for value in group if isinstance(value, Stage)]


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
    return 1 + max(map(_depth, upstreams(stage)), default=0)


def all_stages(stage: Stage[Any]) -> Iterator[Stage[Any]]:
    """A stage, and those that it reads through, from itself down."""
    yield stage
    for below in upstreams(stage):
        yield from all_stages(below)


def chain(stage: Stage[Any], name: Callable[[Stage[Any]], str] = attrgetter("verb")) -> list[str]:
    """What users wrote for the stages that a stage reads through, from its source on; branches in brackets."""
    below = upstreams(stage)
    names = chain(below[0], name) if len(below) == 1 else []
    if len(below) > 1:
        names = [f"({' | '.join(' > '.join(chain(one, name)) for one in below)})"]
    return [*names, own] if (own := name(stage)) else names


def shown(stage: Stage[Any]) -> str:
    """A chain of stages as a person is shown it."""
    return " > ".join(chain(stage, attrgetter("label")))


def named(stage: Stage[Any]) -> str:
    """What users wrote for a stage, or for the one that it serves."""
    return stage.verb or named(upstreams(stage)[0])


def num_streams(stage: Stage[Any]) -> int | None:
    """Into how many streams a chain divides its data; None where it does not.

    Raises:
        ValueError: the sources of a mixture differ in that.
    """
    below = upstreams(stage)
    if not below:
        return getattr(stage, "streams", None)
    counts = [num_streams(one) for one in below]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the data sets of {named(stage)} must have equally many streams (got {', '.join(map(str, counts))}); "
            "give each the same from_files(streams=...)"
        )
    return counts[0]


def refuse_streams(stage: Stage[Any], method: str, does: str = "counts") -> None:
    """Refuses what goes through the rows of a chain in one order, where they are in several streams.

    Args:
        does: what the method does to the rows.
    Raises:
        ValueError: naming the method and the ways out.
    """
    count = num_streams(stage)
    if count is not None and count > 1:
        instead = "count batches instead (Batches.take, Batches.enumerate), filter the rows by what is in them, or "
        raise ValueError(
            f"{method} {does} the rows of all {count} streams, which are read apart and end apart: "
            f"{instead if does == 'counts' else ''}read them without streams="
        )


class Lane(NamedTuple):
    """Which of several streams a stage serves: its number, how many they are, and the stage's seed before it had one for each."""

    number: int
    lanes: int
    seed: int


class Divisible(Protocol):
    """A source that can be read as several streams."""

    def part(self, stream: int, num_streams: int) -> Stage[Any]:
        """What it gives in one of them."""


def stream_of(stage: Stage[T], stream: int, count: int) -> Stage[T]:
    """The chain of stages that gives stream `stream` of the `count` that a chain divides its data into: its sources give a
    part, and what draws random numbers has a seed of its own."""
    if not upstreams(stage):
        if not hasattr(stage, "part"):
            raise ValueError(
                f"{named(stage)} cannot be read as {count} streams, as from_files(streams={count}) can: each stream would read "
                "all of it"
            )
        return cast(Divisible, stage).part(stream, count)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, stage)):
        value = getattr(stage, field.name)
        if isinstance(value, Stage):
            changes[field.name] = stream_of(value, stream, count)
        elif isinstance(value, tuple) and any(isinstance(one, Stage) for one in value):
            changes[field.name] = tuple(stream_of(one, stream, count) for one in value)
        elif field.name == "seed":
            changes["seed"] = random.key(value, stream)
        elif field.name == "lane":
            changes["lane"] = Lane(stream, count, cast(Any, stage).seed)
        elif field.name == "types":
            changes["types"] = partial(getattr, stage, "schema")  # a stream has the columns of the whole
    return cast(Stage[T], dataclasses.replace(cast(Any, stage), **changes))


def share(count: int, stream: int, count_of_streams: int) -> int:
    """How many of the first `count` items are a stream's where an item of each is taken in turn.

    >>> [share(7, stream, 3) for stream in range(3)]
    [3, 2, 2]
    """
    return (count + count_of_streams - 1 - stream) // count_of_streams


def substituted(stage: Stage[Any], old: Stage[Any], new: Stage[Any]) -> Stage[Any]:
    """A chain of stages with one of them replaced."""
    if stage is old:
        return new
    (below,) = upstreams(stage)
    replaced: Stage[Any] = dataclasses.replace(cast(Any, stage), upstream=substituted(below, old, new))
    return replaced
