"""Shared by several commands: options, errors in a line, token stores among the names given, a table of figures."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich import box
from rich.table import Column, Table
from typer.core import TyperCommand, TyperOption

from brimful import Dataset
from brimful.console import note, stderr
from brimful.core import counters
from brimful.encoding.engines import EngineName
from brimful.plan.errors import StageError
from brimful.sources.formats import FORMATS, format_of
from brimful.store.index import folder_of, is_remote
from brimful.store.manifest import JOURNAL, MANIFEST

_NAMES: Final = "paths, s3://, https://, globs, {00..99}"
FILES: Final = f"Files ({', '.join(FORMATS)}; all but the last two also .gz .zst .bz2 .lz4 .xz): {_NAMES}."

Urls: TypeAlias = Annotated[
    list[str],
    typer.Argument(help=FILES),
]
TokenizerName: TypeAlias = Annotated[
    str, typer.Option(help="A tokenizer.json, a folder or name for transformers, or tiktoken:NAME.", metavar="T")
]
MaxTokens: TypeAlias = Annotated[int, typer.Option(help="Tokens in a batch at most, with padding: rows x length.")]
MaxLength: TypeAlias = Annotated[
    int, typer.Option(help="Tokens of a sample at most; the rest is cut off. 0: samples stay whole.")
]
FormatName: TypeAlias = Annotated[
    str, typer.Option("--format", help="Of the files. auto: by their extensions.", metavar=f"auto|{'|'.join(FORMATS)}")
]
Engine: TypeAlias = Annotated[
    EngineName,
    typer.Option(
        parser=str, help="What makes the tokenizer's ids; they are the same.", metavar="auto|gigatoken|cache|tokenizer"
    ),
]
OnError: TypeAlias = Annotated[
    counters.OnError,
    typer.Option(parser=str, help="At a record that cannot be read: stop, or count and log it.", metavar="raise|skip"),
]


class ClearCommand(TyperCommand):
    """A command that says what the user can mend in one line on stderr, with exit code 2. An error that carries the name of a
    setting (`.setting`) names the option in its place. Anything else stays a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, StageError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            options = {str(one.name): one.opts[0] for one in self.params if isinstance(one, TyperOption)}
            setting = getattr(error, "setting", None) or getattr(error.__cause__, "setting", None)
            if setting in options:
                text = re.sub(rf"(?:\w+\.)*\b{setting}(?=[ =])", options[setting], text, count=1)
            note(f"brimful: {text}")
            raise typer.Exit(2) from error


def is_store(urls: Sequence[str]) -> bool:
    """Whether the names are those of token stores, whole or half-written, and not of files.

    Raises:
        ValueError: some are and others are not.
    """
    stores = [url for url in urls if _is_store(url)]
    if stores and len(stores) < len(urls):
        other = next(url for url in urls if url not in stores)
        raise ValueError(f"{stores[0]} is a token store and {other} is not; name stores alone, or files alone")
    return bool(stores)


def _is_store(url: str) -> bool:
    if not is_remote(url):
        return any(os.path.isfile(os.path.join(os.path.expanduser(url), name)) for name in (MANIFEST, JOURNAL))
    if format_of(url) is not None or not {*"*?[{"}.isdisjoint(url):
        return False
    try:
        return bool(folder_of(url).content(MANIFEST))
    except FileNotFoundError:
        return False


def tokenized(dataset: Dataset, tokenizer: str, column: str, max_length: int, engine: EngineName = "auto") -> Dataset:
    """The tokens of a text column, at most `max_length` a sample (0: all), by the tokenizer of that name."""
    with stderr().status(f"loading the tokenizer {tokenizer}"):  # which shows on a terminal alone
        return dataset.tokenize(
            tokenizer,
            column=column,
            truncation=max_length > 0,
            max_length=max_length or None,
            engine=engine,
        )


def cut_figure(max_length: int) -> tuple[str, str, str]:
    """The row of a table of figures that says whether samples are cut."""
    if max_length:
        return "cut at", f"{max_length:,}", "tokens of a sample (--max-length)"
    return "cut at", "none", "samples are whole; --max-length cuts them"


def figures() -> Table:
    """An empty table with a figure a row: its name, its value, and more about it."""
    return Table(Column(), Column(justify="right"), Column(style="dim"), box=box.SIMPLE, show_header=False)


def load_json(path: Path) -> Any:
    """The value in a file of JSON.

    Raises:
        ValueError: it is not JSON; the file is named.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} holds no state: it is not JSON ({error})") from error


def printable(text: str) -> str:
    """A text in which what a terminal would obey is shown as Python writes it."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
