"""Counts of what stages left out or cut, each thing once, whatever was read ahead or is read again after a resume."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

from brimful.plan.errors import logger

R = TypeVar("R")

Counts: TypeAlias = dict[str, tuple[int, str | None]]
"""By name: how many things were left out, and the words for the log."""


class Counters:
    """Counts what stages left out or cut (`skipped`, `dropped_tokens` ...); shared by the threads of one iterator.

    Args:
        log: called with the message of a count, the first time.
        wanted: whether somebody wants to know: where an epoch is only planned, nobody does.
    """

    def __init__(self, log: Callable[[str], None] = logger.warning, wanted: bool = True) -> None:
        self._log = log
        self.wanted: bool = wanted
        self._counts: Counts = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Counters, ()  # a copy in another process counts anew

    def add(self, name: str, number: int, message: str | None) -> None:
        with self._lock:
            first = name not in self._counts
            before, said = self._counts.get(name, (0, message))
            self._counts[name] = before + number, said
        if first and message is not None:
            self._log(message)

    def taken(self) -> Counts:
        """The counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: number for name, (number, _) in self._counts.items()}


COUNTERS: ContextVar[Counters | None] = ContextVar("brimful_counters", default=None)
"""Who counts what the code of this thread leaves out. Tokenizers, templates and policies count, and have no run: users call them,
too."""


def count(name: str, number: int, message: str | None = None) -> None:
    """Counts `number` things left out under `name` in the running iterator's `.stats`; logs `message` the first time."""
    if number:
        (COUNTERS.get() or Counters()).add(name, number, message)


def counting() -> bool:
    """Whether somebody wants to know what the code of this thread leaves out."""
    counters = COUNTERS.get()
    return counters is not None and counters.wanted


def apart(fn: Callable[..., R], *args: Any) -> tuple[R, Counts]:
    """`fn(*args)`, and what it left out, which nobody has counted. Whoever reads ahead adds that (`add_counts`) right before it
    hands on the item that came of it, and whoever reads again what came before a state drops it. So each thing that is left out
    is counted once, before a resume or after it, whatever was read ahead.

    >>> apart(lambda: count("dropped", 2, "too long"))
    (None, {'dropped': (2, 'too long')})
    """
    into = Counters(lambda message: None, counting())
    before = COUNTERS.set(into)
    try:
        result = fn(*args)
    except BaseException:
        COUNTERS.reset(before)
        add_counts(into.taken())
        raise
    COUNTERS.reset(before)
    return result, into.taken()


def with_counts(items: Iterator[R]) -> Iterator[tuple[R, Counts]]:
    """Each item, and what was left out on the way to it: see `apart`."""
    while True:
        found: list[R]
        found, counts = apart(list, islice(items, 1))
        if not found:
            add_counts(counts)
            return
        yield found.pop(), counts


def again(items: Iterator[R], number: int) -> Iterator[R]:
    """The items, of which the first `number` came before a state was saved: what they left out was counted then."""
    yield from (item for item, _ in islice(with_counts(items), number))
    yield from items


def with_counters(fn: Callable[..., R], *args: Any, tally: Counters | None = None) -> tuple[R, Counts]:
    """`fn(*args)`, and what it left out: for who runs it in another process and brings both back; see `add_counts`.

    Args:
        tally: of `quiet_counters`, where threads go on counting from one call to the next.

    >>> with_counters(lambda: count("dropped", 2, "too long"))
    (None, {'dropped': (2, 'too long')})
    """
    tally = tally or quiet_counters()
    context = copy_context()
    context.run(COUNTERS.set, tally)
    return context.run(fn, *args), tally.taken()


def quiet_counters() -> Counters:
    """Counts, and logs nothing: whoever gets the counts does that."""
    return Counters(log=lambda message: None)


def add_counts(counts: Counts) -> None:
    """Adds what was left out in another process to the running iterator's `.stats`, and logs it, as if it had been here."""
    for name, (number, message) in counts.items():
        count(name, number, message)


OnError = Literal["raise", "skip"]

SKIPPED: Final = "skipped: %s"
"""The line of the log for a record that is left out."""


def skipped(error: Exception) -> None:
    """Counts a row that is left out (on_error="skip"), and logs why: the error names file and line."""
    logger.warning(SKIPPED, error)
    count("skipped", 1)
