"""How much of what was taken from a loader has been used, and the state from which the rest follows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias, final

from brimful.core.stage import State

Snapshot: TypeAlias = Callable[[], State]
"""Gives the state as it was when this was made. It is made for each batch and costs next to nothing; the state is made each time
that somebody asks for it, and is the asker's own."""


def snapshot_of(state: State) -> Snapshot:
    """A snapshot that gives a state which is known already.

    >>> held = [1]
    >>> snapshot = snapshot_of(held)
    >>> snapshot().append(2)
    >>> snapshot()
    [1]
    """
    return lambda: copy.deepcopy(state)


@final
class Consumed:
    """What has been used of the batches that loops have taken from a loader.

    Some trainers take batches before they use them, or use several in one optimizer step. Such a trainer says how many it has
    used (`follow`). The loader says where each loop begins, what it takes, how it ends, and where the loader is sent. Without a
    trainer whatever is taken is used: then the loader knows its state by itself, and no states are kept here.

    Batches that were taken and not used come again after a loop that was left. After a loop that came to its end the trainer
    still holds them: the next loop goes on behind them.

    A function named `now` gives a snapshot of the loader's own state, after the last batch that was taken. All snapshots are in
    one tuple, which is replaced whole, so that any thread may ask for the state at any time.

    Price: while a trainer is followed, a snapshot for each batch that is ahead, and one.
    Example:
        >>> used = [7]
        >>> consumed = Consumed()
        >>> at = lambda place: lambda: snapshot_of(place)
        >>> consumed.follow(lambda: used[0], at("start"))
        >>> loop = consumed.begin("start")
        >>> consumed.took(at("after the first")), consumed.took(at("after the second"))
        (None, None)
        >>> consumed.snapshot(at("after the second"))()
        'start'
        >>> used[0] += 1
        >>> consumed.unfollow()
        'after the first'
    """

    def __init__(self) -> None:
        self.began: State | None = None  # the state at the start of the loop that began last, or where it was sent to
        self._used: Callable[[], int] | None = None
        self._states: tuple[tuple[int, Snapshot], ...] = ()  # by how many batches have been used then
        self._loop: object = None  # the one that runs
        self._taken = 0  # batches since `began`
        self._ended = False  # whether the last loop came to its end, and nothing was sent elsewhere since

    @property
    def followed(self) -> bool:
        """Whether a trainer says what it has used."""
        return self._used is not None

    @property
    def looping(self) -> bool:
        """Whether a loop runs."""
        return self._loop is not None

    def runs(self, loop: object) -> bool:
        """Whether this loop is the one that runs."""
        return self._loop is loop

    def snapshot(self, now: Callable[[], Snapshot]) -> Snapshot:
        """Of the state after the last batch that was used."""
        return now() if self._used is None else self._after(self._used())

    def _after(self, used: int) -> Snapshot:
        states = self._states
        return next((snapshot for number, snapshot in reversed(states) if number <= used), states[0][1])

    @property
    def unused(self) -> State | None:
        """The state before the first batch that was taken and not used; None where all were used."""
        if self._used is None or self._states[-1][0] <= self._used():
            return None
        return self._after(self._used())()

    @property
    def left_at(self) -> State | None:
        """The state that the next loop goes back to: the last one was left, and took batches that were not used; else None."""
        return None if self._ended else self.unused

    def follow(self, used: Callable[[], int], now: Callable[[], Snapshot]) -> None:
        """A trainer says from here on how many batches it has used.

        Of the loop that runs none were used until now; or as many as the trainer says that was followed until now.

        Args:
            used: how many by now, counted from anywhere; it never falls while batches are ahead.
        """
        count = used()
        if self._used is not None:
            more = count - self._used()
            self._states = tuple((number + more, state) for number, state in self._states)
        elif self._loop is None:
            self._states = ((count, now()),)
        elif self._taken:
            self._states = ((count, snapshot_of(self.began)), (count + self._taken, now()))
        else:
            self._states = ((count, snapshot_of(self.began)),)
        self._used = used

    def unfollow(self) -> State | None:
        """All that is taken counts as used again. Returns `unused`, which is where the loader goes back to."""
        unused, self._used = self.unused, None
        return unused

    def begin(self, state: State) -> object:
        """A loop begins at this state. Returns what names it."""
        if self._ended and self.unused is not None:
            self.began, self._taken, self._ended = state, 0, False
        else:
            self.moved(state)
        self._loop = object()
        return self._loop

    def took(self, now: Callable[[], Snapshot]) -> None:
        """The loop that runs has taken a batch."""
        self._taken += 1
        if self._used is not None:
            used, states = self._used(), self._states
            while len(states) > 1 and states[1][0] <= used:
                states = states[1:]
            self._states = (*states, (max(used, states[-1][0]) + 1, now()))

    def end(self, loop: object, now: Callable[[], Snapshot]) -> None:
        """A loop came to its end: the state after its last batch may be another one, now that nothing follows."""
        if self._loop is loop:
            self._ended = True
            if self._used is not None:
                *states, (number, _) = self._states
                self._states = (*states, (number, now()))

    def leave(self, loop: object) -> None:
        """A loop is over, whether it came to its end or not."""
        if self._loop is loop:
            self._loop = None

    def moved(self, state: State) -> None:
        """The loader was sent to this state: what was taken before does not count."""
        self.began, self._taken, self._ended = state, 0, False
        if self._used is not None:
            self._states = ((self._used(), snapshot_of(state)),)
