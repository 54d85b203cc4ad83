"""What windows are planned by: from the consumer of a run, who tells lessons, to its planner, which may be ahead in a thread.

    consumer   ask(told) for each item            Told: what had been told when each item was asked for
    planner    known() ... planned(n) ... hand()  Plans: by what the next window is planned; then which items it took part in
    consumer   taken()                            which windows began in the item that was taken

Several data-parallel ranks plan the same windows, and each takes one batch of each step: an item is a step then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from brimful.core.background import Stopped, belongs
from brimful.core.later import AHEAD


class Told:
    """What the consumer had told when it asked for each item, by the windows that began in them."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Any] | None] = SimpleQueue()  # None where nobody asks any longer
        self._begun: SimpleQueue[int | None] = SimpleQueue()  # the item in which each window began
        self._item, self._value = -1, None
        self.asks = 0
        belongs(self)

    def ask(self, value: Any) -> None:
        """An item is asked for, and so much has been told."""
        self._asked.put((value,))
        self.asks += 1

    def begin(self, item: int) -> None:
        """A window began in an item."""
        self._begun.put(item)

    def by_next(self) -> tuple[Any, bool]:
        """What had been told when the item was asked for in which the next window began, as soon as it is; and whether the
        window before it began in another item.

        Raises:
            Stopped: the run was closed meanwhile.
        """
        item = self._begun.get()
        if item is None:
            raise Stopped
        another = self._item < item
        while self._item < item:
            asked = self._asked.get()
            if asked is None:
                raise Stopped
            (self._value,) = asked
            self._item += 1
        return self._value, another

    def stop(self) -> None:
        """Ends what waits."""
        self._asked.put(None)
        self._begun.put(None)


class Began(NamedTuple):
    """Args:
    models: by what the windows were planned that began in an item.
    inside: whether the item is not the last one of the window at work.
    """

    models: list[Any]
    inside: bool


class Plans:
    """By what the windows of a run are planned, one after the other. No lock: all goes through queues.

    Each model is for one window that has a batch; a window that has none leaves it to the next.

    Args:
        models: of the first windows.
        inside: whether the first of them began before this run.
        agreed: those of the windows after them, where several ranks agree; else they are what was told.
    """

    def __init__(self, models: Iterable[Any], inside: bool, told: Told, agreed: Iterator[Any] | None = None) -> None:
        self._models = deque(models)
        self._inside = inside
        self._told, self._agreed = told, agreed
        self._items, self._last = 0, 0  # made so far; the one in which the last window began
        self._size = 0  # batches of an item; 0 where each batch is one
        self._left = 0  # batches that are planned, and in no item yet
        self._begun: list[Any] = []
        self._taken: deque[Began] = deque()
        self.at_work: Any = None
        self.claimed = False

    # -- the planner's side

    def known(self) -> Any:
        """What the next window is planned by, as soon as it is known.

        Raises:
            Stopped: the run was closed meanwhile.
        """
        if not self._models:
            assert AHEAD.get() or self._last < self._told.asks, (
                "whoever asks for an item has told what its window is planned by"
            )
            if self._agreed is None:
                self._models.append(self._told.by_next()[0])
            else:
                self._models.extend([next(self._agreed)])
        return self._models[0]

    def planned(self, count: int) -> None:
        """So many batches of the window follow."""
        if not count:
            return
        self._left += count
        self.at_work = self._models.popleft()
        if not self._inside:
            self._last = self._items
            self._told.begin(self._items)
            self._begun.append(self.at_work)
        self._inside = False

    def hand(self, last: bool) -> None:
        """One of them is handed on; `last` where none follows."""
        if not self._size:
            self.made(1, last)

    def made(self, count: int, last: bool) -> None:
        """An item of so many batches is made; `last` where no batch of the window at work follows."""
        self._left -= count
        self._items += 1
        self._taken.append(Began(self._begun, not last))
        self._begun = []

    @contextmanager
    def in_items_of(self, size: int) -> Iterator[None]:
        """Someone above makes items of so many batches each; what is left over at the end is in none."""
        self._size = size
        try:
            yield
        finally:
            self._size = self._left = 0

    @property
    def ready(self) -> bool:
        """Whether the next item comes without waiting for the consumer. Who reads ahead in the consumer's own thread, or
        holds items back, asks first. An item of several batches may span windows: it must be planned."""
        return self._left >= max(self._size, 1) or (
            self._size <= 1 and (bool(self._models) or self._last < self._told.asks)
        )

    # -- the consumer's side

    def taken(self) -> Began:
        """Of the item that was taken."""
        return self._taken.popleft()


class Again:
    """In place of a run's plans where batches are planned once more, beside it: all by the model that is at work."""

    claimed = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def known(self) -> Any:
        return self._model

    def planned(self, count: int) -> None:
        pass

    def hand(self, last: bool) -> None:
        pass


PLANS: Final[ContextVar[Plans | Again | None]] = ContextVar("brimful_plans", default=None)
"""Of the run whose code this is; None where nobody tells lessons: then all is planned by what is known at first."""


@contextmanager
def claimed(learns: bool) -> Iterator[Plans | Again | None]:
    """The plans of this run for the one stage that plans by them, as long as it does; None where nothing learns, nobody tells,
    or another stage inside of the run (one that a user's function runs) would take them away."""
    plans = PLANS.get() if learns else None
    if plans is None or plans.claimed:
        yield None
        return
    plans.claimed = True
    try:
        yield plans
    finally:
        plans.claimed = False


@contextmanager
def in_items_of(size: int) -> Iterator[Plans | None]:
    """The plans of this run for the one stage that makes items of so many batches of what is planned by them; None as for
    `claimed`."""
    plans = PLANS.get()
    if not isinstance(plans, Plans) or plans.claimed:
        yield None
        return
    with plans.in_items_of(size):
        yield plans


@contextmanager
def planned_again(plans: Plans | None) -> Iterator[None]:
    """What is planned meanwhile is beside the run; nothing may be yielded meanwhile."""
    token = PLANS.set(None if plans is None else Again(plans.at_work))
    try:
        yield
    finally:
        PLANS.reset(token)
