"""`brimful demo`: the main job on text that every machine has; nothing is downloaded."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import platform
import re
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Column, Table

from brimful import Batches, from_files
from brimful.console import progress, stdout, thousands
from brimful.core.stats import Stats
from brimful.plan.errors import require

if TYPE_CHECKING:
    from brimful.demo.training import Step

MAX_LENGTH: Final = 512
MAX_TOKENS: Final = 8192
LEFT_OUT: Final = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests"}
DOCSTRING: Final = re.compile(r'"""(.+?)"""', re.DOTALL)
BLOCKS: Final = re.compile(r"\n\n\n+")  # two empty lines: between top-level functions and classes
VOCABULARY: Final = 4096
NUM_SHARDS: Final = 8


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Work in this folder, new or empty, and keep it.", metavar="PATH")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of training in a run.")] = 60,
    megabytes: Annotated[float, typer.Option(help="Text to use at most, in MB.")] = 6.0,
) -> None:
    """The whole job in a minute: stream, pad, train, be killed, go on exactly. Nothing is downloaded.

    The text is the source of Python's standard library. The exit code is 1 if
    the batches after the kill were not those of an unbroken run.

    Example: brimful demo --steps 100
    """
    require("--steps", steps, 4, "steps")
    require("--megabytes", megabytes, 0.1, "MB")
    console = stdout()
    with _workplace(folder) as place:
        corpus, tokenizer = _prepare(console, place, megabytes)
        _stream(console, corpus, tokenizer)
        same = _train(console, place, corpus, tokenizer, steps)
        if folder is not None:
            console.print(
                f"\nThe files are kept. To stream them again:\n  brimful run '{corpus.urls}' "
                f"--tokenizer {tokenizer} --max-length {MAX_LENGTH}",
                soft_wrap=True,
            )
    if not same:
        raise typer.Exit(1)


@contextmanager
def _workplace(folder: Path | None) -> Iterator[Path]:
    """A folder to work in: the user's, or one that goes away at the end, on SIGTERM too."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"the folder {folder} is not empty; name a new one")
        yield folder
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="brimful-demo-") as name:
        yield Path(name)


def _prepare(console: Console, place: Path, megabytes: float) -> tuple[Corpus, Path]:
    _heading(console, 1, "Text and a tokenizer")
    corpus = write_corpus(place, megabytes)
    console.print(
        f"   {corpus.documents:,} documents ({corpus.characters / 1e6:.1f} MB): functions, classes and docstrings of "
        f"{corpus.modules:,}\n   modules of Python {platform.python_version()}, in {NUM_SHARDS} JSONL shards, half of them gzip"
    )
    began = time.perf_counter()
    tokenizer = train_tokenizer(place, corpus)
    console.print(
        f"   a byte-level BPE tokenizer of {VOCABULARY:,} tokens, trained in {time.perf_counter() - began:.1f} s"
    )
    return corpus, tokenizer


def _stream(console: Console, corpus: Corpus, tokenizer: Path) -> None:
    """One epoch in random batches and one in brimful's, and what each pads."""
    import torch  # noqa: F401  before any clock starts
    from tokenizers import Tokenizer

    _heading(console, 2, "Streaming: shards to padded batches, tokenized on the fly")
    truncation = {"truncation": True, "max_length": MAX_LENGTH}
    encoder = Tokenizer.from_file(str(tokenizer))
    tokens = from_files(corpus.urls, columns=["text"]).tokenize(encoder, tokenizer_kwargs=truncation)
    ways = {
        "random, 32 rows": tokens.shuffle(10_000).batch(32),
        f"brimful, {MAX_TOKENS:,} tokens": tokens.batch_by_tokens(MAX_TOKENS),
    }
    numbers = ("batches", "tokens", "slots", "padding", "tokens/s")
    table = Table("batches of", *(Column(name, justify="right") for name in numbers), box=box.SIMPLE)
    for name, batches in ways.items():
        lengths, stats, seconds = _epoch(batches, name, corpus.documents)
        table.add_row(
            name,
            f"{stats.batches:,}",
            f"{stats.tokens:,}",
            f"{stats.slots:,}",
            f"{stats.padding:.1%}",
            thousands(stats.tokens / seconds),
        )
    console.print(table)
    console.print(f"   lengths in tokens, cut at {MAX_LENGTH}:")
    for line in histogram(lengths, "█" if console.encoding.startswith("utf") else "#"):
        console.print(f"   {line}")


def _epoch(batches: Batches, name: str, documents: int) -> tuple[NDArray[np.int64], Stats, float]:
    """The lengths of an epoch's samples, its counts and its seconds, with a progress bar."""
    began = time.perf_counter()
    lengths = []
    with batches.prefetch(2).iter() as it, progress(documents) as update:
        for batch in it:
            lengths.append(batch["lengths"].numpy())
            update(
                len(lengths[-1]), lambda: f"{name}: {thousands(it.stats.tokens)} tokens, {it.stats.padding:.1%} padding"
            )
    return np.concatenate(lengths), it.stats, time.perf_counter() - began


def histogram(lengths: NDArray[np.int64], block: str, width: int = 40) -> list[str]:
    """Lines of bars: how many lengths lie between two powers of two.

    >>> for line in histogram(np.array([1, 2, 3, 3, 9]), "#", width=6):
    ...     print(line)
        1 -     1  ##  1
        2 -     3  ######  3
        4 -     7    0
        8 -     9  ##  1
    """
    counts = np.bincount(np.frexp(np.maximum(lengths, 1))[1])[1:]
    bars = [block * round(width * count / counts.max()) for count in counts]
    last = int(lengths.max())
    return [
        f"{1 << i:5} - {min((2 << i) - 1, last):5}  {bar}  {count:,}"
        for i, (bar, count) in enumerate(zip(bars, counts))
    ]


def _train(console: Console, place: Path, corpus: Corpus, tokenizer: Path, steps: int) -> bool:
    """Trains unbroken, then killed and started again; whether the batches were the same."""
    import torch

    from brimful.demo import training

    save_every, kill_at = max(1, steps // 6), steps * 5 // 8
    logs = {name: place / f"{name}.tsv" for name in ("unbroken", "killed", "resumed")}
    settings: dict[str, Any] = {"checkpoint": place / "checkpoint.pt", "save_every": save_every}

    _heading(console, 3, f"Training: a 2-layer transformer, {steps} steps")
    training.train(corpus.urls, tokenizer, steps, logs["unbroken"], save_every=save_every)

    _heading(console, 4, f"The same in a process of its own, that kills itself (SIGKILL) in step {kill_at}")
    first = _process(training.train, corpus.urls, tokenizer, steps, logs["killed"], **settings, kill_at=kill_at)
    saved = torch.load(settings["checkpoint"])
    size = len(json.dumps(saved["data"]["position"]))
    console.print(
        f"   exit code {first}. What was saved last is step {saved['step']}; its place in the data: {size} bytes"
    )

    _heading(console, 5, "A new process goes on from there")
    second = _process(training.train, corpus.urls, tokenizer, steps, logs["resumed"], **settings)
    if (first, second) != (-signal.SIGKILL, 0):
        raise ChildProcessError(f"exit codes must be {-signal.SIGKILL:d} and 0 (got {first} and {second})")

    _heading(console, 6, "Verdict")
    unbroken, *broken = (training.read_log(log) for log in logs.values())
    return _verdict(console, unbroken, broken[0], broken[1], saved["step"], kill_at, steps % save_every or save_every)


def _verdict(
    console: Console,
    unbroken: list[Step],
    killed: list[Step],
    resumed: list[Step],
    saved: int,
    kill_at: int,
    last: int,
) -> bool:
    """Whether the steps up to the kill and those after what was saved had the batches of the unbroken run.

    Args:
        last: how many steps the last line of losses is the mean of.
    """
    expected = [*unbroken[:kill_at], *unbroken[saved:]]
    found = [*killed, *resumed]
    differ = [one.number for one, other in zip(expected, found) if one[:2] != other[:2]]
    same = not differ and len(expected) == len(found)
    console.print(
        f"   batches compared  {len(found)}: of steps 1-{kill_at} until the kill, {saved + 1}-{len(unbroken)} after"
    )
    means = [fmean(step.loss for step in steps[-last:]) for steps in (unbroken, resumed)]
    console.print(f"   last loss         unbroken {means[0]:.3f}, killed and resumed {means[1]:.3f}")
    if same:
        console.print("   [bold green]IDENTICAL[/]         each batch is, bit by bit, that of the unbroken run")
    else:
        console.print(
            f"   [bold red]DIFFERENT[/]         batches of steps {differ}; {len(expected) - len(found)} are missing"
        )
    return same


def _process(target: Callable[..., None], *args: Any, **settings: Any) -> int | None:
    """Runs a function in a new interpreter; its exit code, negative where a signal ended it."""
    sys.stdout.flush()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_deaf, args=(target, *args), kwargs=settings, daemon=True)
    process.start()
    try:
        process.join()
    finally:
        process.kill()
    return process.exitcode


def _deaf(target: Callable[..., None], *args: Any, **settings: Any) -> None:
    """Ctrl-C goes to the parent, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*args, **settings)


def _heading(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold]{number}. {text}[/]")


# -- text that every machine has: the sources of Python's standard library, and the docstrings in them, as shards ----------


class Corpus(NamedTuple):
    modules: int
    documents: int
    characters: int
    urls: str


def write_corpus(folder: Path, megabytes: float) -> Corpus:
    """Writes `{"text", "module"}` documents to 8 JSONL shards, every other one compressed.

    Raises:
        FileNotFoundError: this Python came without the sources of its standard library.
    """
    names = [folder / f"shard-{number}.jsonl{'.gz' if number % 2 else ''}" for number in range(NUM_SHARDS)]
    files: list[Any] = [(gzip.open if name.suffix == ".gz" else open)(name, "wt", encoding="utf-8") for name in names]
    modules = documents = characters = 0
    for module, text in _modules():
        modules += 1
        for document in _documents(text):
            files[documents % NUM_SHARDS].write(json.dumps({"text": document, "module": module}) + "\n")
            documents += 1
            characters += len(document)
        if characters >= megabytes * 1e6:
            break
    for file in files:
        file.close()
    if not documents:
        raise FileNotFoundError(f"there are no sources of the standard library in {sysconfig.get_path('stdlib')}")
    return Corpus(modules, documents, characters, str(folder / "shard-*.jsonl*"))


def train_tokenizer(folder: Path, corpus: Corpus) -> Path:
    """Trains a byte-level BPE tokenizer on the shards; its file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    texts = (sample["text"] for sample in from_files(corpus.urls, columns=["text"]))
    tokenizer.train_from_iterator(texts, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def _modules() -> Iterator[tuple[str, str]]:
    """Name and source of each module, in a fixed order."""
    library = sysconfig.get_path("stdlib")
    for parent, folders, files in os.walk(library):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(parent, name)
                yield str(path.relative_to(library)), path.read_text("utf-8", errors="replace")


def _documents(source: str) -> Iterator[str]:
    """The texts between two empty lines, and each docstring by itself."""
    for text in (*BLOCKS.split(source), *DOCSTRING.findall(source)):
        if text.strip():
            yield text.strip("\n")
