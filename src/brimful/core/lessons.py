"""Lessons: what the consumer tells of the items that it took, and from which window on they count.

A lesson that is told while the items of window w are taken counts from window w + 2 on. So what a window is planned by is
known before the first item of the window before it is taken, whatever reads ahead: it waits for the consumer, who never waits
for more than it has told.

    consumer   ask() ... took() ... learn(...)           Lessons: by what the window at work and the two after it are planned
    planner    known() ... planned(n) ... hand(last)     Plans: gets that, window by window, through a queue
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from brimful.core.background import Stopped, belongs
from brimful.core.errors import StateError
from brimful.core.later import AHEAD
from brimful.core.stream import Stage, State, all_stages


class Learner(Protocol):
    """What is known at first, what is known after a lesson, and both as plain JSON. What is known is never changed."""

    def first(self) -> Any: ...

    def after(self, known: Any, item: Any, value: float) -> Any: ...

    def to_json(self, known: Any) -> State: ...

    def from_json(self, saved: State) -> Any: ...


def learner_of(stage: Stage[Any]) -> Learner | None:
    """The one that a chain of stages learns by: that of a stage with a `learner`; None where nothing learns."""
    learners: Iterator[Learner | None] = (getattr(one, "learner", None) for one in all_stages(stage))
    return next((learner for learner in learners if learner is not None), None)


class Plans:
    """What windows are planned by, from the consumer of a run to its planner, which may be ahead in a thread.

    It takes one for each window that has an item; one that has none leaves it to the next. No lock: all goes through a queue.
    """

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[Any] | None] = SimpleQueue()  # None where nobody tells any longer
        self._held: tuple[Any] | None = None
        self._left = 0  # items of the window at work that are not handed on
        self.claimed = False
        self._lasts: deque[bool] = deque()  # of each item that was handed on, whether it is its window's last
        belongs(self)

    # -- the planner's side

    def known(self) -> Any:
        """What the next window is planned by, as soon as it is known.

        Raises:
            Stopped: the run was closed meanwhile.
        """
        if self._held is None:
            assert AHEAD.get() or not self._told.empty(), (
                "whoever asks for an item has told what its window is planned by"
            )
            self._held = self._told.get()
        if self._held is None:
            raise Stopped
        return self._held[0]

    def planned(self, count: int) -> None:
        """So many items of the window follow."""
        if count:
            self._held, self._left = None, count

    def hand(self, last: bool) -> None:
        """One of them is handed on."""
        self._left -= 1
        self._lasts.append(last)

    @property
    def ready(self) -> bool:
        """Whether the next item comes without waiting for the consumer. Who reads ahead in the consumer's own thread, or
        holds items back, asks first."""
        return self._left > 0 or self._held is not None or not self._told.empty()

    # -- the consumer's side

    def tell(self, known: Any) -> None:
        """What one more window is planned by."""
        self._told.put((known,))

    def took(self) -> bool:
        """Whether the item that was taken is its window's last."""
        return self._lasts.popleft()

    def stop(self) -> None:
        """Ends what waits."""
        self._told.put(None)


PLANS: Final[ContextVar[Plans | None]] = ContextVar("brimful_plans", default=None)
"""Of the run whose code this is; None where nobody tells lessons: then all is planned by what is known at first."""


@contextmanager
def claimed(learner: Learner | None) -> Iterator[Plans | None]:
    """The plans of this run for the one stage that plans by them, as long as it does; None where nothing learns, nobody tells,
    or another stage inside of the run (one that a user's function runs) would take them away."""
    plans = None if learner is None else PLANS.get()
    if plans is None or plans.claimed:
        yield None
        return
    plans.claimed = True
    try:
        yield plans
    finally:
        plans.claimed = False


class Known(NamedTuple):
    """Args:
    now: by what the window at work was planned; None between two windows.
    next: by what the window after it is.
    then: all that is known by now, by which the window after that will be planned.
    """

    now: Any
    next: Any
    then: Any


class Lessons:
    """What is told in a run of an iterator: each step takes what was known and gives what is known then.

    State: three times what is known, so that the plan of the window at work can be made again.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._plans: Plans | None = None
        self._asked: Known | None = None

    def start(self) -> Known:
        """Before the first window."""
        return Known(None, self._learner.first(), self._learner.first())

    def after(self, known: Known, item: Any, value: float) -> Known:
        """What is known after a lesson."""
        return known._replace(then=self._learner.after(known.then, item, value))

    def begin(self, known: Known) -> None:
        """A run begins, or begins again after Ctrl-C, after the last item that was taken."""
        self._plans = plans = Plans()
        PLANS.set(plans)
        if known.now is not None:
            plans.tell(known.now)
        plans.tell(known.next)

    def ask(self, known: Known) -> None:
        """An item is asked for: of another window, if the one before was the last of its own, whose lessons are complete."""
        assert self._plans is not None
        self._asked = known
        if known.now is None:
            self._plans.tell(known.then)

    def took(self, known: Known) -> Known:
        """It is taken; `known` is what was known before, and what was told since."""
        assert self._plans is not None
        assert self._asked is not None
        now, following, then = self._asked
        if now is None:
            now, following = following, then
        return Known(None if self._plans.took() else now, following, known.then)

    def stop(self) -> None:
        """Ends what waits for lessons."""
        if self._plans is not None:
            self._plans.stop()

    def to_json(self, known: Known) -> State:
        now, *rest = known
        return [None if now is None else self._learner.to_json(now), *map(self._learner.to_json, rest)]

    def from_json(self, saved: State) -> Known:
        """What `to_json` was given.

        Raises:
            StateError: it is no such thing.
        """
        learner = self._learner
        try:
            now, following, then = saved
            return Known(None if now is None else learner.from_json(now), *map(learner.from_json, (following, then)))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the lessons of this state are damaged: {error or type(error).__name__}") from error
