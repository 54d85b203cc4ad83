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


def test_columns_that_are_not_stored_are_named(tmp_path: Path, corpus: Corpus) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "text": "alpha", "tags": ["x"]}\n')
    words = ("tokenize", rows, "--tokenizer", corpus.tokenizer)
    assert "2   columns: id, tags; --keep stores one" in invoke(*words, "--output", tmp_path / "c").stdout
    assert "1   columns: tags; --keep stores one" in invoke(*words, "--keep", "id", "--output", tmp_path / "a").stdout
    assert "--keep stores" not in invoke(*words, "--keep", "id", "--keep", "tags", "--output", tmp_path / "b").stdout


def test_engine_is_what_tokenizes_and_executor_is_where(corpus: Corpus, tmp_path: Path) -> None:
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store")
    for engine in ("tokenizer", "cache"):  # the store does not know which
        result = invoke(*words, "--engine", engine, "--executor", "local")
        assert result.exit_code == 0, result.output
    assert "engine must be one of auto, gigatoken, cache, tokenizer (got 'ray')" in refusal(*words, "--engine", "ray")
    assert "executor must be one of local, ray (got 'dask')" in refusal(*words, "--executor", "dask")
    assert "ray_address='auto' is for executor='ray' (got executor='local')" in refusal(*words, "--ray-address", "auto")


def test_max_length(corpus: Corpus, tmp_path: Path) -> None:
    assert (
        invoke(
            "tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path, "--max-length", 7
        ).exit_code
        == 0
    )
    assert bf.from_store(tmp_path).lengths().max() == 7


def test_samples_are_whole_and_that_is_said(corpus: Corpus, tmp_path: Path) -> None:
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output")
    assert "samples are whole; --max-length cuts them" in invoke(*words, tmp_path / "whole").stdout
    assert "tokens of a sample (--max-length)" in invoke(*words, tmp_path / "cut", "--max-length", 5).stdout


def test_what_is_wrong_is_a_line(corpus: Corpus, tmp_path: Path) -> None:
    assert "there is no token store" in refusal("verify", tmp_path)
    assert "no_such" in refusal(
        "tokenize", "no_such.jsonl", "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store"
    )
    store = tmp_path / "store"
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", store)
    assert "correct columns=" in refusal(*words, "--keep", "prose")
    assert not store.exists()
    assert "--output must name a folder (got '')" in refusal(*words[:-1], "")
    assert "or `brimful tokenize`" in refusal("verify", tmp_path / "none")
    (tmp_path / "mine.txt").touch()
    assert "holds no store" in refusal("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path)


@pytest.mark.parametrize("command", ["tokenize", "verify"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: brimful {command} " in invoke(command, "--help").stdout


@pytest.mark.parametrize("command", ["tokenize", "run"])
def test_nothing_to_read_is_an_error(command: str, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    output = ("--output", tmp_path / "store") if command == "tokenize" else ()
    result = invoke(command, tmp_path / "empty.jsonl", "--tokenizer", corpus.tokenizer, *output)
    assert result.exit_code == 2
    assert "nothing was read: there is no" in result.stderr


def test_of_empty_files_no_store_is_left_and_they_are_named(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").touch()
    words = ("tokenize", tmp_path / "*.jsonl", "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store")
    named = f"{tmp_path / 'a.jsonl'}, {tmp_path / 'b.jsonl'}"
    assert f"nothing was read: there is no row in {named}" in refusal(*words)
    assert not (tmp_path / "store").exists()
    for name in "cd":
        (tmp_path / f"{name}.jsonl").write_text("damaged\n")
    result = invoke(*words, "--on-error", "skip")
    assert f"{named}, {tmp_path / 'c.jsonl'} and 1 more" in result.stderr
    assert not (tmp_path / "store").exists()
    (tmp_path / "b.jsonl").write_text('{"text": "alpha"}\n')
    assert invoke(*words, "--on-error", "skip").exit_code == 0
