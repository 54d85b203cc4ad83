"""How many rows a user's function gets at once, and how long others wait for its rows: by the time that it takes.

Time decides where blocks end, and nothing else: neither rows, nor their order, nor the row that a state names.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from brimful.tables.blocks import rows_at

T = TypeVar("T")

WORK_SECONDS: Final = 0.1
"""A function works on a block for at most about so long, once it is known how long it takes for a row."""
KEPT: Final = 0.8
"""What a call weighs beside the one after it."""
WHOLE_ROWS: Final = 512
"""The most rows of a block of its results where time must not cut them: `map_blocks` reads them."""

now = perf_counter


class Pace:
    """How long a function takes for a call and for each row of it, by its last calls.

    What a call takes however few rows it has, as one that asks a server does, is told from what a row takes, by a line through
    the last calls. Fewer rows would not make that shorter.

    Args:
        calls: how many calls share a block.
        by_time: False: the number of rows alone says where blocks end.
    """

    def __init__(self, calls: int, by_time: bool) -> None:
        self._calls, self._by_time = calls, by_time
        self._sums = [0.0] * 5  # of calls, rows, seconds, rows x rows, rows x seconds; those long ago weigh less
        self._seconds = self._fixed = self._reach = 0.0

    def rows(self, number: int, replays: bool = False) -> int:
        """The rows of the next block after `number` rows: few until the time is known. One of up to twice as many is not cut."""
        if not self._by_time or replays:
            return min(rows_at(number), WHOLE_ROWS // 2)
        if not self._reach:
            return rows_at(0)
        most = min(max(WORK_SECONDS / 2, self._fixed) / max(self._seconds, 1e-9), 2 * self._reach)
        return min(rows_at(number), self._calls * max(1, int(most)))

    def timed(self, rows: int, call: Callable[..., T], *args: Any) -> T:
        """The result of a call for so many rows."""
        began = now()
        made = call(*args)
        self._learn(float(rows), now() - began)
        return made

    def _learn(self, rows: float, seconds: float) -> None:
        fresh = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._sums = [KEPT * old + new for old, new in zip(self._sums, fresh)]
        count, of_rows, of_seconds, squares, products = self._sums
        spread = squares - of_rows * of_rows / count
        slope = (products - of_rows * of_seconds / count) / spread if spread > count / 4 else seconds / rows
        self._fixed = max(0.0, (of_seconds - max(slope, 0.0) * of_rows) / count)
        self._seconds = max(slope, (seconds - self._fixed) / rows, 0.0)  # a longer time counts at once
        self._reach = max(rows, KEPT * self._reach)


class Patience:
    """How long somebody waits for more rows before those at hand go on: without end where time has no say."""

    def __init__(self, by_time: bool) -> None:
        self._by_time = by_time
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._since = now()

    @property
    def over(self) -> bool:
        """Whether it has been too long."""
        return self._by_time and now() - self._since > WORK_SECONDS / 2
