"""`brimful tokenize` and `brimful verify`."""

from __future__ import annotations

from pathlib import Path

import pytest

import brimful as bf
from tests.cli.commands import Corpus, invoke, refusal


def test_tokenize_then_verify(corpus: Corpus, tmp_path: Path) -> None:
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store")
    result = invoke(*words, "--keep", "other")
    assert result.exit_code == 0, result.output
    assert f"{corpus.tokens:,}" in result.stdout
    assert "list<item: uint8>" in result.stdout
    stored = bf.from_store(tmp_path / "store")
    assert (len(stored), int(stored.lengths().sum())) == (corpus.samples, corpus.tokens)
    assert set(next(iter(stored))) == {"input_ids", "other"}

    assert invoke(*words, "--keep", "other").exit_code == 0  # there already
    assert "from_files.columns was" in refusal(*words)
    other = refusal(*words, "--keep", "other", "--max-length", "7")
    assert "tokenizers.input_ids was" in other

    verified = invoke("verify", tmp_path / "store")
    assert verified.exit_code == 0
    assert verified.stdout.endswith("is whole: 2 files, 35,874 bytes, 600 rows\n") or "600 rows" in verified.stdout
    path = tmp_path / "store" / "00000.arrow"
    content = bytearray(path.read_bytes())
    content[2000] ^= 4
    path.write_bytes(content)
    verified = invoke("verify", tmp_path / "store")
    assert verified.exit_code == 1
    assert f"{path} is damaged: its sha256 is" in verified.stdout.replace("\n", " ")


def test_max_length(corpus: Corpus, tmp_path: Path) -> None:
    assert (
        invoke(
            "tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path, "--max-length", 7
        ).exit_code
        == 0
    )
    assert bf.from_store(tmp_path).lengths().max() == 7


def test_what_is_wrong_is_a_line(corpus: Corpus, tmp_path: Path) -> None:
    assert "there is no token store" in refusal("verify", tmp_path)
    assert "no_such" in refusal(
        "tokenize", "no_such.jsonl", "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store"
    )
    (tmp_path / "mine.txt").touch()
    assert "holds no store" in refusal("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path)


@pytest.mark.parametrize("command", ["tokenize", "verify"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: brimful {command} " in invoke(command, "--help").stdout
