"""How many rows a user's function gets at once, and how long others wait for its rows: by the time that it takes.

Time decides where blocks end, and nothing else: neither rows, nor their order, nor the row that a state names.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from brimful.blocks.blocks import rows_at
from brimful.core.replay import REPLAY

T = TypeVar("T")

WORK_SECONDS: Final = 0.05
"""A function works on a block for at most about so long, once it is known how long it takes for a row."""
WHOLE_ROWS: Final = 512
"""The most rows of a block of its results where time must not cut them: `map_blocks` reads them."""

now = perf_counter


class Pace:
    """How long a function takes for a row, by its last calls: a longer time counts at once, a shorter one by halves.

    Args:
        calls: how many calls share a block.
        by_time: False: the number of rows alone says where blocks end.
    """

    def __init__(self, calls: int, by_time: bool) -> None:
        self._calls, self._by_time = calls, by_time
        self._seconds: float | None = None

    def rows(self, number: int) -> int:
        """The rows of the next block after `number` rows: few until the time is known. One of up to twice as many is not cut."""
        if not self._by_time or REPLAY.get() is not None:
            return min(rows_at(number), WHOLE_ROWS // 2)
        if self._seconds is None:
            return rows_at(0)
        return min(rows_at(number), self._calls * max(1, int(WORK_SECONDS / 2 / max(self._seconds, 1e-9))))

    def timed(self, rows: int, call: Callable[..., T], *args: Any) -> T:
        """The result of a call for so many rows."""
        began = now()
        made = call(*args)
        seconds = (now() - began) / rows
        known = self._seconds
        self._seconds = seconds if known is None else max(seconds, (known + seconds) / 2)
        return made


class Patience:
    """How long somebody waits for more rows before those at hand go on: without end where time has no say."""

    def __init__(self, by_time: bool) -> None:
        self._by_time = by_time and REPLAY.get() is None
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._since = now()

    @property
    def over(self) -> bool:
        """Whether it has been too long."""
        return self._by_time and now() - self._since > WORK_SECONDS / 2
