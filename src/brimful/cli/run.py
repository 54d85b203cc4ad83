"""`brimful run`: the batches of a user's own files, counted, and a place to go on from."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from brimful import from_files
from brimful.cli.options import (
    FormatName,
    MaxLength,
    MaxTokens,
    OnError,
    TokenizerName,
    Urls,
    cut_figure,
    figures,
    load_json,
    tokenized,
)
from brimful.console import note, progress, stdout, thousands
from brimful.core.atomic import write_atomically
from brimful.core.header import VERSION, header_of
from brimful.core.states import is_text
from brimful.core.stats import LEFT_OUT, Stats
from brimful.demo.digests import DigestFile
from brimful.plan.errors import require

if TYPE_CHECKING:
    from brimful.batches import Batches
    from brimful.loader import Loader

COUNTED: Final = ("samples", "tokens", "slots", "seconds_waited", *LEFT_OUT)


def run(
    urls: Urls,
    tokenizer: TokenizerName,
    column: Annotated[str, typer.Option(help="The column of text; no other is read.")] = "text",
    format: FormatName = "auto",
    max_tokens: MaxTokens = 16_384,
    max_length: MaxLength = 0,
    window: Annotated[
        str, typer.Option(help="Samples to sort by length at a time. auto: what 1 % padding takes.", metavar="N|auto")
    ] = "auto",
    shuffle: Annotated[int, typer.Option(help="Samples in the shuffle buffer; shuffles the files too. 0: off.")] = 0,
    seed: Annotated[int, typer.Option(help="Of all random choices; each epoch makes its own.")] = 42,
    epochs: Annotated[int, typer.Option(help="Times to go through the files; the first is epoch 0.")] = 1,
    limit: Annotated[int | None, typer.Option(help="Batches after which this call stops.")] = None,
    step_seconds: Annotated[
        float, typer.Option(help="Seconds to wait after each batch, as a training step would.", metavar="SECONDS")
    ] = 0.0,
    on_error: OnError = "raise",
    state: Annotated[
        Path | None, typer.Option(help="Keep the place in this file; go on from it if it is there.", metavar="FILE")
    ] = None,
    save_every: Annotated[int, typer.Option(help="Batches between two saves of the state.")] = 100,
    digests: Annotated[
        Path | None,
        typer.Option(help="Write a line a batch: number, shape, digest. Equal files: equal batches.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as a line of JSON.")] = False,
) -> None:
    """Stream batches of your own files: how fast, how full, and an exact place to go on from.

    Tokenizes on the fly and fills batches up to a budget of tokens, as training
    would. Shows samples, tokens a second, padding, and the share of the time
    spent waiting for data (with --step-seconds: what a training would wait).
    Samples stay whole unless --max-length cuts them.

    With --state the place is saved every few batches, at the end, and on Ctrl-C
    or SIGTERM. The same command then goes on from there, also after kill -9.

    Example: brimful run 'a/*.jsonl.gz' --tokenizer gpt2 --state place.json
    """
    require("--max-tokens", max_tokens, 1, "token")
    require("--max-length", max_length, 0, "tokens")
    require("--shuffle", shuffle, 0, "samples")
    require("--epochs", epochs, 1, "epoch")
    require("--limit", 1 if limit is None else limit, 1, "batch")
    require("--step-seconds", step_seconds, 0, "seconds")
    require("--save-every", save_every, 1, "batch")
    if max_length > max_tokens:
        raise ValueError(f"--max-length must be at most --max-tokens={max_tokens:,} (got {max_length:,})")
    begun, place = _place(state)
    rows = _window(window)

    files = from_files(
        urls,
        format=format,
        columns=[column],
        shuffle_shards=shuffle > 0,
        seed=seed,
        on_error=on_error,
    )
    tokens = tokenized(files, tokenizer, column, max_length)
    shuffled = tokens.shuffle(shuffle, seed=seed) if shuffle else tokens
    batches = shuffled.batch_by_tokens(max_tokens, window=rows, seed=seed)
    counts, signals = _take(batches, place, epochs, begun, state, save_every, digests, limit, step_seconds)
    _report(counts, max_length, as_json)
    if state is not None:
        note(_verdict(begun, state, counts.batches, signals, counts.batches == limit))
    if not (counts.batches or begun or signals):
        raise ValueError(f"nothing was read: there is no sample in {', '.join(urls)}")
    if signals:
        raise typer.Exit(128 + signals[0])


def _place(state: Path | None) -> tuple[int, dict[str, Any] | None]:
    """How many batches the runs before took, over all epochs, and the state of their loader; 0 and None where there was none.

    Raises:
        ValueError: the file holds something else.
    """
    if state is None or not state.exists():
        return 0, None
    saved = load_json(state)
    named = saved.keys() - {"pipeline"} if isinstance(saved, dict) else ()
    if named != {"batches", "loader"} or not is_text(saved["loader"]):
        raise ValueError(f"{state} holds no place of `brimful run`: it must have batches, and the state of a loader")
    return saved["batches"], saved["loader"]


def _take(
    batches: Batches,
    place: dict[str, Any] | None,
    epochs: int,
    begun: int,
    state: Path | None,
    save_every: int,
    digests: Path | None,
    limit: int | None,
    step_seconds: float,
) -> tuple[Counts, list[int]]:
    """Takes the batches from a place on, saves the place; the counts, and the signals that ended it before its end."""
    counts = Counts()
    loader = batches.prefetch(2).loader()
    if place is not None:
        loader.load_state_dict(place)
    if begun:
        note(f"going on after batch {begun:,} (epoch {loader.epoch}; the first is 0), as {state} says")
    pipeline = {"version": VERSION, "header": header_of(batches.stage)}
    with closing(DigestFile(digests, begun)) if digests else nullcontext() as lines:

        def save() -> None:
            if lines is not None:
                lines.flush()
            if state is not None:
                saved = loader.state_dict()
                here = {"batches": begun + counts.batches, "loader": saved}
                if not saved["iterator"]:  # between two epochs the loader's state does not say what made it
                    here["pipeline"] = pipeline
                write_atomically(state, json.dumps(here, indent=1).encode() + b"\n")

        save()  # a file that cannot be written is known before the work
        with _noted_signals() as signals, progress(limit) as update, closing(counts.over(loader, epochs)) as taken:
            for batch in taken:
                if lines is not None:
                    lines.add(batch)
                time.sleep(step_seconds)
                update(1, counts.status)
                if signals or counts.batches == limit:
                    break
                if counts.batches % save_every == 0:
                    save()
            save()
    return counts, signals


class Counts:
    """Counts of the batches that one call has streamed, over epochs."""

    def __init__(self) -> None:
        self._stats: list[Stats] = []
        self._shapes: set[tuple[int, ...]] = set()
        self._began = time.perf_counter()
        self.batches: int = 0

    def over(self, loader: Loader, epochs: int) -> Generator[Mapping[str, Any], None, None]:
        """The batches up to the end of epoch `epochs`, counted."""
        while loader.epoch < epochs:
            for number, batch in enumerate(loader):
                if not number and loader.stats is not None:
                    self._stats.append(loader.stats)
                self.batches += 1
                self._shapes.add(tuple(batch["attention_mask"].shape))
                yield batch

    def summary(self) -> dict[str, Any]:
        """All counts, by name."""
        seconds = time.perf_counter() - self._began
        total = {name: sum(stats[name] for stats in self._stats) for name in COUNTED}
        return {
            "batches": self.batches,
            "num_shapes": len(self._shapes),
            **total,
            "padding": 1 - total["tokens"] / total["slots"] if total["slots"] else 0.0,
            "seconds": seconds,
            "stall_share": total["seconds_waited"] / seconds,
            "tokens_per_second": total["tokens"] / seconds,
        }

    def status(self) -> str:
        now = self.summary()
        return (
            f"{thousands(now['samples'])} samples, {self.batches:,} batches, {thousands(now['tokens_per_second'])} tok/s, "
            f"pad {now['padding']:.1%}, wait {now['stall_share']:.0%}"
        )


def _window(window: str) -> int | Literal["auto"]:
    if window == "auto":
        return "auto"
    if not window.isdecimal():
        raise ValueError(f"--window must be a number of samples or auto (got {window!r})")
    return int(window)


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM as numbers in a list, so that a loop ends after a whole batch; the second acts as ever."""
    noted: list[int] = []

    def noted_once(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(number, previous[number])
        os.write(2, b"\nstopping after this batch; once more to stop at once\n")

    previous = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, noted_once)
    try:
        yield noted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report(counts: Counts, max_length: int, as_json: bool) -> None:
    """The summary on stdout: a table for people, a line of JSON for programs."""
    summary = counts.summary()
    if as_json:
        typer.echo(json.dumps(summary))
        return
    table = figures()
    table.add_row("samples", f"{summary['samples']:,}")
    table.add_row("tokens", f"{summary['tokens']:,}", f"{summary['tokens_per_second']:,.0f} a second")
    table.add_row("batches", f"{summary['batches']:,}", f"{summary['num_shapes']:,} shapes")
    table.add_row("padding", f"{summary['padding']:.2%}", f"of {summary['slots']:,} slots")
    table.add_row(*cut_figure(max_length))
    table.add_row("time", f"{summary['seconds']:.2f} s")
    table.add_row("waiting for data", f"{summary['stall_share']:.1%}", f"{summary['seconds_waited']:.2f} s")
    for name in LEFT_OUT:
        if summary[name]:
            table.add_row(name.replace("_", " "), f"{summary[name]:,}")
    stdout().print(table)


def _verdict(begun: int, path: Path, batches: int, signals: Sequence[int], limited: bool) -> str:
    """The place of the run, and the way to go on."""
    taken = begun + batches
    if signals or limited:
        cause = f"stopped by {signal.Signals(signals[0]).name}" if signals else "stopped by --limit"
        return f"{cause} after batch {taken:,}; the same command goes on from {path}"
    if taken and not batches:
        return f"nothing is left: {path} is at the end, after batch {taken:,}; remove it to begin again"
    return f"finished after batch {taken:,}; {path} is at the end"
