"""The command line: `brimful demo`, `head`, `report`, `run`, `tokenize`, `verify`, `memory probe`, `memory fit`, `state show`.
A file a command, or a noun, which is imported when it runs: `brimful --help` needs none of them."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from brimful import __version__

COMMANDS: Final = {
    "demo": (
        "brimful.demo.demo:demo",
        "The whole job in a minute: stream, pad, train, be killed, go on exactly. Nothing is downloaded.",
    ),
    "head": (
        "brimful.cli.head:head",
        "Show the first rows of files or of a token store; with --tokenizer the first batches too.",
    ),
    "report": (
        "brimful.cli.report:report",
        "What padding costs under each policy, on your own data, and which to use.",
    ),
    "run": (
        "brimful.cli.run:run",
        "Stream batches of your own files: how fast, how full, and an exact place to go on from.",
    ),
    "tokenize": (
        "brimful.cli.store:tokenize",
        "Tokenize files of text to a token store, for bf.from_store(PATH).",
    ),
    "verify": ("brimful.cli.store:verify", "Read a token store again and compare its checksums."),
    "memory": ("brimful.cli.memory:peaks", "Peak memory: measured, and modelled."),
    "state": ("brimful.cli.state:states", "Saved positions."),
}
"""Each command: the place of its function, or of its group, and the first paragraph of its help."""


class DeferredCommand(TyperCommand):
    """A command that is imported when it runs, or when its own help or completion is asked for."""

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._place = place

    @cached_property
    def command(self) -> Any:
        """The command itself."""
        module, _, name = self._place.partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, typer.Typer):
            from brimful.cli.options import ClearCommand

            function, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            found.command(self.name, cls=ClearCommand)(function)
        return get_command(found)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        return self.command.make_context(*args, **settings)


class DeferredCommands(TyperGroup):
    """All commands, none of which is imported yet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (place, summary) in COMMANDS.items():
            self.add_command(DeferredCommand(name, place, summary))


app: Final = typer.Typer(
    cls=DeferredCommands,
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
