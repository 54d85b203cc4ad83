"""What real text comes to: WikiText-2 under bert-base-cased, cut at 512 tokens, 16,384 tokens a batch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

import brimful as bf

DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SHARDS = str(DATA / "wikitext-2" / "*.jsonl.gz")
TOKENS = 2_492_599

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no corpus at {DATA}; set BRIMFUL_TEST_DATA")


def tokenized(n_active_shards: int = 10) -> bf.Dataset:
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizers" / "bert-base-cased.json"))
    settings = {"truncation": True, "max_length": 512}
    return bf.from_files(SHARDS, n_active_shards=n_active_shards).tokenize(tokenizer, tokenizer_kwargs=settings)


@pytest.fixture(scope="module")
def cached() -> bf.Dataset:
    return tokenized().cache()


def padding(batches: bf.Batches) -> float:
    """The share of padded slots; every token must be there."""
    with batches.iter() as it:
        for batch in it:
            assert batch["input_ids"].numel() <= 16_384 or len(batch["input_ids"]) == 32
        assert it.stats.tokens == TOKENS
        assert it.stats.samples == 23_731
        return float(it.stats.padding)


def test_the_tokens_are_those_of_the_tokenizer_alone() -> None:
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizers" / "bert-base-cased.json"))
    tokenizer.enable_truncation(512)
    texts = [sample["text"] for sample in bf.from_files(SHARDS, n_active_shards=1)]
    assert sum(map(len, tokenizer.encode_batch_fast(texts))) == TOKENS


def test_a_stream_of_text_in_a_window_that_is_chosen_for_it() -> None:
    assert padding(tokenized().batch_by_tokens(16_384)) <= 0.036, "two short windows before the one of 1 %"


def test_a_window_of_10_000(cached: bf.Dataset) -> None:
    assert padding(cached.batch_by_tokens(16_384, window=10_000)) <= 0.0315


def test_batches_of_32_from_a_window_of_320_with_the_files_in_turn() -> None:
    assert padding(tokenized(n_active_shards=1).batch(32, window=320)) <= 0.209


def test_random_batches_of_32_are_mostly_padding(cached: bf.Dataset) -> None:
    assert 0.69 <= padding(cached.shuffle(30_000).batch(32)) <= 0.70


def test_packed_into_rows_of_512(cached: bf.Dataset) -> None:
    assert padding(cached.pack(512, rows=8)) <= 0.005


def test_least_padding_over_the_whole_corpus(cached: bf.Dataset) -> None:
    policy = bf.TokenBudget(16_384, planner="least_padding", step_cost=0.05)
    assert padding(cached.batch(policy)) <= 0.009


def test_the_corpus_49_times_over_in_a_window_that_is_chosen_for_it(cached: bf.Dataset) -> None:
    lengths = np.tile(cached.lengths(), 49)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], dtype=np.int8)))
    slots = samples = 0
    for batch in bf.from_sequence(pa.table({"input_ids": ids})).batch_by_tokens(16_384).plans():
        slots += len(batch) * batch.padded_length
        samples += len(batch)
    assert samples == 49 * 23_731
    assert 1 - 49 * TOKENS / slots <= 0.01
