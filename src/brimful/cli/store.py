"""`brimful tokenize` and `verify`: a token store made of files of text, and whether it is, byte by byte, what was written."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, cast

import typer

from brimful import from_files
from brimful.cli.options import (
    Engine,
    FormatName,
    MaxLength,
    OnError,
    TokenizerName,
    Urls,
    cut_figure,
    figures,
    tokenized,
)
from brimful.console import note, progress, stdout
from brimful.dataset import Executor, run_by
from brimful.plan.errors import check_path, require
from brimful.sources.files import FromFiles
from brimful.store.index import folder_of, verify_store
from brimful.store.manifest import Manifest
from brimful.store.writer import write_store


def tokenize(
    urls: Urls,
    tokenizer: TokenizerName,
    output: Annotated[str, typer.Option(help="The folder of the store: new, empty, or a store begun.", metavar="PATH")],
    column: Annotated[str, typer.Option(help="The column of text.")] = "text",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column to store beside the tokens; may be given again.", metavar="COLUMN"),
    ] = None,
    format: FormatName = "auto",
    max_length: MaxLength = 0,
    on_error: OnError = "raise",
    timeout_seconds: Annotated[
        float, typer.Option(help="How long to wait for another writer that makes no progress.", metavar="SECONDS")
    ] = 600.0,
    engine: Engine = "auto",
    executor: Annotated[
        Executor,
        typer.Option(parser=str, help="This process, or a Ray cluster; the store is the same.", metavar="local|ray"),
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Of the cluster: auto, or host:port. None: one on this machine.", metavar="A")
    ] = None,
) -> None:
    """Tokenize files of text to a token store, for bf.from_store(PATH).

    A store is a folder of Arrow files. It is written whole or not at all: after
    Ctrl-C or kill -9 the same command goes on where it stopped. Samples stay
    whole unless --max-length cuts them. The store holds the tokens and the
    columns of --keep, and no other column.

    Example: brimful tokenize 'a/*.jsonl.gz' --tokenizer gpt2 --output store
    """
    require("--max-length", max_length, 0, "tokens")
    check_path("--output", output)
    kept = tuple(dict.fromkeys(keep or ()))
    files = from_files(
        urls,
        format=format,
        columns=list(dict.fromkeys((column, *kept))),
        on_error=on_error,
    )
    tokens = tokenized(files, tokenizer, column, max_length, engine)
    stage = tokens.select(("input_ids", *kept)).stage
    shards = [shard.url for shard in cast(FromFiles, files.stage).urls.listed]
    more = f" and {len(shards) - 3:,} more" if len(shards) > 3 else ""
    nothing = f"nothing was read: there is no row in {', '.join(shards[:3])}{more}"
    run = run_by(executor, stage, ray_address)
    began = time.perf_counter()
    try:
        with progress(None) as update:
            manifest = write_store(
                stage,
                output,
                timeout_seconds=timeout_seconds,
                report=update,
                run=run,
                executor=executor,
                if_empty=nothing,
            )
    except KeyboardInterrupt:
        note(f"interrupted; the same command goes on where it stopped, in {output}")
        raise typer.Exit(130) from None
    seconds = time.perf_counter() - began
    _show(manifest, output, max_length, seconds, _left_out(urls, format, {column, *kept}))
    if not manifest.rows:  # a store of 1.0.0rc1, which wrote it before it said so
        raise ValueError(f"{nothing}, and the store {output} is empty")


def _left_out(urls: list[str], format: str, read: set[str]) -> list[tuple[str, ...]]:
    """The row of a table that names the columns of the first row of the files which are not read, if there are some."""
    names: list[str] = []
    with suppress(Exception):  # of other columns, which need not be readable
        (first,) = from_files(urls, format=format, n_active_shards=1).peek(1)
        names = [name for name in first if name not in read]
    return [("left out", f"{len(names)}", f"columns: {', '.join(names)}; --keep stores one")] if names else []


def _show(manifest: Manifest, path: str, max_length: int, seconds: float, more: list[tuple[str, ...]]) -> None:
    table = figures()
    tokens = sum(file.tokens["input_ids"] for file in manifest.files)
    table.add_row("rows", f"{manifest.rows:,}")
    table.add_row("tokens", f"{tokens:,}", manifest.columns.get("input_ids", ""))
    table.add_row("files", f"{len(manifest.files):,}", f"{sum(file.bytes for file in manifest.files):,} bytes")
    for row in (cut_figure(max_length), *more):
        table.add_row(*row)
    table.add_row("time", f"{seconds:.2f} s")
    console = stdout()
    console.print(table)
    console.print(f'bf.from_store("{path}") reads it; brimful verify {path} checks it', soft_wrap=True)


def verify(path: Annotated[str, typer.Argument(help="The folder of a store; s3://, https:// and so on too.")]) -> None:
    """Read a token store again and compare its checksums.

    The exit code is 1 if a file is missing or damaged; each is named.

    Example: brimful verify store
    """
    done = 0
    with progress(None) as update:

        def report(count: int) -> None:
            nonlocal done
            done += count
            update(1, lambda: f"{done / 1e6:,.0f} MB read")

        problems = verify_store(path, report)
    for problem in problems:
        typer.echo(problem)
    if not problems:
        manifest = folder_of(path).manifest
        files = len(manifest.files) + len(manifest.side_files)
        typer.echo(f"{path} is whole: {files:,} files, {done:,} bytes, {manifest.rows:,} rows")
    if problems:
        raise typer.Exit(1)
