"""Items made ahead of use, by a thread; and those that must not be, which the consumer's thread makes when it takes them:
what draws from generators that the whole process shares."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from brimful.core.background import read_ahead
from brimful.core.facts import Facts, following
from brimful.core.replay import REPLAY
from brimful.core.stage import Stage, State, not_in_state

T = TypeVar("T")
R = TypeVar("R")

AHEAD: Final[ContextVar[bool]] = ContextVar("brimful_ahead", default=False)
"""Whether this code runs ahead of the consumer, beside whatever the consumer does."""
HANDED_ON: Final[ContextVar[bool]] = ContextVar("brimful_handed_on", default=False)
"""Whether a stage of ours takes the items of an iterator here, and hands on the deferred ones as they are."""


def hands_on() -> bool:
    """Whether deferred items of an iterator that is made here are its taker's to make."""
    return AHEAD.get() and HANDED_ON.get()


@dataclass(frozen=True)
class Deferred(Generic[T]):
    """An item that is made by whoever takes it."""

    made: Callable[[], T]

    def then(self, fn: Callable[[T], R]) -> Deferred[R]:
        """`fn` of the item, deferred as well."""
        return Deferred(lambda: fn(self.made()))


def then(item: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn(item)`: now, or deferred where the item is.

    >>> then(2, str), then(Deferred(lambda: 2), str).made()
    ('2', '2')
    """
    return item.then(fn) if isinstance(item, Deferred) else fn(item)


def defer(item: Any, fn: Callable[[Any], Any]) -> Deferred[Any]:
    """`fn(item)`, deferred in any case."""
    return item.then(fn) if isinstance(item, Deferred) else Deferred(lambda: fn(item))


def items_ahead(
    start: Callable[[], Generator[tuple[T, State], None, None]], depth: int, name: str
) -> Generator[tuple[T, State], None, None]:
    """The items of `read_ahead`. Deferred ones are made when they are taken: where several threads lie one behind the other, by
    the last of them, the consumer's."""
    if REPLAY.get() is not None:
        yield from start()
        return
    inside = AHEAD.get()

    def started() -> Generator[tuple[T, State], None, None]:
        AHEAD.set(True)  # in the thread, whose context is its own
        return start()

    with closing(read_ahead(started, depth, name)) as items:
        for item, after in items:
            yield (item.made() if isinstance(item, Deferred) and not inside else item), after


@dataclass(frozen=True)
class Ahead(Stage[T]):
    """Up to `depth` items of `upstream` ready before they are asked for, and one in the making; nothing else changes."""

    verb = ""

    upstream: Stage[T]
    depth: int = not_in_state()
    name: str = not_in_state("ahead")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="passes")

    def items(self, at: State) -> Generator[tuple[T, State], None, None]:
        yield from items_ahead(lambda: self.upstream.items(at), self.depth, self.name)
