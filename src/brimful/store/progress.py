"""How far a writer is, for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, TypeAlias

Report: TypeAlias = Callable[[int, Callable[[], str]], None]
"""Takes how many rows were done since the last call, and a function that says how things stand."""

PATIENCE_SECONDS: Final = 1.0
"""Work that takes no longer shows no bar."""


@contextmanager
def shown() -> Iterator[Report | None]:
    """A line on a terminal that says how things stand, where stderr is one and the work takes a while; else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True, highlight=False)
    began = monotonic()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", visible=False)

        def report(rows: int, status: Callable[[], str]) -> None:
            if monotonic() - began > PATIENCE_SECONDS:
                bar.update(task, description=f"brimful: {status()}", visible=True)

        yield report
