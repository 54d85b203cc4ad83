"""`brimful verify`: whether a token store is, byte by byte, what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from brimful.console import clear_errors, progress
from brimful.store.folders import folder_of
from brimful.store.verify import verify_store


def verify(path: Annotated[str, typer.Argument(help="The folder of a store; s3://, https:// and so on too.")]) -> None:
    """Read a token store again and compare its checksums.

    The exit code is 1 if a file is missing or damaged; each is named.

    Example: brimful verify store
    """
    with clear_errors():
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
