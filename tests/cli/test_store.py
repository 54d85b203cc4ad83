"""`brimful tokenize` and `brimful verify`."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import brimful as bf
from brimful.cli import store
from brimful.store.writer import write_store
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
    assert "--column or --keep was" in refusal(*words)
    other = refusal(*words, "--keep", "other", "--max-length", "7")
    assert "--tokenizer or --max-length was" in other

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
    assert "2   columns: id, tags; --keep stores one" in invoke(*words, "--dry-run").stdout
    assert "1   columns: tags; --keep stores one" in invoke(*words, "--keep", "id", "--output", tmp_path / "a").stdout
    assert "--keep stores" not in invoke(*words, "--keep", "id", "--keep", "tags", "--output", tmp_path / "b").stdout


def test_engine_is_what_tokenizes_and_executor_is_where(corpus: Corpus, tmp_path: Path) -> None:
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path / "store")
    for engine in ("tokenizer", "cache"):  # the store does not know which
        result = invoke(*words, "--engine", engine, "--executor", "local")
        assert result.exit_code == 0, result.output
    assert "engine must be one of auto, gigatoken, cache, tokenizer (got 'ray')" in refusal(*words, "--engine", "ray")
    assert "executor must be one of local, ray (got 'dask')" in refusal(*words, "--executor", "dask")
    assert "--ray-address 'auto' is for --executor 'ray' (got --executor 'local')" in refusal(
        *words, "--ray-address", "auto"
    )


def test_max_length(corpus: Corpus, tmp_path: Path) -> None:
    assert (
        invoke(
            "tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", tmp_path, "--max-length", 7
        ).exit_code
        == 0
    )
    assert bf.from_store(tmp_path).lengths().max() == 7


def test_a_dry_run_of_rows_that_are_all_read_is_exact_and_writes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--keep", "other")
    result = invoke(*words, "--output", tmp_path / "store", "--dry-run")
    assert result.exit_code == 0, result.output
    assert re.search(rf"rows +{corpus.samples} ", result.stdout)
    assert re.search(rf"tokens +{corpus.tokens:,} +{corpus.tokens / corpus.samples:.1f} a row", result.stdout)
    assert "estimated from 600 rows, all that there are; nothing was written" in result.stdout
    assert invoke(*words, "--dry-run").exit_code == 0  # without a folder
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.parquet", "a.arrow"])
def test_a_dry_run_estimates_from_the_first_rows(
    name: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(["alpha", "beta", "gamma"], k=draw.randint(1, 60))) for _ in range(30_000)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    for number in range(2):
        path = tmp_path / f"{number}{name}"
        if name == "a.parquet":
            pq.write_table(pa.table({"text": texts}), path)
        elif name == "a.arrow":
            with pa.ipc.new_file(path, pa.schema([("text", pa.string())])) as file:
                file.write_table(pa.table({"text": texts}), max_chunksize=1000)
        else:
            path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[name[7:]](lines))
    monkeypatch.setattr(store, "MOST_ROWS", 9_000)
    monkeypatch.setattr(store, "MOST_SECONDS", 600.0)  # whatever else the machine does
    files = bf.from_files(f"{tmp_path}/*{name}", columns=["text"])
    tokens = files.tokenize(corpus.tokenizer).select("input_ids")
    found = store.estimate_of(files, tokens.stage, lambda rows, status: None)
    assert not found.all_read
    assert 9_000 <= found.sampled < 20_000
    assert found.rows == pytest.approx(60_000, rel=0.1)
    assert found.tokens == pytest.approx(2 * sum(text.count(" ") + 1 for text in texts), rel=0.1)
    write_store(tokens.stage, tmp_path / "store")
    stored = sum(file.stat().st_size for file in (tmp_path / "store").glob("*.*"))
    assert found.bytes == pytest.approx(stored, rel=0.15)
    assert found.seconds > 0


def test_a_dry_run_of_nothing_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    words = ("tokenize", tmp_path / "empty.jsonl", "--tokenizer", corpus.tokenizer)
    assert "there are no rows in these files: nothing to estimate" in refusal(*words, "--dry-run")
    assert "name the folder of the store with --output, or say --dry-run for an estimate" in refusal(*words)


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
    assert "correct --column or --keep" in refusal(*words, "--keep", "prose")
    assert not store.exists()
    assert "name the folder of the store with --output" in refusal(*words[:-1], "")
    assert "use `brimful tokenize`" in refusal("verify", tmp_path / "none")
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
