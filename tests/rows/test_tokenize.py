from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests import tokenizers as make
from tests.samples import ids, shard
from tests.tokenizers import TEXTS


def letters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def test_tokens_are_added_as_int32_and_other_columns_kept() -> None:
    data = bf.from_sequence([{"id": 1, "text": "ab"}, {"id": 2, "text": ""}]).tokenize(letters)
    one, two = data
    assert (one["id"], one["text"], one["input_ids"].tolist()) == (1, "ab", [97, 98])
    assert two["input_ids"].tolist() == []
    assert one["input_ids"].dtype == np.int32


def test_columns_can_be_named_also_several_times() -> None:
    rows = [{"source": "a", "target": "bc"}]
    data = bf.from_sequence(rows).tokenize(letters, column="source").tokenize(letters, column="target", output="labels")
    assert (ids(data), ids(data, "labels")) == ([[97]], [[98, 99]])
    assert ids(bf.from_sequence(["a"]).tokenize(letters, output="text"), "text") == [[97]]


@pytest.mark.parametrize("max_workers", [0, 1, 4])
def test_workers_change_nothing(max_workers: int) -> None:
    rows = [{"text": text} for text in TEXTS] * 200
    plain = [encoding.ids for encoding in make.bpe().encode_batch([row["text"] for row in rows])]
    assert ids(bf.from_iterable(rows).tokenize(make.bpe(), max_workers=max_workers)) == plain


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_of_every_layout_is_tokenised(kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["ab", "c"], kind)})
    assert ids(bf.from_sequence(table).tokenize(letters)) == [[97, 98], [99]]
    assert ids(bf.from_sequence(table.slice(1)).tokenize(letters)) == [[99]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": "x"}], "there is no column 'text' (columns: a; shard a.jsonl, line 1)"),
        ([{"text": 5}], "tokenize: column 'text' must be text (got int64; shard a.jsonl, line 1)"),
        (
            [{"text": "x"}, {"a": 1}],
            "tokenize: column 'text' is null (shard a.jsonl, line 2); filter it out or fill it",
        ),
        ([{"text": None}], "tokenize: column 'text' is null (shard a.jsonl, line 1); filter it out or fill it"),
    ],
)
@pytest.mark.parametrize("max_workers", [0, 1])
def test_what_is_no_text_is_an_error_with_its_place(
    tmp_path: Path, rows: list[Any], message: str, max_workers: int
) -> None:
    with pytest.raises(bf.DataError) as error:
        list(shard(tmp_path, rows).tokenize(letters, max_workers=max_workers))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (lambda texts: [[1 // (text != "c")] for text in texts], "at shard a.jsonl, line 3: ZeroDivisionError: "),
        (lambda texts: [[1.5 if text == "b" else 1] for text in texts], "at shard a.jsonl, line 2: TypeError: the tokenizer"
         " must return integers (got float)"),
        (lambda texts: [[2**40] for _ in texts], "at shard a.jsonl, line 1: OverflowError: "),
        (lambda texts: [[1]], "near shard a.jsonl, line 1: ValueError: the tokenizer returned 1 results for 3 texts"),
        (lambda texts: len(texts), "at shard a.jsonl, line 1: TypeError: 'int' object is not iterable"),
    ],
)  # fmt: skip
def test_an_error_of_the_tokenizer_names_the_row_that_it_fails_on(tmp_path: Path, tokenizer: Any, message: str) -> None:
    data = shard(tmp_path, [{"text": letter} for letter in "abc"]).tokenize(tokenizer)
    with pytest.raises(bf.StageError) as error:
        list(data)
    assert str(error.value).startswith(f"tokenize failed {message}")


def test_empty_documents_and_what_was_filtered_out_are_no_trouble() -> None:
    data = bf.from_iterable([""] * 2_000)
    assert sum(map(len, ids(data.tokenize(make.bpe())))) == 0
    assert list(data.filter(lambda sample: False).tokenize(make.bpe())) == []


def test_resume_is_exact_at_every_sample() -> None:
    assert_exact_resume(lambda: bf.from_sequence(TEXTS).tokenize(make.bpe()).shuffle(3), epochs=(0,))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^max_workers must be at least 0 \(got -1\)$"):
        bf.from_sequence(["a"]).tokenize(letters, max_workers=-1)
