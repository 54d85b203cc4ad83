from __future__ import annotations

import gzip
import json
import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.cli.commands import Corpus

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """600 documents of 1 to 60 words, a token each, in 4 shards; and the tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["[UNK]", *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    draw, tokens = random.Random(0), 0
    for shard in range(4):
        name = folder / f"{shard}.jsonl{'.gz' if shard % 2 else ''}"
        with (gzip.open if shard % 2 else open)(name, "wt", encoding="utf-8") as file:
            for _ in range(150):
                words = draw.choices(WORDS, k=draw.randint(1, 60))
                tokens += len(words)
                file.write(json.dumps({"text": " ".join(words), "other": shard}) + "\n")
    return Corpus(str(folder / "*.jsonl*"), str(folder / "tokenizer.json"), 600, tokens)
