"""Items that the consumer's thread makes: what draws from generators that the whole process shares."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from brimful.core.background import read_ahead
from brimful.core.stage import State

T = TypeVar("T")
R = TypeVar("R")

AHEAD: Final[ContextVar[bool]] = ContextVar("brimful_ahead", default=False)
"""Whether this code runs ahead of the consumer, beside whatever the consumer does."""
HANDED_ON: Final[ContextVar[bool]] = ContextVar("brimful_handed_on", default=False)
"""Whether whoever takes the items of an iterator here is ours, and hands on what will be made later."""


class Later(Generic[T]):
    """What will be made of something at hand, by whoever takes it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def made(self) -> T:
        return self._make()

    def then(self, fn: Callable[[T], R]) -> Later[R]:
        """What `fn` makes of it."""
        return Later(lambda: fn(self._make()))


def then(item: Any, fn: Callable[[Any], Any]) -> Any:
    """What `fn` makes of an item, now or later.

    >>> then(2, str), then(Later(lambda: 2), str).made()
    ('2', '2')
    """
    return item.then(fn) if isinstance(item, Later) else fn(item)


def later(item: Any, fn: Callable[[Any], Any]) -> Later[Any]:
    """What `fn` will make of an item, once it is taken."""
    return item.then(fn) if isinstance(item, Later) else Later(lambda: fn(item))


def items_ahead(
    start: Callable[[], Generator[tuple[T, State], None, None]], depth: int, name: str
) -> Generator[tuple[T, State], None, None]:
    """What `read_ahead` gives, with what may not be made ahead made when it is taken; where several threads lie one behind the
    other, by the last of them, the consumer's."""
    inside = AHEAD.get()

    def started() -> Generator[tuple[T, State], None, None]:
        AHEAD.set(True)  # in the thread, whose context is its own
        return start()

    with closing(read_ahead(started, depth, name)) as items:
        for item, after in items:
            yield (item.made() if isinstance(item, Later) and not inside else item), after
