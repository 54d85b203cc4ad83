"""What brimful says while it works: a log where the program or the user has it go, and a bar on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Final, TypeAlias, TypeVar

LOG_VARIABLE: Final = "BRIMFUL_LOG_LEVEL"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def set_up_log() -> None:
    """Writes the logger `brimful` to standard error from the level on that BRIMFUL_LOG_LEVEL names, if it names one.

    Lines look like `[2026-01-31 12:00:00,000 - DEBUG] original length: 179, bucket length: 192, padding length: 13`.
    """
    level = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if not level:
        return
    logger = logging.getLogger("brimful")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(asctime)s - %(levelname)s] %(message)s"))
    logger.addHandler(handler)
    if level in LOG_LEVELS:
        logger.setLevel(level.upper())
    else:
        logger.warning("%s must be one of %s (got %r)", LOG_VARIABLE, ", ".join(LOG_LEVELS), level)


T = TypeVar("T")

Report: TypeAlias = Callable[[int, Callable[[], str]], None]
"""Takes the number of rows since the last call, and a function that describes the progress."""

PATIENCE_SECONDS: Final = 1.0
"""Shorter work shows no bar."""


@contextmanager
def shown(total: int | None = None, *, line_seconds: float | None = None) -> Iterator[Report]:
    """A bar on stderr, `total` rows long (None: it shows only that something moves).

    The library's shows once the work has taken a while. Where stderr is no terminal it shows nothing. A command gives
    `line_seconds`: then the bar and its clock are there from the start, and elsewhere comes a line every so many seconds.
    """
    if not sys.stderr.isatty():
        if line_seconds is None:
            yield lambda rows, status: None
        else:
            yield _every(line_seconds, line_seconds, lambda rows, words: print(words, file=sys.stderr))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [BarColumn(bar_width=10), TimeElapsedColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns.append(TimeRemainingColumn())
    of_library = line_seconds is None
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=total, visible=not of_library)

        def show(rows: int, words: str) -> None:
            bar.update(task, advance=rows, description=f"brimful: {words}" if of_library else words, visible=True)

        yield _every(PATIENCE_SECONDS, 0.0, show) if of_library else _every(0.25, 0.25, show)


def _every(first: float, seconds: float, show: Callable[[int, str], None]) -> Report:
    """Shows what has gathered: first after so many seconds, then at most once in so many."""
    due, gathered = monotonic() + first, 0

    def report(rows: int, status: Callable[[], str]) -> None:
        nonlocal due, gathered
        gathered += rows
        if monotonic() >= due:
            show(gathered, status())
            due, gathered = monotonic() + seconds, 0

    return report


def watched(items: Iterable[T], what: str, total: int, rows: Callable[[T], int] = lambda one: 1) -> Iterator[T]:
    """The items, with a line that shows how many of `total` rows they were, where that takes a while.

    Args:
        what: the work, in words.
        rows: says how many rows an item is.
    """
    done = 0
    with shown(total) as report:
        for one in items:
            yield one
            done += rows(one)
            report(rows(one), partial("{}: {:,} of {:,} samples".format, what, done, total))
