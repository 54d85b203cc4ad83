"""`brimful tokenize` and `verify`: a token store made of files of text, and whether it is, byte by byte, what was written."""

from __future__ import annotations

import io
import time
from contextlib import closing, suppress
from functools import partial
from typing import Annotated, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from brimful import from_files
from brimful.blocks.blocks import Block, visible
from brimful.blocks.ragged import concat, is_ragged
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
from brimful.console import note, progress, stdout, thousands
from brimful.core.errors import require
from brimful.core.progress import Report
from brimful.core.repeat import awaited
from brimful.core.stage import END, Stage, running
from brimful.dataset import Dataset, Executor, run_by
from brimful.report.document import duration
from brimful.rows.take import Take
from brimful.sources.bytes import opened
from brimful.sources.compressed import COMPRESSIONS, Decompressed
from brimful.sources.files import FromFiles
from brimful.sources.formats import FORMATS, format_of
from brimful.sources.urls import Shard, Shards
from brimful.store.index import folder_of, verify_store
from brimful.store.manifest import Manifest
from brimful.store.types import conform, stored_schema, vocabularies
from brimful.store.writer import write_store

MOST_ROWS: Final = 20_000
MOST_BYTES: Final = 32 << 20
"""Of text that is looked at, uncompressed."""
MOST_SECONDS: Final = 5.0
"""For tokens; the first block is made in any case."""
RATIO_BYTES: Final = 4 << 20
"""Of a compressed shard, read to see how much it grows."""


def tokenize(
    urls: Urls,
    tokenizer: TokenizerName,
    output: Annotated[
        str | None, typer.Option(help="The folder of the store: new, empty, or a store begun.", metavar="PATH")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate tokens, time and size from the first rows; write nothing.")
    ] = False,
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
    Ctrl-C or kill -9 the same command goes on where it stopped. --dry-run says
    first how long it will take. Samples stay whole unless --max-length cuts them.
    The store holds the tokens and the columns of --keep, and no other column.

    Example: brimful tokenize 'a/*.jsonl.gz' --tokenizer gpt2 --output store
    """
    require("--max-length", max_length, 0, "tokens")
    if not (output or dry_run):
        raise ValueError("name the folder of the store with --output, or say --dry-run for an estimate")
    kept = tuple(dict.fromkeys(keep or ()))
    files = from_files(
        urls,
        format=format,
        columns=list(dict.fromkeys((column, *kept))),
        on_error=on_error,
    )
    tokens = tokenized(files, tokenizer, column, max_length, engine)
    stage = tokens.select(("input_ids", *kept)).stage
    if not output or dry_run:
        with progress(None) as update:
            found = estimate_of(files, stage, update)
        _show_estimate(found, max_length, _left_out(urls, format, {column, *kept}))
        return
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


def _show_estimate(found: Estimate, max_length: int, more: list[tuple[str, ...]]) -> None:
    table = figures()
    if found.all_read:
        table.add_row("rows", f"{found.rows:,}")
        table.add_row("tokens", f"{found.tokens:,}", f"{found.tokens / found.rows:,.1f} a row")
        read = f"{found.sampled:,} rows, all that there are"
    else:
        table.add_row("rows", f"about {thousands(found.rows)}")
        table.add_row("tokens", f"about {thousands(found.tokens)}", f"{found.tokens / found.rows:,.1f} a row")
        read = f"the first {found.sampled:,} rows and the size of the files, {thousands(found.source_bytes)}B"
    table.add_row("size", f"about {thousands(found.bytes)}B", "of the store, on disk")
    table.add_row(
        "time",
        f"about {duration(max(1, found.seconds))}",
        f"{thousands(found.tokens_per_second)} tokens a second, here",
    )
    for row in (cut_figure(max_length), *more):
        table.add_row(*row)
    console = stdout()
    console.print(table)
    console.print(f"estimated from {read}; nothing was written", soft_wrap=True)


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


# -- an estimate: the first rows are tokenized, and the sizes of the shards say how many follow ----------------------------


class Estimate(NamedTuple):
    """What a store will hold and take.

    Args:
        rows, tokens, bytes, seconds: of the whole; bytes are those of the store.
        tokens_per_second: of those that were made.
        sampled: the rows that were looked at.
        all_read: whether these are all: then rows and tokens are exact where they were all tokenized.
        source_bytes: of all shards.
    """

    rows: int
    tokens: int
    bytes: int
    seconds: float
    tokens_per_second: float
    sampled: int
    all_read: bool
    source_bytes: int


def estimate_of(files: Dataset, stage: Stage[Block], update: Report) -> Estimate:
    """Tokenizes the first rows and scales them up.

    Args:
        files: of `from_files`.
        stage: the chain over them, up to the columns of the store.
        update: is told of the rows that were tokenized.
    Raises:
        ValueError: the size of a shard is not known; or there are no rows.
    Price: `MOST_ROWS` rows or `MOST_BYTES` of text are read, and tokenized for `MOST_SECONDS` at most.
    """
    source = files.stage
    assert isinstance(source, FromFiles)
    shards = source.urls
    for shard in shards.listed:
        if not shard.size:
            _refuse_unknown(shards, shard)
    total = sum(shard.size for shard in shards.listed)
    sampled, rows_per_byte = _rows(source)
    if not sampled:
        raise ValueError("there are no rows in these files: nothing to estimate")
    made = _tokens(Take(stage, sampled), vocabularies(stage), update)
    rows = sampled if rows_per_byte is None else max(sampled, round(total * rows_per_byte))
    scale = rows / made.rows
    return Estimate(
        rows,
        round(made.tokens * scale),
        round(made.bytes * scale),
        made.seconds * scale,
        made.tokens / made.seconds,
        made.rows,
        rows_per_byte is None and made.rows == sampled,
        total,
    )


def _refuse_unknown(shards: Shards, shard: Shard) -> None:
    """Tells a shard of no bytes from one whose server does not say how many it has."""
    with closing(opened(shard.fs, shard.path, shard.url, shards.timeout_seconds)) as file:
        if file.read(1):
            raise ValueError(
                f"the size of {shard.url} is not known, so that nothing can be estimated: leave out --dry-run"
            )


def _rows(source: FromFiles) -> tuple[int, float | None]:
    """How many rows to look at, and how many there are in a byte of the shards; None where those rows are all."""
    rows, state, size = 0, source.start(0), 0
    with running(source, state) as items:
        for block, state in items:
            rows += block.num_rows
            size += visible(block).nbytes
            if state == END or rows >= MOST_ROWS or size >= MOST_BYTES:
                break
    if state == END:
        return rows, None
    _, begun, positions = state
    listed = source.urls.listed
    at = {number: tuple(position) for number, *position in positions}
    form = format_of(listed[0].url) if source.format == "auto" else FORMATS[str(source.format)]
    if form is not None and not form.compressed:
        largest = max(listed[:begun], key=lambda shard: shard.size)
        return rows, _counted(source.urls, largest) / largest.size
    grown: dict[str, float] = {}
    done = 0.0
    for number, shard in enumerate(listed[:begun]):
        kind = shard.path[shard.path.rfind(".") :]
        if number in at and kind in COMPRESSIONS and kind not in grown:
            grown[kind] = _growth(source.urls, shard, COMPRESSIONS[kind])
        done += min(shard.size, at[number][0] / grown.get(kind, 1.0)) if number in at else shard.size
    return rows, rows / max(1.0, done)


def _growth(shards: Shards, shard: Shard, kind: str) -> float:
    """Bytes of a compressed shard for each of those it is stored in, by its beginning."""
    file = opened(shard.fs, shard.path, shard.url, shards.timeout_seconds)
    with closing(Decompressed(file, kind)) as content:
        size = 0
        while file.tell() < RATIO_BYTES and (data := content.read(1 << 20)):
            size += len(data)
        return size / max(1, file.tell())


def _counted(shards: Shards, shard: Shard) -> int:
    """The rows of a shard of columns. Price: parquet: its footer; Arrow: all of it, once."""
    with closing(shards.open(shard)) as file:
        source = io.BufferedReader(file)
        with suppress(pa.ArrowInvalid):
            return int(pq.ParquetFile(source).metadata.num_rows)
        with suppress(pa.ArrowInvalid):
            source.seek(0)
            batches = pa.ipc.open_file(source)
            return sum(batches.get_batch(number).num_rows for number in range(batches.num_record_batches))
        source.seek(0)
        return sum(batch.num_rows for batch in pa.ipc.open_stream(source))


class _Tokenized(NamedTuple):
    rows: int
    tokens: int
    bytes: int
    seconds: float


def _tokens(stage: Stage[Block], num_ids: dict[str, int], update: Report) -> _Tokenized:
    """The rows, tokens and bytes of what could be made in time, and the seconds at the speed after the first block."""
    blocks: list[Block] = []
    ended: list[float] = []
    began = time.perf_counter()
    rows = 0
    with awaited(stage, stage.start(0)) as items:
        for block, _ in items:
            if not block.num_rows:
                continue
            blocks.append(block)
            ended.append(time.perf_counter())
            rows += block.num_rows
            status = f"{thousands(rows)} rows looked at"
            update(block.num_rows, partial(str, status))
            if ended[-1] - began > MOST_SECONDS:
                break
    schema = stored_schema(visible(concat(blocks)), num_ids)
    stored = [conform(block, schema, num_ids) for block in blocks]
    tokens = [len(one.column("input_ids").flatten()) for one in stored]
    lists = len([field for field in schema if is_ragged(field.type)])
    size = sum(one.nbytes for one in stored) + 4 * rows * lists
    seconds = ended[-1] - began
    later = sum(tokens) - tokens[0]
    if len(ended) > 2 and later:  # loading a tokenizer and opening files take their time once
        seconds = (ended[-1] - ended[0]) * sum(tokens) / later
    return _Tokenized(rows, sum(tokens), size, max(seconds, 1e-9))
