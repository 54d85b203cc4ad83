"""`brimful head`: the first rows of files or of a token store, and the first batches that would be made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brimful import concat_datasets, from_files, from_store
from brimful.cli.options import (
    FILES,
    FormatName,
    MaxLength,
    MaxTokens,
    OnError,
    cut_figure,
    figures,
    is_store,
    printable,
    tokenized,
)
from brimful.console import stdout
from brimful.core.facts import facts_of
from brimful.encoding.encoder import one_vocabulary
from brimful.encoding.encoders import encoder_for
from brimful.plan.errors import require

if TYPE_CHECKING:
    from brimful.batches import Batches
    from brimful.encoding.encoder import Encoder

MOST_CHARACTERS: Final = 400
"""Of a text: more is in no terminal's line."""
MOST_NUMBERS: Final = 6
"""Of a list of numbers."""
MOST_IDS: Final = 3
"""Of the tokens of a sample, beside its text."""
TOKENS: Final = "input_ids"


def head(
    urls: Annotated[list[str], typer.Argument(help=f"{FILES} Or a token store.", metavar="PATH")],
    n: Annotated[int, typer.Option("-n", "--rows", help="Rows to show, and samples of the batch.")] = 5,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Show batches too: a tokenizer.json, a folder or name for transformers, or tiktoken:NAME. Of a store: "
            "decode its tokens.",
            metavar="T",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of text, for --tokenizer.", show_default="text")
    ] = None,
    format: FormatName = "auto",
    max_tokens: MaxTokens = 16_384,
    max_length: MaxLength = 0,
    on_error: OnError = "raise",
) -> None:
    """Show the first rows of files or of a token store; with --tokenizer the first batches too.

    Rows come in the order in which a run reads them: of several files a row of each
    in turn. Batches are those of batch_by_tokens: of the first, each sample with its
    text (decoded from the tokens), its tokens and its length; of the next, the plan.

    Example: brimful head 'a/*.jsonl.gz' --tokenizer gpt2
    """
    require("-n", n, 1, "row")
    require("--max-length", max_length, 0, "tokens")
    if max_length and tokenizer is None:
        raise ValueError("--max-length cuts texts as they are tokenized: name a --tokenizer")
    console = stdout()
    stored = is_store(urls)
    rows = (
        concat_datasets([from_store(url) for url in urls])
        if stored
        else from_files(urls, format=format, on_error=on_error)
    )
    found = rows.peek(n)
    if not found:
        raise ValueError(f"there are no rows in {', '.join(urls)}")
    if column not in (None, *found[0]):
        raise ValueError(f"there is no column {column!r} in {', '.join(urls)} (columns: {', '.join(found[0])})")
    tokens_there = stored or TOKENS in found[0]
    option = "--max-length cuts" if max_length else "--column names" if column else ""
    if tokens_there and option:
        raise ValueError(f"{', '.join(urls)} has tokens already: {option} texts as they are tokenized")
    _show_rows(console, found)
    encoder = None if tokenizer is None else encoder_for(tokenizer)
    if tokens_there:
        if encoder is not None:
            one_vocabulary("head", {"rows": facts_of(rows.stage).tokenizers(), "--tokenizer": {TOKENS: (encoder,)}})
        _show_batches(console, rows.batch_by_tokens(max_tokens), n, encoder)
    elif tokenizer is None and (column or "text") not in found[0]:
        console.print("--tokenizer T and --column C show batches of a column of text too", soft_wrap=True)
    elif tokenizer is None:
        console.print(f"--tokenizer T shows batches of the column {column or 'text'!r} too", soft_wrap=True)
    else:
        texts = from_files(urls, format=format, columns=[column or "text"], on_error=on_error)
        tokens = tokenized(texts, tokenizer, column or "text", max_length)
        _show_batches(console, tokens.batch_by_tokens(max_tokens), n, encoder)
        cut = figures()
        cut.add_row(*cut_figure(max_length))
        console.print(cut)


def _show_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line a value: any number of columns fits."""
    table = _table("row", "column", "type", "value")
    for number, row in enumerate(rows):
        for place, (name, value) in enumerate(row.items()):
            table.add_row("" if place else str(number), _line(name), _kind(value), _line(value))
        table.add_section()
    console.print(table)


def _show_batches(console: Console, batches: Batches, n: int, encoder: Encoder | None) -> None:
    """The first batch, sample by sample, and the plan of the first ones."""
    plans = list(islice(batches.plans(), n))
    if not plans:
        return
    with batches.iter() as it:
        batch = next(it)
    lengths = batch["lengths"].tolist()
    table = _table("sample", "tokens", "padding", TOKENS, *(["text"] if encoder else []))
    for number, (length, ids) in enumerate(zip(lengths[:n], batch[TOKENS].tolist())):
        text = [] if encoder is None else [_line(encoder.text(ids[:length]) or "")]
        table.add_row(str(number), f"{length:,}", f"{len(ids) - length:,}", _line(ids[:length], MOST_IDS), *text)
    console.print(f"The first batch, {len(lengths):,} samples", style="bold")
    console.print(table)
    if len(lengths) > n:
        console.print(f"and {len(lengths) - n:,} more samples; -n shows more")
    console.print("The plan of the first batches", style="bold")
    plan = _table("batch", "samples", "padded to", "slots", "tokens", "padding")
    for number, one in enumerate(plans):
        padded, tokens = cast(int, one.padded_length), int(one.lengths.sum())
        slots = one.padded_size * padded
        plan.add_row(
            *(f"{value:,}" for value in (number, len(one.numbers), padded, slots, tokens)),
            f"{(1 - tokens / slots) if slots else 0:.1%}",
        )
    console.print(plan)


def _table(*names: str) -> Table:
    """An empty table, in which the last column gets the width that the others leave."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in names:
        words = name in ("column", "type", "value", TOKENS, "text")
        table.add_column(name, justify="left" if words else "right", no_wrap=name not in ("value", "text"))
    return table


def _line(value: Any, most_numbers: int = MOST_NUMBERS) -> Text:
    """A value that is cut off where the terminal ends."""
    return Text(shortened(value, most_numbers), no_wrap=True, overflow="ellipsis")


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.dtype)
    return "null" if value is None else type(value).__name__


def shortened(value: Any, most_numbers: int = MOST_NUMBERS) -> str:
    """A value in one line: long texts and lists are cut, and say how long they are; nothing in it moves the cursor.

    >>> shortened("one\\n two"), shortened(np.arange(9)), shortened([1.5, None])
    ('one two', '[0, 1, 2, 3, 4, 5, ...] (9)', '[1.5, None]')
    """
    if isinstance(value, np.ndarray | list) and len(value) > most_numbers:
        return f"[{', '.join(map(_one, value[:most_numbers]))}, ...] ({len(value):,})"
    return _one(value)


def _one(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    text = value[: 2 * MOST_CHARACTERS] if isinstance(value, str) else repr(value)
    line = " ".join(text.split())
    cut = line[:MOST_CHARACTERS]
    shown = printable(cut)
    if (isinstance(value, str) and len(value) > len(text)) or len(line) > len(cut):
        return f"{shown}..."
    return shown
