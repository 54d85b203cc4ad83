"""How far a writer is: told to whoever asks, to those who wait for it, and to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, TypeAlias

from brimful.ragged import is_ragged
from brimful.rows import Block

Report: TypeAlias = Callable[[int, Callable[[], str]], None]
"""Takes how many rows were done since the last call, and a function that says how things stand."""

PATIENCE_SECONDS: Final = 1.0
"""Work that takes no longer shows no bar."""


class Status:
    """Rows and tokens so far: those of an interrupted writer count, but not as speed."""

    def __init__(self, beat: Callable[[], None], report: Report | None) -> None:
        self._beat, self._report = beat, report
        self._began = monotonic()
        self._rows = self._tokens = self._found = 0

    def working(self) -> None:
        self._beat()

    def found(self, rows: int) -> None:
        self._beat()
        self._rows += rows
        self._found += rows

    def wrote(self, block: Block) -> None:
        self._beat()
        self._rows += block.num_rows
        first = next((array for array in block.columns if is_ragged(array.type)), None)
        self._tokens += 0 if first is None else len(first.flatten())
        if self._report is not None:
            self._report(block.num_rows, self._text)

    def _text(self) -> str:
        speed = self._tokens / max(monotonic() - self._began, 1e-9)
        gone_on = f", {self._found:,} of them found" if self._found else ""
        return f"{self._rows:,} rows written{gone_on}; {self._tokens:,} tokens, {speed:,.0f} a second"


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
