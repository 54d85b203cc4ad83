"""What commands say, and where: results to stdout; progress and errors to stderr, an error as one line."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import typer
from rich.console import Console

from brimful.core.terminal import Report, shown

LINE_SECONDS: Final = 10.0
"""How often progress is said where no terminal shows a bar."""


def stdout() -> Console:
    return Console(highlight=False)


def stderr() -> Console:
    return Console(highlight=False, stderr=True)


def note(text: str) -> None:
    """A line on stderr, as it is: paths and numbers are not broken in two."""
    typer.echo(text, err=True)


def progress(total: int | None) -> AbstractContextManager[Report]:
    """The bar of a command, there before the first batch: opening files and loading a tokenizer may take a while."""
    return shown(total, line_seconds=LINE_SECONDS)


def thousands(number: float) -> str:
    """A large number in three digits.

    >>> thousands(950), thousands(12_345), thousands(1_234_567)
    ('950', '12.3 k', '1.23 M')
    """
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.0f}"
