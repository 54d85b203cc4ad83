"""What commands say, and where: results to stdout; progress and errors to stderr, an error as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from brimful.core.terminal import Report

LINE_SECONDS: Final = 10.0
"""How often progress is said where no terminal shows a bar."""


def stdout() -> Console:
    return Console(highlight=False)


def stderr() -> Console:
    return Console(highlight=False, stderr=True)


def note(text: str) -> None:
    """A line on stderr, as it is: paths and numbers are not broken in two."""
    typer.echo(text, err=True)


@contextmanager
def progress(total: int | None) -> Iterator[Report]:
    """A bar on a terminal, `total` batches long (None: it shows only that something moves); else a line every 10 s.

    The bar and its clock are there before the first batch: opening files and loading a tokenizer may take a while.
    """
    console = stderr()
    if not console.is_terminal:
        yield _every(LINE_SECONDS, lambda _, status: console.print(status))
        return
    columns = BarColumn(bar_width=10), TimeElapsedColumn(), TextColumn("{task.fields[status]}")
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task("", total=total, status="starting")
        yield _every(0.25, lambda advance, status: bar.update(task, advance=advance, status=status))


def _every(seconds: float, show: Callable[[int, str], None]) -> Report:
    """Shows what has gathered at most once in so many seconds."""
    due, gathered = perf_counter() + seconds, 0

    def update(advance: int, status: Callable[[], str]) -> None:
        nonlocal due, gathered
        gathered += advance
        if perf_counter() >= due:
            show(gathered, status())
            due, gathered = perf_counter() + seconds, 0

    return update


def thousands(number: float) -> str:
    """A large number in three digits.

    >>> thousands(950), thousands(12_345), thousands(1_234_567)
    ('950', '12.3 k', '1.23 M')
    """
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.0f}"
