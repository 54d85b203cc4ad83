"""`brimful tokenize`: files of text to a token store, which training reads at memory speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich import box
from rich.table import Table

from brimful import from_files
from brimful.cli.tokenizer import tokenized
from brimful.console import clear_errors, note, progress, stdout
from brimful.core.errors import require
from brimful.dataset import EngineName, run_by
from brimful.store.manifest import Manifest
from brimful.store.writer import write_store


def tokenize(
    urls: Annotated[
        list[str],
        typer.Argument(
            help="JSONL or text files, also .gz .zst .bz2 .lz4 .xz: paths, s3://, https://, globs, {00..99}."
        ),
    ],
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json, a folder or name for transformers, or tiktoken:NAME.", metavar="T")
    ],
    output: Annotated[
        Path, typer.Option(help="The folder of the store: new, empty, or a store begun.", metavar="PATH")
    ],
    column: Annotated[str, typer.Option(help="The column of text.")] = "text",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column to store beside the tokens; may be given again.", metavar="COLUMN"),
    ] = None,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample at most; the rest is cut off. 0: no limit.")] = 0,
    on_error: Annotated[
        str, typer.Option(help="At a record that cannot be read: stop, or count and log it.", metavar="raise|skip")
    ] = "raise",
    timeout_seconds: Annotated[
        float, typer.Option(help="How long to wait for another writer that makes no progress.", metavar="SECONDS")
    ] = 600.0,
    engine: Annotated[
        str, typer.Option(help="This process, or a Ray cluster; the store is the same.", metavar="local|ray")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Of the cluster: auto, or host:port. None: one on this machine.", metavar="A")
    ] = None,
) -> None:
    """Tokenize files of text to a token store, for bf.from_store(PATH).

    A store is a folder of Arrow files. It is written whole or not at all: after
    Ctrl-C or kill -9 the same command goes on where it stopped.

    Example: brimful tokenize 'a/*.jsonl.gz' --tokenizer gpt2 --output store
    """
    with clear_errors():
        require("--max-length", max_length, 0, "tokens")
        kept = tuple(dict.fromkeys(keep or ()))
        files = from_files(
            urls,
            columns=list(dict.fromkeys((column, *kept))),
            on_error=cast(Literal["raise", "skip"], on_error),
        )
        tokens = tokenized(files, tokenizer, column, max_length)
        stage = tokens.select(("input_ids", *kept)).stage
        run = run_by(cast(EngineName, engine), stage, ray_address)
        began = time.perf_counter()
        try:
            with progress(None) as update:
                manifest = write_store(
                    stage,
                    output,
                    timeout_seconds=timeout_seconds,
                    report=update,
                    run=run,
                    engine=engine,
                )
        except KeyboardInterrupt:
            note(f"interrupted; the same command goes on where it stopped, in {output}")
            raise typer.Exit(130) from None
        _show(manifest, output, time.perf_counter() - began)


def _show(manifest: Manifest, path: Path, seconds: float) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    tokens = sum(file.tokens["input_ids"] for file in manifest.files)
    table.add_row("rows", f"{manifest.rows:,}")
    table.add_row("tokens", f"{tokens:,}", manifest.columns.get("input_ids", ""))
    table.add_row("files", f"{len(manifest.files):,}", f"{sum(file.bytes for file in manifest.files):,} bytes")
    table.add_row("time", f"{seconds:.2f} s")
    console = stdout()
    console.print(table)
    console.print(f'bf.from_store("{path}") reads it; brimful verify {path} checks it', soft_wrap=True)
