"""`brimful report`: what padding costs under each policy, over the user's own lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from brimful import from_files, from_store
from brimful.cli.options import FILES, FormatName, MaxLength, MaxTokens, OnError, is_store, tokenized
from brimful.console import note, progress, stdout, thousands
from brimful.plan.errors import require
from brimful.report.compare import BATCHES_A_STEP, Report, Settings, compare
from brimful.report.document import notes, over_budget, share_of, spread_of, summary, to_html, to_json, window_of
from brimful.report.lengths import SUFFIXES, Lengths, count_tokens, read_lengths
from brimful.sources.urls import Shards
from brimful.store.index import folder_of


def report(
    urls: Annotated[
        list[str],
        typer.Argument(help=f"{FILES} Or token stores, or .npy and .parquet files of lengths.", metavar="URLS|STORE"),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="For text: a tokenizer.json, a folder or name for transformers, or tiktoken:NAME.", metavar="T"
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="The column of text (text); of a store that of tokens (input_ids), or of numbers; in .parquet files that of "
            "lengths (length), or of lists of tokens. One column: of pairs, one side."
        ),
    ] = None,
    format: FormatName = "auto",
    max_tokens: MaxTokens = 16_384,
    max_length: MaxLength = 0,
    row_length: Annotated[
        int | None, typer.Option(help="Tokens in a packed row. (--max-length, or the longest.)")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of fixed size.")] = 32,
    on_error: OnError = "raise",
    sample: Annotated[int, typer.Option(help="Samples to look at, from the first on. 0: all.")] = 200_000,
    hidden_size: Annotated[int, typer.Option(help="Width of the model: what attention costs beside the rest.")] = 768,
    compile_seconds: Annotated[float, typer.Option(help="Seconds to compile one shape.", metavar="SECONDS")] = 30.0,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with charts, whole in itself.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as a line of JSON.")] = False,
) -> None:
    """What padding costs under each policy, on your own data, and which to use.

    Counts the tokens of your samples, then plans batches of them by each policy,
    as the loader would: padding, batches, shapes, and what they cost. No model,
    no GPU. A token store knows its lengths, so that no token is read and it takes
    a second. Samples stay whole unless --max-length cuts them.

    Example: brimful report 'a/*.jsonl.gz' --tokenizer gpt2 --html report.html
    """
    require("--sample", sample, 0, "samples")
    require("--max-length", max_length, 0, "tokens")
    cut = max_length or None
    row = cut if row_length is None else row_length
    settings = Settings(max_tokens, batch_size, row, cut, hidden_size, compile_seconds)
    source = ", ".join(urls[:3]) + (f" and {len(urls) - 3:,} more" if len(urls) > 3 else "")
    if is_store(urls):
        if tokenizer is not None:
            note(f"{source} holds tokens already: --tokenizer is not used")
        lengths = _stored(urls, column or "input_ids", sample)
    elif tokenizer is not None:
        lengths = _count(urls, tokenizer, column or "text", format, max_length, on_error, sample)
        source += f" by {tokenizer}"
    elif format == "parquet" or all(url.endswith(SUFFIXES) for url in urls):
        lengths = read_lengths(urls, sample, column=column or "length")
    else:
        _ = Shards(tuple(urls)).listed  # a name of nothing says so
        raise ValueError(
            f"{next(url for url in urls if not url.endswith(SUFFIXES))} holds no lengths: name a tokenizer with "
            "--tokenizer to count them, or give a token store, or .npy or .parquet files of lengths"
        )
    if not len(lengths.values):
        raise ValueError(f"there are no samples in {source}: nothing to plan")
    found = compare(lengths.values, settings, source=source, more=lengths.more)
    if html is not None:
        html.write_text(to_html(found), "utf-8")
    if as_json:
        typer.echo(json.dumps(to_json(found)))
    else:
        show(stdout(), found)
        if html is not None:
            typer.echo(f"\n{html} shows it with charts.")


def _stored(paths: list[str], column: str, sample: int) -> Lengths:
    """The lengths of the first rows of stores. No token is read."""
    lengths = np.concatenate([from_store(path).lengths(column) for path in paths]).astype(np.int64)
    for path in paths:
        manifest = folder_of(path).manifest
        if column not in manifest.lengths:  # a column of numbers
            continue
        counted = manifest.lengths[column].sha256
        own = [name for name, side in manifest.lengths.items() if side.sha256 != counted and name != column]
        if pairs := [name for name in own if "int" in manifest.columns[name]]:
            note(
                f"{path}: only the tokens of {column!r} are counted, and not those of {', '.join(map(repr, pairs))}. Batches of "
                f"pairs hold both: batch_by_tokens(..., length_column=({column!r}, {pairs[0]!r}))"
            )
    return Lengths(lengths[:sample] if sample else lengths, bool(sample and len(lengths) > sample))


def _count(
    urls: list[str], tokenizer: str, column: str, format: str, max_length: int, on_error: OnError, sample: int
) -> Lengths:
    """The lengths of text, with a progress bar."""
    files = from_files(urls, format=format, columns=[column], on_error=on_error)
    dataset = tokenized(files, tokenizer, column, max_length)
    done, most = 0, f" of at most {thousands(sample)}" if sample else ""
    with progress(None) as update:

        def counted(samples: int, tokens: int) -> None:
            nonlocal done
            update(samples - done, lambda: f"{thousands(samples)}{most} samples, {thousands(tokens)} tokens")
            done = samples

        return count_tokens(dataset, sample, counted=counted)


def show(console: Console, report: Report) -> None:
    """What to use, the tables, and how to read them, in 80 columns."""
    console.print(summary(report), markup=False)
    console.print(spread_of(report), markup=False)
    if over := over_budget(report):
        console.print(over, markup=False, style="bold")
    console.print()
    for advice in report.advice:
        console.print(advice.sentence, style="bold", markup=False)
        console.print(f"  {advice.code}", markup=False, soft_wrap=True)
        console.print()
    widths = {"window": 13, "padding": 8, "batches": 8, "shapes ": 8, "tokens/\nbatch": 8, "cost": 7}
    table = _table("policy", None, widths)
    advised = {advice.policy for advice in report.advice}
    for place, outcome in enumerate(report.outcomes):
        table.add_row(
            outcome.name,
            window_of(outcome, report),
            f"{outcome.padding * 100:.2f} %",
            f"{outcome.batches:,}",
            f"{outcome.shapes:,}{'*' if outcome.too_many_shapes else ' '}",
            f"{outcome.tokens_per_batch:,.0f}",
            f"{outcome.cost:.2f}x",
            style="bold" if place in advised else None,
        )
    for shown in (table, _between(report)):
        console.print(shown)
        console.print()
    for name, text in notes(report).items():
        note = Table.grid(Column(width=12, style="dim"), Column(style="dim"), padding=(0, 1))
        note.add_row(name, text)
        console.print(note)


def _between(report: Report) -> Table:
    """How much of the variance of lengths lies between steps, of each policy and number of batches a step."""
    widths = {str(number) if number > 1 else "1 batch": 9 for number in BATCHES_A_STEP}
    table = _table("variance of lengths between steps of", 36, widths)
    for outcome in report.outcomes:
        window = window_of(outcome, report)
        table.add_row(f"{outcome.name} {window and f'({window})'}", *map(share_of, outcome.between))
    return table


def _table(first: str, first_width: int | None, widths: Mapping[str, int]) -> Table:
    """An empty table: a column of names, then columns of numbers with their least widths."""
    column = partial(Column, vertical="bottom", no_wrap=True)
    numbers = (column(name, justify="right", min_width=width) for name, width in widths.items())
    names = column(first, min_width=first_width)
    return Table(names, *numbers, box=box.SIMPLE, show_edge=False, pad_edge=False, padding=0)
