"""Lessons: what the consumer tells of the items that it took, and from which window on they count.

A lesson that is told while the items of window w are taken counts from window w + 2 on. So what a window is planned by is
known before the first item of the window before it is taken, whatever reads ahead: it waits for the consumer, who never waits
for more than it has told (`core.plans`).

Where several ranks share out the batches, an item is a step of all ranks. What each was told before the step in which window w
begins is posted then, and window w + 1 is planned by the lessons of all. Nobody waits for more than that all ask for a step
that it has itself asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, cast
from zlib import crc32

from brimful.core.appended import Appended
from brimful.core.background import Channel
from brimful.core.errors import StateError
from brimful.core.plans import PLANS, Plans, Told
from brimful.core.stream import Stage, State, all_stages

_LEAVE: Final = 15.0
"""Seconds for which the end of an epoch waits at most for the other ranks to have read what they need."""

ByRank = Mapping[str, Appended[State]]
"""Lessons in the order in which they were told, by the rank that was told them."""


class Learner(Protocol):
    """What is known at first, a lesson as plain JSON, what is known after it, and that as plain JSON. What is known is never
    changed. `result` is what users are given of it."""

    def first(self) -> Any: ...

    def result(self, known: Any) -> Any: ...

    def lesson(self, item: Any, value: float) -> State: ...

    def checked(self, lesson: State) -> State: ...

    def after(self, known: Any, lesson: State) -> Any: ...

    def to_json(self, known: Any) -> State: ...

    def from_json(self, saved: State) -> Any: ...


class Exchange(Protocol):
    """Through what ranks tell each other their lessons; but for `waiting`, `end` and `stop`, by one thread."""

    def begin(self) -> None: ...

    def exchanged(self, number: int, own: State) -> list[State]:
        """What all ranks post under a number, by rank, as soon as they have."""

    def leave(self, over: bool) -> None: ...

    def waiting(self, seconds: float) -> None:
        """Told how long the consumer has waited for its next item."""

    def end(self) -> None:
        """This rank needs nothing more."""

    def stop(self) -> None: ...


class Ranks(Protocol):
    """A stage that shares out batches among ranks."""

    def rank_of_several(self) -> int | None:
        """None where this process is the only one."""

    def exchange(self, place: State, learnt: str) -> Exchange: ...


def learner_of(stage: Stage[Any]) -> Learner | None:
    """The one that a chain of stages learns by: that of a stage with a `learner`; None where nothing learns."""
    learners = (getattr(one, "learner", None) for one in all_stages(stage))
    return next((learner for learner in learners if learner is not None), None)


class Known(NamedTuple):
    """Args:
    now: by what the window at work was planned; None between two windows.
    next: what the window after it will be planned by, less the lessons `closed`; None: as `now`.
    then: all that is known by now, less the lessons `open`; None: as the next window's.
    closed, open: lessons that the ranks have not told each other yet, or of which this one has not heard yet. A single
        process has none.
    """

    now: Any
    next: Any
    then: Any
    closed: ByRank
    open: ByRank

    @property
    def following(self) -> Any:
        """What the window after the one at work will be planned by, less the lessons `closed`."""
        return self.now if self.next is None else self.next

    @property
    def latest(self) -> Any:
        """All that is known by now, less the lessons `closed` and `open`."""
        return self.following if self.then is None else self.then

    def anew(self) -> Known:
        """Where windows begin anew."""
        return self._replace(now=None, next=self.following)


class Lessons:
    """What is told in a run of an iterator: each step takes what was known and gives what is known then.

    State: up to three times what is known, so that the plan of the window at work can be made again; of several ranks also
    the lessons of this one that not all have heard of, those of two windows at most.
    """

    def __init__(self, learner: Learner, stage: Stage[Any]) -> None:
        self._learner = learner
        self._ranks: Ranks | None = next(
            (cast(Any, one) for one in all_stages(stage) if hasattr(one, "rank_of_several")), None
        )
        self._resolved: list[int | None] = []
        self._plans: Plans | None = None
        self._told: Told | None = None
        self._exchange: Exchange | None = None
        self._channel: Channel[Any] | None = None
        self._left: SimpleQueue[None] = SimpleQueue()
        self._over = False
        self._asked: Known | None = None
        self._since: float | None = None  # since when the consumer waits for an item

    @property
    def rank(self) -> int | None:
        """Which of several this is; None where it is the only one."""
        if not self._resolved:
            self._resolved.append(None if self._ranks is None else self._ranks.rank_of_several())
        return self._resolved[0]

    def start(self) -> Known:
        """Before the first window."""
        return Known(None, self._learner.first(), None, {}, {})

    def after(self, known: Known, item: Any, value: float) -> Known:
        """What is known after a lesson."""
        lesson = self._learner.lesson(item, value)
        if self.rank is None:
            return known._replace(then=self._learner.after(known.latest, lesson))
        own = str(self.rank)
        return known._replace(open={**known.open, own: self._own(known).and_(lesson)})

    def learnt(self, known: Known) -> Any:
        """All that is known by now, as users are given it; of several ranks, all that this one knows."""
        return self._learner.result(self._with(self._with(known.latest, known.closed), known.open))

    def begin(self, known: Known, at: State) -> Known:
        """A run begins, or begins again after Ctrl-C, after the last item that was taken. What is known then: that of all ranks.

        Raises:
            TimeoutError, RankError, StateError: another rank does not come, failed, or knows something else; it is named.
        """
        self._since = time.monotonic()
        self._told = told = Told()
        agreed = None
        if self.rank is not None:
            assert self._ranks is not None
            models = json.dumps(self.to_json(known)["models"])
            exchange = self._ranks.exchange(at, _digest(models))
            self._exchange, self._left, self._over = exchange, SimpleQueue(), False
            self._channel = Channel(lambda: self._agreed(exchange, known, told), 1, "lessons")
            agreed = self._channel.items(lambda seconds: exchange.waiting(min(seconds, self._waited)))
            known = next(agreed)
        models_known = [known.following] if known.now is None else [known.now, known.following]
        self._plans = Plans(models_known, known.now is not None, told, agreed)
        PLANS.set(self._plans)
        return known

    def ask(self, known: Known) -> None:
        """An item is asked for."""
        assert self._told is not None
        self._since = time.monotonic()
        self._asked = known
        self._told.ask(known.latest if self.rank is None else self._own(known))

    def took(self, known: Known) -> Known:
        """It is taken; `known` is what was known before, and what was told since."""
        assert self._plans is not None
        assert self._asked is not None
        self._since = None
        if self._exchange is not None:
            self._exchange.waiting(0.0)
        asked = self._asked
        began = self._plans.taken()
        for number, model in enumerate(began.models):
            if number:  # nothing was told since the window before began
                known = Known(model, None, known.then, {}, known.open)
            else:
                since = [*self._own(known)][len(self._own(asked)) :]  # of its own: what is over is not kept
                then = None if known.then is asked.then else known.then
                known = Known(model, asked.then, then, asked.open, {str(self.rank): Appended(since)} if since else {})
        return known if began.inside else known.anew()

    def end(self) -> None:
        """The last item has been taken: the other ranks are told so, and may read what they need."""
        if self._exchange is None or self._channel is None:
            return
        self._over = True
        self._exchange.end()
        self.stop()
        self._channel.stop()
        with suppress(Empty):
            self._left.get(timeout=_LEAVE)

    def stop(self) -> None:
        """Ends what waits for lessons."""
        if self._told is not None:
            self._told.stop()

    def to_json(self, known: Known) -> State:
        models = [None if one is None else self._learner.to_json(one) for one in known[:3]]
        return {"models": models, "closed": _copied(known.closed), "open": _copied(known.open)}

    def from_json(self, saved: State) -> Known:
        """What `to_json` was given.

        Raises:
            StateError: it is no such thing.
        """
        learner = self._learner
        try:
            now, following, then = (None if one is None else learner.from_json(one) for one in saved["models"])
            closed, opened = (self._checked(saved[name]) for name in ("closed", "open"))
            known = Known(now, following, then, closed, opened)
            if known.following is None:
                raise ValueError("it has no model")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"the lessons of this state are damaged: {error or type(error).__name__}") from error
        return self._settled(known, closed, opened) if self.rank is None else known

    # -- the thread in which ranks agree

    def _agreed(self, exchange: Exchange, known: Known, told: Told) -> Generator[Any, None, None]:
        """What is known at first, by all ranks; then what one more window is planned by.

        What was told since the window at work began stays each rank's own until the next one begins, as in a run that nobody
        stopped: lessons of rank 0, old and new, come before those of rank 1.
        """
        try:
            exchange.begin()
            held = exchange.exchanged(0, [_copied(known.closed), _copied(known.open)])
            closed, opened = (_united([_shared(one[place]) for one in held]) for place in (0, 1))
            known = self._settled(known, closed, {})
            older = {rank: told for rank, told in opened.items() if int(rank) >= len(held)}  # of ranks that are no more
            own_open = {rank: told for rank, told in opened.items() if rank == str(self.rank)}
            known = known._replace(open={**older, **own_open})  # to be posted with what is told later: the order counts
            yield known
            model = known.latest
            for number in count(1):
                own, another = told.by_next()
                posted = exchange.exchanged(number, [self._digest(model), [*own] if another else []])
                _check_alike([digest for digest, _ in posted], number)
                told_by = _shared({str(rank): lessons for rank, (_, lessons) in enumerate(posted)})
                model = self._with(model, {**told_by, **older})
                older = {}
                yield model
        finally:
            exchange.leave(self._over)
            self._left.put(None)

    def _settled(self, known: Known, closed: ByRank, opened: ByRank) -> Known:
        """What is known with lessons that all ranks have heard of."""
        following = self._with(known.following, closed)
        then = self._with(following if known.then is None else known.then, opened)
        models = (known.now, None if following is known.now else following, None if then is following else then)
        return Known(*models, {}, {})

    def _with(self, known: Any, lessons: ByRank) -> Any:
        for rank in sorted(lessons, key=int):
            known = reduce(self._learner.after, lessons[rank], known)
        return known

    def _digest(self, known: Any) -> str:
        return _digest(json.dumps(self._learner.to_json(known)))

    def _own(self, known: Known) -> Appended[State]:
        return known.open.get(str(self.rank), Appended())

    def _checked(self, lessons: Mapping[str, Any]) -> ByRank:
        return _shared({str(int(rank)): [self._learner.checked(one) for one in told] for rank, told in lessons.items()})

    @property
    def _waited(self) -> float:
        """Seconds for which the consumer has waited for its next item."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


def _check_alike(digests: Sequence[str], number: int) -> None:
    """Ranks work out by themselves what all know: where one rounds otherwise, they would plan other batches.

    Raises:
        StateError: naming the rank and both digests.
    """
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise StateError(
                f"rank {rank} knows something else than rank 0 after the same lessons ({digest}, not {digests[0]}, in window "
                f"{number:,} of this run): another processor or release of numpy rounds otherwise there; run all ranks alike, or "
                "learn in one process and give its model to a policy with learn=False"
            )


def _united(held: Sequence[ByRank]) -> ByRank:
    """The lessons that ranks know of each other; what a rank knows of itself comes first."""
    found: dict[str, Appended[State]] = {}
    for rank, lessons in enumerate(held):
        found |= {name: told for name, told in lessons.items() if name not in found or name == str(rank)}
    return found


def _shared(lessons: Mapping[str, list[State]]) -> ByRank:
    return {rank: Appended(told) for rank, told in lessons.items()}


def _copied(lessons: ByRank) -> State:
    return {rank: [list(one) for one in told] for rank, told in lessons.items()}


def _digest(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
