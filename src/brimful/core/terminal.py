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
def shown(total: int | None = None) -> Iterator[Report]:
    """A bar on stderr, `total` rows long (None: it shows only that something moves), once the work has taken a while; nothing
    where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda rows, status: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [BarColumn(bar_width=10), TextColumn("{task.description}")]
    if total is not None:
        columns.append(TimeRemainingColumn())
    began = monotonic()
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("", total=total, visible=False)

        def report(rows: int, status: Callable[[], str]) -> None:
            bar.update(task, advance=rows)
            if monotonic() - began > PATIENCE_SECONDS:
                bar.update(task, description=f"brimful: {status()}", visible=True)

        yield report


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
