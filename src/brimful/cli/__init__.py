"""The command line: `brimful demo`, `head`, `report`, `run`, `tokenize`, `verify`, `memory probe`, `memory fit`, `state show`.
A file a command, or a noun; what is heavy is imported when a command needs it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from brimful import __version__
from brimful.cli import head, memory, report, run, state, store
from brimful.demo import demo

app: Final = typer.Typer(
    help="Full batches for PyTorch from samples of very different lengths: little padding, few shapes, exact resume.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"brimful {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of all commands."""


app.command()(demo.demo)
app.command()(head.head)
app.command()(report.report)
app.command()(run.run)
app.command()(store.tokenize)
app.command()(store.verify)

peaks: Final = typer.Typer(help="Peak memory: measured, and modelled.", no_args_is_help=True)
peaks.command()(memory.probe)
peaks.command()(memory.fit)
app.add_typer(peaks, name="memory")

states: Final = typer.Typer(help="Saved positions.", no_args_is_help=True)
states.command()(state.show)
app.add_typer(states, name="state")
