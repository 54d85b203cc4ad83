"""The state after what was used, of what was taken before it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from brimful.core.stage import State


@final
class Used:
    """The states after items that are taken ahead of use, by how many will have been used then.

    Args:
        count: how many items have been used by now, counted from anywhere; it never falls while items are ahead.
        state: the one before the first item.
    Price: a state for each item that is ahead, and one.
    Example:
        >>> done = [7]
        >>> used = Used(lambda: done[0], "start")
        >>> used.took("after the first"), used.took("after the second")
        (None, None)
        >>> used.state, used.ahead
        ('start', True)
        >>> done[0] += 1
        >>> used.state
        'after the first'
    """

    def __init__(self, count: Callable[[], int], state: State) -> None:
        self._count = count
        self._states = deque([(count(), state)])

    def took(self, state: State) -> None:
        """A further item has been taken, and this is the state after it."""
        used = self._count()
        while len(self._states) > 1 and self._states[1][0] <= used:
            self._states.popleft()
        self._states.append((max(used, self._states[-1][0]) + 1, state))

    def ended(self, state: State) -> None:
        """No item follows the last one, and this is the state after it, as is known now."""
        number, _ = self._states.pop()
        self._states.append((number, state))

    @property
    def state(self) -> State:
        """After the last item that was used."""
        used = self._count()
        known = (state for number, state in reversed(self._states) if number <= used)
        return next(known, self._states[0][1])

    @property
    def ahead(self) -> bool:
        """Whether an item was taken that is not used yet."""
        return self._states[-1][0] > self._count()

    def anew(self, state: State) -> Used:
        """The same count, from another state on."""
        return Used(self._count, state)
