"""Text that every machine has: the sources of Python's standard library, and the docstrings in them, as shards."""

from __future__ import annotations

import gzip
import json
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

LEFT_OUT: Final = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests"}
DOCSTRING: Final = re.compile(r'"""(.+?)"""', re.DOTALL)
BLOCKS: Final = re.compile(r"\n\n\n+")  # two empty lines: between top-level functions and classes
VOCABULARY: Final = 4096
NUM_SHARDS: Final = 8


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

    from brimful import from_files

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
