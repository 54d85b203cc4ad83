"""What can go wrong, said once and with the place where it happened.

Every row that a source reads carries its origin in a hidden column (a file and a line, in 8 bytes), so that any stage,
however far down, can name the file and the line of the row that it failed on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

logger = logging.getLogger("brimful")

HIDDEN: Final = "__brimful_"
"""How the names of columns begin that users do not see."""
ORIGIN: Final = f"{HIDDEN}origin"
_LINE_BITS: Final = 40


class DataError(ValueError):
    """The data cannot be used as they are: the message names the file, the line and the remedy."""


class StateError(ValueError):
    """A state does not fit the pipeline that it was given to: the message names both sides."""


class StageError(RuntimeError):
    """A function of the user's raised: the message names the stage, the file and the line; the cause is chained."""


class RankError(RuntimeError):
    """Another data-parallel rank failed, or is not what it should be: the message names it and what it said."""


class BrokenError(RuntimeError):
    """The iterator failed earlier and says so for ever; its state is the place after the last item that was taken."""


def require(name: str, value: float, least: float, unit: str = "") -> None:
    """Refuses a setting below its least value.

    >>> require("max_tokens", 0, 1, "token")
    Traceback (most recent call last):
    ValueError: max_tokens must be at least 1 token (got 0)
    """
    if value < least:
        raise ValueError(f"{name} must be at least {least:,}{unit and ' ' + unit} (got {value:,})")


def one_of(name: str, value: str, *choices: str) -> None:
    """Refuses a word that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)} (got {value!r})")


# -- where a row came from ---------------------------------------------------------------------------------------------

_names: list[tuple[str, str]] = []
_numbers: dict[tuple[str, str], int] = {}
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def origins(name: str, lines: NDArray[np.int64], unit: str = "line") -> pa.Array:
    """The origin column, uint64 (n,), of rows that came from `lines` (counted from 1) of `name`.

    >>> column = origins("shard a.jsonl", np.array([17]))
    >>> where(pa.RecordBatch.from_arrays([column], [ORIGIN]), 0)
    'shard a.jsonl, line 17'
    """
    return pa.array(lines.astype(np.uint64) | np.uint64(origin_of(name, unit)))


def origin_of(name: str, unit: str = "line") -> int:
    """What the origins of the rows of `name` have beside the number of their line."""
    with _lock:
        number = _numbers.setdefault((name, unit), len(_names))
        if number == len(_names):
            _names.append((name, unit))
    return number << _LINE_BITS


def where(block: pa.RecordBatch, row: int) -> str:
    """The place that a row of a block came from, in words."""
    index = block.schema.get_field_index(ORIGIN)
    value = block.column(index)[row].as_py() if index >= 0 else None
    if value is None:
        return f"row {row} of a block of {block.num_rows:,} rows"
    name, unit = _names[value >> _LINE_BITS]
    return f"{name}, {unit} {value & ((1 << _LINE_BITS) - 1):,}"


# -- what was left out -------------------------------------------------------------------------------------------------


class Tally:
    """Counts what stages left out or cut (`skipped`, `dropped_tokens` ...); shared by the threads of one iterator.

    `made` queues what each batch on its way to the consumer holds, in the order in which they were made.
    """

    def __init__(self) -> None:
        self.made: deque[Any] = deque()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int) -> bool:
        """Adds to a count; returns whether this was the first time."""
        with self._lock:
            first = name not in self._counts
            self._counts[name] += count
            return first

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


TALLY: ContextVar[Tally | None] = ContextVar("brimful_tally", default=None)


def count(name: str, number: int, message: str | None = None) -> None:
    """Counts `number` things left out under `name` in the running iterator's `.stats`; logs `message` the first time."""
    tally = TALLY.get()
    if number and (tally is None or tally.add(name, number)) and message is not None:
        logger.warning(message)
