"""`brimful head`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from tests import tokenizers as make
from tests.cli.commands import Corpus, invoke, refusal


def shown(*words: Any) -> str:
    result = invoke("head", *words)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    return result.stdout


@pytest.fixture
def store(corpus: Corpus, tmp_path: Path) -> Path:
    path = tmp_path / "store"
    assert invoke("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", path).exit_code == 0
    return path


def test_the_first_rows_of_files(tmp_path: Path) -> None:
    rows = [{"text": f"text {n} " + "long " * 1000, "list": [*range(n, 50)], "a": {"b": None}} for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = shown(tmp_path / "a.jsonl", "-n", 2)
    assert [line.split()[:5] for line in output.splitlines() if "text " in line and "str" in line] == [
        ["0", "text", "str", "text", "0"],
        ["1", "text", "str", "text", "1"],
    ]
    assert "[1, 2, 3, 4, 5, 6, ...] (49)" in output
    assert "{'b': None}" in output
    assert "--tokenizer T shows batches of the column 'text' too" in output


def test_a_row_cannot_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "\x1b[2Jred [bold]x"}) + "\n")
    assert "\\x1b[2Jred [bold]x" in shown(tmp_path / "a.jsonl")


def test_a_batch_and_the_plan_of_files(corpus: Corpus) -> None:
    output = shown(corpus.urls, "--tokenizer", corpus.tokenizer, "--max-tokens", 512, "-n", 3)
    texts = bf.from_files(corpus.urls, columns=["text"])
    batches = texts.tokenize(corpus.tokenizer).batch_by_tokens(512)
    first, plans = next(iter(batches)), list(batches.plans())[:3]
    lines = [line.split() for line in output.splitlines()]
    for number, (length, ids) in enumerate(zip(first["lengths"].tolist()[:3], first["input_ids"].tolist())):
        line = next(line for line in lines if line[:3] == [str(number), str(length), str(len(ids) - length)])
        assert line[3] == f"[{ids[0]},"
        assert {"alpha", "beta", "gamma", "delta", "epsilon"} & {*line}
    for number, plan in enumerate(plans):
        tokens, slots = int(plan.lengths.sum()), plan.padded_size * plan.padded_length
        shape = [str(number), str(len(plan.numbers)), str(plan.padded_length), str(slots), str(tokens)]
        assert [*shape, f"{1 - tokens / slots:.1%}"] in lines
    assert "samples are whole; --max-length cuts them" in output
    assert "7   tokens of a sample (--max-length)" in shown(
        corpus.urls, "--tokenizer", corpus.tokenizer, "--max-length", 7
    )


def test_a_store_has_batches_and_a_tokenizer_decodes_them(corpus: Corpus, store: Path, tmp_path: Path) -> None:
    output = shown(store, "-n", 1)
    assert "int32" in output
    assert "The plan of the first batches" in output
    assert "epsilon" not in output
    assert "epsilon" in shown(store, "--tokenizer", corpus.tokenizer)
    make.bpe().save(str(other := tmp_path / "other.json"))
    result = invoke("head", store, "--tokenizer", other)
    assert result.exit_code == 2
    assert "head: column 'input_ids' would hold the ids of two vocabularies. rows (the store " in result.stderr


def test_a_format_is_named_where_no_extension_says_it(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("one\ntwo\n")
    assert "Give --format= (jsonl, json, text, " in refusal("head", tmp_path / "a.dat")
    assert "two" in shown(tmp_path / "a.dat", "--format", "text")
    assert "--format must be one of auto, jsonl" in refusal("head", tmp_path / "a.dat", "--format", "doc")


def test_what_is_wrong_is_a_line(corpus: Corpus, store: Path, tmp_path: Path) -> None:
    assert refusal("head", "/nowhere") == "brimful: there is no file '/nowhere'"
    (tmp_path / "empty.jsonl").touch()
    assert "there are no rows in" in refusal("head", tmp_path / "empty.jsonl")
    assert "-n must be at least 1 row (got 0)" in refusal("head", corpus.urls, "-n", 0)
    assert "--max-length cuts texts as they are tokenized: name a --tokenizer" in refusal(
        "head", corpus.urls, "--max-length", 3
    )
    for path, names in ((store, "input_ids"), (corpus.urls, "text, other")):
        missing = f"brimful: there is no column 'foo' in {path} (columns: {names})"
        assert refusal("head", path, "--column", "foo") == missing
    assert "has tokens already: --column names texts as they are tokenized" in (
        refusal("head", store, "--column", "input_ids")
    )
    assert "is a token store and" in refusal("head", store, tmp_path / "empty.jsonl")
    (store / "manifest.json").rename(store / "journal.jsonl")
    assert (
        "is half-written: its writer is still at work, or was interrupted. To finish it, run the same to_store(path) or "
        "`brimful tokenize` again"
    ) in refusal("head", store)


def test_help_shows_an_example() -> None:
    assert "Example: brimful head " in invoke("head", "--help").stdout


def test_rows_without_the_column_of_text_are_not_said_to_have_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"title": "a"}\n')
    assert "--tokenizer T and --column C show batches of a column of text too" in invoke("head", str(path)).output


def test_a_record_that_cannot_be_read_may_be_left_out(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "alpha"}\n{"text": \n{"text": "beta"}\n')
    assert "a.jsonl, line 2" in refusal("head", tmp_path / "a.jsonl")
    output = shown(tmp_path / "a.jsonl", "--rows", 3, "--on-error", "skip", "--tokenizer", corpus.tokenizer)
    assert [line.split()[0] for line in output.splitlines() if "str" in line.split()[:3]] == ["0", "1"]
    assert "beta" in output
