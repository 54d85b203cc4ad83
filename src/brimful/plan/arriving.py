"""Micro batches of samples that arrive one by one, such as rollouts: each is placed at once, and none waits for long."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .errors import StateError, check_bool, integer
from .overlong import refuse_beyond, refuse_sums
from .plan import IntArray
from .steps import limited_sizes, limits_by_name, with_samples
from .units import units_of


@dataclass
class _Open:
    """A micro batch that still takes samples: those that it has, and what is left of each limit."""

    samples: list[int]
    room: IntArray


class Planner:
    """Puts samples into micro batches as they arrive, within limits: for asynchronous reinforcement learning, and servers.

    A sample goes into the open micro batch that it fills best. If none has room, it opens another one. If there are
    `max_open` already, the fullest is closed. A micro batch is ready when it is full or closed, or when `max_wait` samples
    have come after its first one. The result depends on the order of the samples alone.

    Args:
        limits: most tokens in a micro batch, or limits by name, as for `steps`. "samples" is the number of samples.
        max_open: most micro batches that are open at once.
        max_wait: how many samples may arrive after one before its micro batch is ready.
    Raises:
        ValueError: a limit or a setting is below 1.
    Price: about 10 us a sample. There are .1 to .6 % more micro batches than `steps` makes of samples that it knows
        beforehand. Where each sample takes a third of the limit, there are 3 % more.
    Source: bounded-space best fit (Csirik and Johnson 2001), with a bounded age.
    Example:
        >>> planner = Planner(100)
        >>> planner.add([60, 70, 40, 20]).tolist()
        [0, 1, 2, 3]
        >>> [batch.tolist() for batch in planner.ready()]
        [[0, 2]]
        >>> planner.add([10, 90]).tolist()
        [4, 5]
        >>> [batch.tolist() for batch in planner.ready()], [batch.tolist() for batch in planner.flush()]
        ([[1, 3, 4]], [[5]])
    """

    def __init__(self, limits: int | Mapping[str, int], *, max_open: int = 16, max_wait: int = 256) -> None:
        self.limits: int | dict[str, int] = dict(limits) if isinstance(limits, Mapping) else limits
        self.max_open: int = integer("max_open", max_open, 1, "micro batch")
        self.max_wait: int = integer("max_wait", max_wait, 0, "sample")
        self._most = limits_by_name(limits)
        self._caps = np.array([*self._most.values()], np.int64)
        # where nothing is left of one of these limits, a micro batch is full
        self._ends = [place for place, name in enumerate(self._most) if not place or name == "samples"]
        self._next = 0
        self._open: list[_Open] = []  # the oldest first
        self._ready: deque[list[int]] = deque()

    def __repr__(self) -> str:
        return f"Planner({self.limits!r}, max_open={self.max_open}, max_wait={self.max_wait}, {self.num_waiting:,} waiting)"

    @property
    def num_waiting(self) -> int:
        """How many samples are in no micro batch that was handed out.

        Example:
            >>> planner = Planner(100)
            >>> numbers = planner.add([60, 20])
            >>> planner.num_waiting
            2
        """
        return sum(len(one.samples) for one in self._open) + sum(map(len, self._ready))

    def add(self, sizes: ArrayLike | Mapping[str, ArrayLike], *, together: bool = False) -> IntArray:
        """Places samples in the order given.

        Args:
            sizes: tokens of each, (n,). With several limits: sizes by name, (n,) each, or an array (n, d) in their order.
            together: they stay in one micro batch, such as all answers to a prompt.
        Returns: their numbers, (n,) int64, counted from the first sample on.
        Raises:
            OverlongError: a sample alone, or all together, exceed a limit. None of them is placed then.
        Example:
            >>> planner = Planner({"tokens": 100, "samples": 2})
            >>> numbers = planner.add([30, 40], together=True)
            >>> [batch.tolist() for batch in planner.ready()]
            [[0, 1]]
        """
        check_bool("together", together)
        values = with_samples(limited_sizes(sizes, self._most), self._most)
        refuse_beyond(values, values, self._most, None)
        whole = units_of(np.zeros(len(values)) if together else np.arange(len(values)), len(values))
        sums = whole.sums(values)
        refuse_sums(whole, sums, self._most)
        for begin, count, size in zip(whole.begins.tolist(), whole.counts.tolist(), sums):
            self._place(range(self._next + begin, self._next + begin + count), size)
        self._next += len(values)
        return np.arange(self._next - len(values), self._next)

    def ready(self) -> list[IntArray]:
        """The micro batches that are ready, in the order in which they became so: numbers of samples, (k,) int64 each.

        Each is handed out once.

        Example:
            >>> planner = Planner(100, max_wait=2)
            >>> numbers = planner.add([60, 70, 80])
            >>> [batch.tolist() for batch in planner.ready()], planner.num_waiting
            ([[0]], 2)
        """
        done = [np.array(samples, np.int64) for samples in self._ready]
        self._ready.clear()
        return done

    def flush(self) -> list[IntArray]:
        """All that is left, also micro batches that are not full: what `ready` gives, then those that are open, oldest first.

        Example:
            >>> planner = Planner(100)
            >>> numbers = planner.add([60, 20])
            >>> planner.ready(), [batch.tolist() for batch in planner.flush()], planner.flush()
            ([], [[0, 1]], [])
        """
        self._ready.extend(one.samples for one in self._open)
        self._open.clear()
        return self.ready()

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain JSON: the samples that wait, and the room beside them.

        Example:
            >>> planner, other = Planner(100), Planner(100)
            >>> numbers = planner.add([60, 20])
            >>> other.load_state_dict(planner.state_dict())
            >>> other.add([20]).tolist(), [batch.tolist() for batch in other.ready()]
            ([2], [[0, 1, 2]])
        """
        return {
            "limits": dict(self._most),
            "next": self._next,
            "open": [[[*one.samples], dict(zip(self._most, one.room.tolist()))] for one in self._open],
            "ready": [[*samples] for samples in self._ready],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. The planner forgets the samples that waited before.

        Raises:
            StateError: it is of other limits, which are named, or it is no state.
        Example:
            >>> Planner(50).load_state_dict(Planner(100).state_dict())
            Traceback (most recent call last):
            brimful.plan.errors.StateError: this state has limits={'tokens': 100}, and the planner {'tokens': 50}: take the same
        """
        if not isinstance(state, Mapping) or {*state} != {*self.state_dict()}:
            shown = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"a state is a dict of {', '.join(self.state_dict())}, as state_dict() returns it (got {shown or 'none'})"
            )
        if dict(state["limits"]) != self._most:
            raise StateError(
                f"this state has limits={dict(state['limits'])}, and the planner {self._most}: take the same"
            )
        self._next = int(state["next"])
        self._open = [
            _Open([*samples], np.array([room[name] for name in self._most], np.int64))
            for samples, room in state["open"]
        ]
        self._ready = deque(map(list, state["ready"]))

    def _place(self, samples: range, size: IntArray) -> None:
        rooms = np.array([one.room for one in self._open], np.int64).reshape(len(self._open), len(self._caps))
        left = (rooms / self._caps).sum(axis=1)
        fits = np.flatnonzero((rooms >= size).all(axis=1))
        if len(fits):
            place = int(fits[np.argmin(left[fits])])
        else:
            while len(self._open) >= self.max_open:  # more, where a state had more
                fullest = int(np.argmin(left))
                left = np.delete(left, fullest)
                self._close(fullest)
            place = len(self._open)
            self._open.append(_Open([], self._caps.copy()))
        one = self._open[place]
        one.samples += samples
        one.room -= size
        if not one.room[self._ends].all():
            self._close(place)
        while self._open and self._open[0].samples[0] <= samples[-1] - self.max_wait:
            self._close(0)

    def _close(self, place: int) -> None:
        self._ready.append(self._open.pop(place).samples)
