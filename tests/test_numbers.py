"""Numbers that users give: any true integer counts, whatever its type; nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.encoding.encoders import encoder_for
from brimful.plan.errors import MOST, finite, integer, positive
from brimful.plan.overlong import split_long
from brimful.plan.schedule import check

LENGTHS = [3, 1, 2, 5, 4]
DATA = bf.from_sequence([{"input_ids": [*range(length)], "text": "a"} for length in LENGTHS])
STREAM = DATA.map(dict)
BATCHES = DATA.batch(2)

Call = Callable[[Any], Any]

COUNTS: dict[str, tuple[str, int, Call]] = {  # what is called; by what name the number is known; one that is taken
    "take": ("n", 2, DATA.take),
    "take of a stream": ("n", 2, STREAM.take),
    "skip": ("n", 2, DATA.skip),
    "peek": ("n", 2, DATA.peek),
    "stride": ("interval", 2, lambda n: DATA.stride(n, 0)),
    "shuffle": ("buffer_size", 2, DATA.shuffle),
    "shuffle of a stream": ("buffer_size", 2, STREAM.shuffle),
    "chunk": ("chunk_length", 2, DATA.chunk),
    "concat_chunk": ("chunk_length", 2, DATA.concat_chunk),
    "pack_chunk": ("chunk_length", 2, DATA.pack_chunk),
    "pad": ("length", 9, lambda n: DATA.pad(n, {"input_ids": 0})),
    "tokenize": ("max_workers", 2, lambda n: DATA.tokenize(letters, max_workers=n)),
    "tokenize to a length": (
        "max_length",
        2,
        lambda n: encoder_for(word_tokenizer(), {"max_length": n}),
    ),
    "add_bos_eos, bos": ("bos_token_id", 2, lambda n: DATA.add_bos_eos(n, None)),
    "add_bos_eos, eos": ("eos_token_id", 2, lambda n: DATA.add_bos_eos(None, n)),
    "batch": ("n", 2, DATA.batch),
    "window of batch": ("window", 3, lambda n: DATA.batch(2, window=n)),
    "group": ("balance_group", 2, lambda n: DATA.batch(2, balance_group=n)),
    "batch_by_tokens": ("max_tokens", 8, DATA.batch_by_tokens),
    "pad_to_multiple_of": ("pad_to_multiple_of", 2, lambda n: DATA.batch_by_tokens(8, pad_to_multiple_of=n)),
    "buckets of batch_by_tokens": ("buckets", 6, lambda n: DATA.batch_by_tokens(8, buckets=[n])),
    "window of batch_by_tokens": ("window", 3, lambda n: DATA.batch_by_tokens(8, window=n)),
    "batch_by": ("batch_size", 2, lambda n: DATA.batch_by(n, length)),
    "window of batch_by": ("window", 3, lambda n: DATA.batch_by(2, length, window=n)),
    "pack": ("row_length", 8, DATA.pack),
    "rows of pack": ("rows", 2, lambda n: DATA.pack(8, rows=n)),
    "window of pack": ("window", 3, lambda n: DATA.pack(8, window=n)),
    "take of batches": ("n", 2, BATCHES.take),
    "prefetch": ("n", 2, BATCHES.prefetch),
    "epoch": ("epoch", 2, lambda n: BATCHES.iter(epoch=n)),
    "epoch of plans": ("epoch", 2, lambda n: list(BATCHES.plans(n))),
    "set_epoch": ("epoch", 2, lambda n: BATCHES.loader().set_epoch(n)),
    "rank": ("rank", 2, lambda n: BATCHES.shard(n, 4)),
    "world_size": ("world_size", 2, lambda n: BATCHES.shard(0, n)),
    "streams": ("streams", 1, lambda n: bf.from_files("none.jsonl", streams=n)),
    "n_active_shards": ("n_active_shards", 2, lambda n: bf.from_files("none.jsonl", n_active_shards=n)),
    "n_standby_shards": ("n_standby_shards", 2, lambda n: bf.from_files("none.jsonl", n_standby_shards=n)),
    "FixedSize": ("n", 2, bf.FixedSize),
    "TokenBudget": ("max_tokens", 8, bf.TokenBudget),
    "buckets of TokenBudget": ("buckets", 6, lambda n: bf.TokenBudget(8, buckets=[n])),
    "StaticShapes": ("max_tokens", 8, lambda n: bf.StaticShapes([6], n)),
    "buckets of StaticShapes": ("buckets", 6, lambda n: bf.StaticShapes([n], 8)),
    "Packed": ("row_length", 8, bf.Packed),
    "split_long": ("max_length", 2, lambda n: split_long(LENGTHS, n)),
    "optimal_buckets": ("num_buckets", 2, lambda n: bf.optimal_buckets(LENGTHS, n)),
    "multiple_of": ("multiple_of", 2, lambda n: bf.optimal_buckets(LENGTHS, 2, multiple_of=n)),
    "max_length": ("max_length", 6, lambda n: bf.optimal_buckets(LENGTHS, 2, max_length=n)),
    "uniform_buckets": ("max_length", 9, lambda n: bf.uniform_buckets(n, 2)),
    "number of uniform_buckets": ("num_buckets", 2, lambda n: bf.uniform_buckets(9, n)),
    "window of BatchSampler": ("window", 3, lambda n: bf.BatchSampler(LENGTHS, bf.FixedSize(2), window=n)),
    "world_size of BatchSampler": ("world_size", 2, lambda n: bf.BatchSampler(LENGTHS, bf.FixedSize(2), world_size=n)),
    "group of BatchSampler": ("balance_group", 2, lambda n: bf.BatchSampler(LENGTHS, bf.FixedSize(2), balance_group=n)),
    "epoch of BatchSampler": ("epoch", 2, lambda n: bf.BatchSampler(LENGTHS, bf.FixedSize(2)).set_epoch(n)),
}
SEEDS: dict[str, Call] = {
    "map": lambda seed: DATA.map(drawn, seed=seed),
    "filter": lambda seed: STREAM.filter(drawn, seed=seed),
    "shuffle": lambda seed: DATA.shuffle(3, seed=seed),
    "shuffle of a stream": lambda seed: STREAM.shuffle(3, seed=seed),
    "from_sequence": lambda seed: bf.from_sequence(["a", "b"], shuffle=True, seed=seed),
    "from_files": lambda seed: bf.from_files("none.jsonl", seed=seed),
    "batch": lambda seed: DATA.batch_by_tokens(8, seed=seed),
    "pack": lambda seed: DATA.pack(8, seed=seed),
    "BatchSampler": lambda seed: bf.BatchSampler(LENGTHS, bf.FixedSize(2), seed=seed),
}
SWITCHES: dict[str, tuple[str, Call]] = {
    "batch": ("drop_last", lambda on: DATA.batch(2, drop_last=on)),
    "pack": ("drop_last", lambda on: DATA.pack(8, drop_last=on)),
    "keep_text": ("keep_text", lambda on: DATA.batch(2, keep_text=on)),
    "causal_labels": ("shift", lambda on: DATA.causal_labels(shift=on)),
    "chunk": ("drop_remainder", lambda on: DATA.chunk(2, drop_remainder=on)),
    "pack_chunk": ("discard_long_samples", lambda on: DATA.pack_chunk(2, discard_long_samples=on)),
    "tokenize": ("add_special_tokens", lambda on: DATA.tokenize(word_tokenizer(), add_special_tokens=on)),
    "pad_on_device": ("pad_on_device", lambda on: BATCHES.to_device("cpu", pad_on_device=on)),
    "to_device": ("static_buffers", lambda on: BATCHES.to_device("cpu", static_buffers=on)),
    "AsyncLoader": ("static_buffers", lambda on: bf.AsyncLoader(BATCHES.loader(), "cpu", static_buffers=on)),
    "from_sequence": ("shuffle", lambda on: bf.from_sequence(["a"], shuffle=on)),
    "from_dataset": ("shuffle", lambda on: bf.from_dataset(["a"], shuffle=on)),
    "from_files": ("shuffle_shards", lambda on: bf.from_files("none.jsonl", shuffle_shards=on)),
    "repeat": ("repeat", lambda on: bf.from_sequence(["a"], repeat=on)),
    "BatchSampler": ("shuffle", lambda on: bf.BatchSampler(LENGTHS, bf.FixedSize(2), shuffle=on)),
    "drop_last of BatchSampler": ("drop_last", lambda on: bf.BatchSampler(LENGTHS, bf.FixedSize(2), drop_last=on)),
    "padded": ("padded", lambda on: bf.balance(LENGTHS, 1, padded=on)),
    "equal_count": ("equal_count", lambda on: bf.balance(LENGTHS, 1, equal_count=on)),
    "same_count": ("same_count", lambda on: bf.micro_batches(LENGTHS, 8, same_count=on)),
}
SECONDS: dict[str, Call] = {
    "from_files": lambda seconds: bf.from_files("none.jsonl", timeout_seconds=seconds),
    "from_store": lambda seconds: bf.from_store("none", timeout_seconds=seconds),
    "to_store": lambda seconds: DATA.to_store("none", timeout_seconds=seconds),
    "shard": lambda seconds: BATCHES.shard(0, 1, timeout_seconds=seconds),
}


def letters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def length(sample: Any) -> int:
    return len(sample["input_ids"])


def drawn(sample: Any, rng: np.random.Generator) -> Any:
    return sample


def word_tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))


@pytest.mark.parametrize(("name", "fits", "call"), COUNTS.values(), ids=COUNTS)
def test_an_integer_of_any_type_counts_and_nothing_else_does(name: str, fits: int, call: Call) -> None:
    for kind in (np.int8, np.int16, np.uint8, np.int64, torch.tensor):
        call(kind(fits))
    for wrong in (2.5, float("nan"), *["2"] * (name != "window"), True, np.True_, np.float32(2), [2]):
        with pytest.raises(
            TypeError, match=rf"^({name} must be an integer|batch takes a number of samples or a policy) \(got "
        ):
            call(wrong)
    for much in (-(2**70), -1):
        with pytest.raises(ValueError, match=rf"^{name} must be at least .* \(got {much:,}\)$"):
            call(much)
    for much in (MOST + 1, 2**63, 10**30):
        with pytest.raises(ValueError, match=rf"^{name} must be at most [\d,]+ \(got {much:,}\)$"):
            call(much)


@pytest.mark.timeout(60)
def test_integers_of_few_bits_do_not_wrap_around() -> None:
    lengths = [3] * 30_000
    for few in (np.int16(16_384), torch.tensor(16_384, dtype=torch.int16)):
        plan = bf.TokenBudget(few).plan(lengths)
        assert (len(plan), type(bf.TokenBudget(few).max_tokens)) == (6, int)
    assert bf.uniform_buckets(np.int8(100), np.int8(127))[-1] == 100
    assert [len(batch["lengths"]) for batch in DATA.batch(np.int64(2))] == [2, 2, 1]  # type: ignore[arg-type]
    assert len(list(STREAM.shuffle(np.int8(100)).take(np.uint8(3)))) == 3


def test_the_greatest_count_is_as_good_as_none() -> None:
    assert len(list(DATA.take(MOST))) == len(list(STREAM.take(MOST))) == 5
    assert len(list(DATA.skip(MOST))) == len(list(STREAM.skip(MOST))) == 0
    assert len(list(DATA.shuffle(MOST))) == len(list(STREAM.shuffle(MOST))) == 5
    assert [len(batch["lengths"]) for batch in DATA.batch(MOST)] == [5]
    assert len(list(DATA.stride(MOST, 0))) == len(list(STREAM.stride(MOST, 0))) == 1
    assert bf.uniform_buckets(3, MOST) == [1, 2, 3]


@pytest.mark.parametrize(("name", "call"), SWITCHES.values(), ids=SWITCHES)
def test_a_switch_is_true_or_false_and_nothing_else(name: str, call: Call) -> None:
    for on in (True, False):
        call(on)
    for wrong in (3, "yes", None, 1):
        with pytest.raises(TypeError, match=rf"^{name} must be True or False \(got {wrong!r}\)"):
            call(wrong)


@pytest.mark.parametrize("call", SEEDS.values(), ids=SEEDS)
def test_any_integer_is_a_seed(call: Call) -> None:
    for seed in (0, -1, 2**64 + 1, np.int8(-3), np.uint64(2**64 - 1)):
        call(seed)
    for wrong in (0.5, "0", False, [1]):
        with pytest.raises(TypeError, match=r"^seed must be an integer \(got "):
            call(wrong)


def test_a_seed_of_numpy_is_the_same_as_one_of_python() -> None:
    one, other = (bf.from_sequence([*"abcdefgh"], shuffle=True, seed=seed) for seed in (7, np.int8(7)))  # type: ignore[arg-type]
    assert list(one) == list(other)
    assert list(other.iter(one.iter().state_dict())) == list(one)


@pytest.mark.parametrize("call", SECONDS.values(), ids=SECONDS)
def test_a_timeout_is_a_number_above_0(call: Call, tmp_path: Path) -> None:
    for wrong in (0, -1, 0.0):
        with pytest.raises(ValueError, match=rf"^timeout_seconds must be positive \(got {wrong}\)$"):
            call(wrong)
    for wrong in (float("nan"), float("inf"), np.float32("-inf")):
        with pytest.raises(ValueError, match=rf"^timeout_seconds must be finite \(got {wrong}\)$"):
            call(wrong)
    with pytest.raises(ValueError, match=r"^timeout_seconds must be finite \(got 10+\)$"):
        call(10**400)
    for wrong in (10**12, 1e12):
        with pytest.raises(ValueError, match=r"^timeout_seconds must be at most [\d,]+ \(got 1,000,000,000,000\)$"):
            call(wrong)
    for none in ("5", True, [1.0]):
        with pytest.raises(TypeError, match=r"^timeout_seconds must be a number \(got "):
            call(none)


def test_weights_and_costs_are_finite() -> None:
    for wrong, kind in (("1", TypeError), (True, TypeError), (float("nan"), ValueError), (float("inf"), ValueError)):
        with pytest.raises(kind, match=r"^weights must be (a number|finite) \(got "):
            bf.interleave_datasets([DATA, DATA], weights=[1, wrong])  # type: ignore[list-item]
        with pytest.raises(kind, match=r"^limit must be (a number|finite) \(got "):
            bf.CostBudget(lambda batch, length: batch * length, wrong)  # type: ignore[arg-type]
        with pytest.raises(kind, match=r"^quadratic must be (a number|finite) \(got "):
            bf.AttentionCost(quadratic=wrong)  # type: ignore[arg-type]
    check(2, [np.float32(0.5), 3], "all")


def test_numbers_come_back_as_pythons() -> None:
    assert type(integer("n", np.uint8(3))) is int
    assert type(finite("x", np.float32(0.5))) is float
    assert positive("x", 3) == 3
