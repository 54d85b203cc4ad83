"""Items made ahead of use, by a thread; and those that must not be, which the consumer's thread makes when it takes them:
what draws from generators that the whole process shares."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from brimful.core.facts import Facts, following
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state
from brimful.core.threads import read_ahead

T = TypeVar("T")
R = TypeVar("R")


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
    start: Callable[[Run], Generator[tuple[T, State], None, None]], depth: int, name: str, run: Run
) -> Generator[tuple[T, State], None, None]:
    """The items of `read_ahead`. Deferred ones are made when they are taken: where several threads lie one behind the other, by
    the last of them, the consumer's."""
    if run.replay is not None:
        yield from start(run)
        return
    with closing(read_ahead(lambda: start(run.behind()), depth, name, run)) as items:
        for item, after in items:
            yield (item.made() if isinstance(item, Deferred) and not run.ahead else item), after


@dataclass(frozen=True)
class Ahead(Stage[T]):
    """Up to `depth` items of `upstream` ready before they are asked for, and one in the making; nothing else changes."""

    verb = ""

    upstream: Stage[T]
    depth: int = not_in_state()
    name: str = not_in_state("ahead")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="passes")

    def items(self, at: State, run: Run) -> Generator[tuple[T, State], None, None]:
        yield from items_ahead(lambda run: self.upstream.items(at, run), self.depth, self.name, run)
