"""The worked examples of the public interface, to the letter."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf


def tokens(*rows: list[int]) -> bf.Dataset:
    return bf.from_sequence([{"input_ids": row} for row in rows])


def ids(dataset: bf.Dataset) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset]


def words(text: str, **options: Any) -> bf.Dataset:
    return bf.from_sequence([{"word": word} for word in text], **options)


def spelled(dataset: bf.Dataset) -> str:
    return "".join(sample["word"] for sample in dataset)


def test_interleave_serves_weights_in_stratified_order() -> None:
    h, k = words("H", repeat=True), words("K", repeat=True)
    assert spelled(bf.interleave_datasets([h, k], weights=[1.5, 1]).take(10)) == "HKHKHHKHKH"
    zero, one = words("0", repeat=True), words("1", repeat=True)
    assert spelled(bf.interleave_datasets([zero, one], weights=[1, 2]).take(9)) == "101101101"


def test_interleave_goes_on_without_or_with_what_has_ended() -> None:
    sources = [words("ABCDE"), words("xy")]
    assert spelled(bf.interleave_datasets(sources, stop="first")) == "AxByC"
    assert spelled(bf.interleave_datasets(sources, stop="all")) == "AxByCDE"
    assert spelled(bf.interleave_datasets(sources, stop="all_repeat")) == "AxByCxDyEx"


def test_chunk() -> None:
    data = tokens([*range(10)], [10, 11, 12], [*range(20, 27)])
    assert ids(data.chunk(6)) == [[0, 1, 2, 3, 4, 5], [20, 21, 22, 23, 24, 25]]
    assert ids(data.chunk(6, drop_remainder=False)) == [
        [0, 1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12], [20, 21, 22, 23, 24, 25], [26]
    ]  # fmt: skip


def test_concat_chunk_counts_the_tail_as_dropped() -> None:
    data = tokens([*range(10)], [10, 11, 12], [*range(20, 27)]).concat_chunk(6)
    with data.iter() as it:
        chunks = [sample["input_ids"].tolist() for sample in it]
        assert it.stats["dropped_tokens"] == 2
    assert chunks == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 20, 21, 22, 23, 24]]


def test_pack_chunk() -> None:
    data = tokens([0, 1], [3], [*range(4, 12)], [0, 1, 2], [0, 1, 3], [5], [1], [2], [3], [4])
    packed = [[0, 1, 3], [4, 5, 6, 7], [0, 1, 2], [0, 1, 3, 5], [1, 2, 3, 4]]
    assert ids(data.pack_chunk(4)) == packed
    assert ids(data.pack_chunk(4, discard_long_samples=True)) == [packed[0], *packed[2:]]
    assert ids(tokens([*range(6)], [9]).pack_chunk(4)) == [[0, 1, 2, 3], [9]]


def test_a_token_budget_cuts_longest_first_and_stable() -> None:
    data = tokens(*([number] * length for number, length in enumerate([50, 30, 20, 20, 30, 20])))
    batches = data.batch_by_tokens(60, shuffle_batches=False)
    assert [batch["input_ids"][:, 0].tolist() for batch in batches] == [[0], [1, 4], [2, 3, 5]]
    plan = bf.TokenBudget(60).plan([50, 30, 20, 20, 30, 20])
    assert [numbers.tolist() for numbers in plan.batches] == [[0], [1, 4], [2, 3, 5]]
    assert (plan.padded_lengths.tolist(), plan.padding, plan.num_shapes) == ([50, 30, 20], 0.0, 3)


def test_groups_inside_a_batch() -> None:
    samples = [torch.ones(length) for length in (1, 4, 2, 9)]
    grouped = bf.grouping.Collection(samples, "seq").group(bf.grouping.LengthThresholds("seq", [4]))
    assert grouped.partition == ((0, 1, 2), (3,))
    total = grouped.apply(lambda x, mask: (x * mask).sum(1), masks={"mask": "seq"}, outputs="")
    assert [one.item() for one in total.ungroup()] == [1, 4, 2, 9]
    assert bf.grouping.find_thresholds([1] * 771 + [4] * 193 + [16] * 48 + [64] * 12, 4) == [1, 4, 16]


def test_uniform_buckets_end_at_the_longest() -> None:
    assert bf.uniform_buckets(1024, 4) == [256, 512, 768, 1024]
    assert bf.uniform_buckets(1000, 7)[-1] == 1000


def test_a_batch_is_a_dict_of_int64_tensors() -> None:
    rows = [
        {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "id": 4, "name": "a"},
        {"input_ids": [5], "labels": [5], "id": 6, "name": "b"},
    ]
    (batch,) = bf.from_sequence(rows).batch(2)
    expected = {
        "input_ids": [[1, 2, 3], [5, 0, 0]],
        "labels": [[1, 2, 3], [5, -100, -100]],
        "id": [4, 6],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "lengths": [3, 1],
    }
    assert batch.pop("name") == ["a", "b"]
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_packed_batch() -> None:
    (batch,) = tokens([1, 2, 3], [4, 5], [6]).pack(4, rows=2, shuffle_batches=False)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 6], [4, 5, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100], [-100, 5, -100, -100]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    assert (batch["cu_seqlens"].tolist(), batch["cu_seqlens"].dtype) == ([0, 3, 4, 6, 8], torch.int32)
    assert isinstance(batch["max_seqlen"], int)
    (named,) = tokens([1, 2, 3]).pack(4)
    assert {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"} <= named.keys()


def test_samples_are_dicts_whose_tokens_are_numpy_arrays_that_may_be_changed() -> None:
    def doubled(sample: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(sample["input_ids"], np.ndarray)
        sample["input_ids"] *= 2
        return sample

    data = tokens([1, 2], [3])
    assert ids(data.map(doubled)) == [[2, 4], [6]]
    assert ids(data) == [[1, 2], [3]]


def test_take_skip_stride_and_enumerate() -> None:
    assert spelled(words("abcdef").take(4)) == "abcd"
    assert spelled(words("abcdef").skip(4)) == "ef"
    assert spelled(words("abcdef").stride(3, 1)) == "be"
    assert [sample["step"] for sample in words("abc").enumerate()] == [0, 1, 2]
    assert spelled(words("abc", repeat=True).take(7)) == "abcabca"
    assert spelled(words("ab") + words("cd")) == "abcd"


def test_map_filter_filter_map_and_flat_map() -> None:
    assert spelled(words("abc").map(lambda sample: {"word": sample["word"].upper()})) == "ABC"
    assert spelled(words("abc").filter(lambda sample: sample["word"] != "b")) == "ac"
    assert spelled(words("abc").filter_map(lambda sample: sample if sample["word"] > "a" else None)) == "bc"
    assert spelled(words("abc").flat_map(lambda sample: [sample] * 2)) == "aabbcc"


def test_functions_with_a_seed_get_a_generator_keyed_by_the_row() -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return sample | {"draw": int(rng.integers(10**9))}

    def draws(dataset: bf.Dataset) -> list[int]:
        return [sample["draw"] for sample in dataset.map(drawn, seed=3)]

    assert len(set(draws(words("abcdef")))) == 6
    assert draws(words("abcdef")) == draws(words("abcdef")), "the same in every run"
    repeated = words("abc", repeat=True).map(drawn, seed=3).take(6)
    assert len({sample["draw"] for sample in repeated}) == 6, "another one each epoch"


def test_tokenize_takes_any_callable_and_keeps_other_columns() -> None:
    data = bf.from_sequence([{"text": "a bc", "id": 1}]).tokenize(
        lambda texts: [[len(word) for word in text.split()] for text in texts]
    )
    (sample,) = data
    assert (sample["text"], sample["id"], sample["input_ids"].tolist()) == ("a bc", 1, [1, 2])


def test_batch_by_sorts_by_a_key_and_never_spans_a_boundary() -> None:
    data = bf.from_sequence([{"word": word} for word in ("aa", "b", "cccc", "ddd", "e")])
    batches = data.batch_by(2, lambda sample: len(sample["word"]), shuffle_batches=False)
    assert [batch["word"] for batch in batches] == [["cccc", "ddd"], ["aa", "b"], ["e"]]
    sized = data.batch_by(
        lambda sample: 6 // len(sample["word"]), lambda sample: len(sample["word"]), shuffle_batches=False
    )
    assert [batch["word"] for batch in sized] == [["cccc"], ["ddd", "aa"], ["b", "e"]]
    bounded = data.batch_by(
        9,
        lambda sample: len(sample["word"]),
        boundary_key=lambda sample: len(sample["word"]) > 1,
        shuffle_batches=False,
    )
    assert [batch["word"] for batch in bounded] == [["cccc", "ddd", "aa"], ["b", "e"]]


def test_cache_reads_once_and_keeps_the_order() -> None:
    reads = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        reads.append(sample["word"])
        return sample

    cached = words("abc").map(noted).cache()
    assert [spelled(cached), spelled(cached)] == ["abc", "abc"]
    assert reads == ["a", "b", "c"]
    assert cached.kind == "indexed"


def test_the_kind_of_a_data_set_names_the_stage_that_made_it_streamed() -> None:
    assert words("a").kind == "indexed"
    assert words("a").map(lambda sample: sample).kind == "streamed (by map)"
    assert bf.from_iterable(["a"]).kind == "streamed (by from_iterable)"
    assert (len(words("abc")), len(words("abc").batch(2))) == (3, 2)
    with pytest.raises(TypeError, match=r"the length of this data set is not known: it is streamed \(by map\)"):
        len(words("a").map(lambda sample: sample))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tokens([1]).batch_by_tokens(0), r"max_tokens must be at least 1 token \(got 0\)"),
        (lambda: tokens([1]).batch(0), r"n must be at least 1 sample \(got 0\)"),
        (lambda: tokens([1]).batch(2, window=0), r"window must be at least 1 row \(got 0\)"),
        (lambda: tokens([1]).batch(2, window="wide"), r"window must be a number of rows, 'auto' or 'steps' \(got 'wide'\)"),
        (lambda: tokens([1]).batch(2, overlong="ignore"), r"overlong must be one of raise, .* \(got 'ignore'\)"),
        (lambda: tokens([1]).batch(2, pad_side="top"), r"pad_side must be one of right, left \(got 'top'\)"),
        (lambda: tokens([1]).chunk(0), r"chunk_length must be at least 1 token \(got 0\)"),
        (lambda: tokens([1]).stride(2, 2), r"offset must be at least 0 and below interval=2 \(got 2\)"),
        (lambda: tokens([1]).take(-1), r"n must be at least 0 samples \(got -1\)"),
        (lambda: bf.from_files([]), r"urls must name at least one file \(got none\)"),
        (lambda: bf.from_files("a.jsonl", n_active_shards=0), r"n_active_shards must be at least 1 shard \(got 0\)"),
        (lambda: bf.interleave_datasets([]), "interleave_datasets needs at least one data set"),
        (
            lambda: bf.interleave_datasets([words("a")], weights=[0]),
            r"weights must be 0 or more, and one of them positive \(got 0\)",
        ),
        (lambda: words("a", repeat=True) + words("b"), "data set 0 repeats without end"),
    ],
)  # fmt: skip
def test_settings_are_checked_when_they_are_made(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_everything_that_is_not_required_is_keyword_only() -> None:
    for owner in (bf.Dataset, bf.from_files, bf.from_sequence, bf.from_iterable, bf.interleave_datasets):
        functions = (
            [owner] if inspect.isfunction(owner) else [fn for name, fn in inspect.getmembers(owner, inspect.isfunction)]
        )
        for function in functions:
            if function.__name__.startswith("_") or function.__name__ == "iter":
                continue
            loose = [
                parameter.name
                for parameter in inspect.signature(function).parameters.values()
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty
            ]
            assert not loose or (function.__name__, loose) in (
                ("cache", ["path"]),
                ("lengths", ["column"]),
                ("peek", ["n"]),
            )


def test_an_overlong_sample_is_named_by_file_and_line(tmp_path: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1]}\n{"input_ids": [1, 2, 3]}\n')
    data = bf.from_files(str(tmp_path / "a.jsonl"))
    message = (
        r"^a sample of 3 tokens \(shard a.jsonl, line 2\) cannot fit max_tokens=2; "
        "truncate or filter it, or raise the budget; or set overlong='truncate' or 'drop' for such samples$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(data.batch_by_tokens(2))
    for word, samples in {"truncate": 2, "drop": 1, "alone": 2}.items():
        with data.batch_by_tokens(2, overlong=word).iter() as it:  # type: ignore[arg-type]
            list(it)
            name = {"truncate": "truncated", "drop": "dropped", "alone": "alone"}[word]
            assert (it.stats.samples, it.stats[name]) == (samples, 1)


def test_all_that_is_named_is_there() -> None:
    for name in bf.__all__:
        assert getattr(bf, name) is not None
    assert set(bf.__all__) <= set(dir(bf))
    assert bf.attention.__name__ == "brimful.tensors.attention"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda data: data.batch(2, shuffle=True),
            r"batch\(\) got an unexpected keyword argument 'shuffle'",
        ),
        (
            lambda data: data.batch_by_tokens(9, colate_fn=list),
            r"batch_by_tokens\(\) got an unexpected keyword argument 'colate_fn'",
        ),
        (lambda data: data.batch_by(2, len, key=1), r"multiple values|unexpected keyword"),
        (lambda data: data.pack(9, layout="nested"), r"pack\(\) got an unexpected keyword argument 'layout'"),
    ],
)
def test_an_unknown_option_is_named_by_the_method(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(bf.from_sequence([{"input_ids": [1]}]))


def test_integers_of_a_store_are_wide_enough_for_a_users_arithmetic(tmp_path: Path) -> None:
    """They are uint16 on disk: 3 - 200 was 65,339, and -100 did not fit."""
    vocabulary = {"a": 0, "b": 300}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    bf.from_sequence(["a b"]).tokenize(tokenizer).to_store(tmp_path / "store")

    def labelled(sample: dict[str, Any]) -> dict[str, Any]:
        labels = sample["input_ids"] - 200
        labels[:1] = -100
        return {**sample, "labels": labels}

    assert next(iter(bf.from_store(tmp_path / "store").map(labelled)))["labels"].tolist() == [-100, 100]


@pytest.mark.parametrize("way", ["batch", "pack", "tokens"])
def test_what_drop_last_leaves_out_is_counted(way: str) -> None:
    data = bf.from_sequence([{"input_ids": [1] * (1 + n % 5)} for n in range(23)])
    batches = {
        "batch": data.batch(4, window=10, drop_last=True),
        "pack": data.pack(7, rows=3, window=10, drop_last=True),
        "tokens": data.batch_by_tokens(12, window=10, drop_last=True),
    }[way]
    with batches.iter() as it:
        taken = sum(len(batch["lengths"]) for batch in it)
        assert taken + it.stats.dropped == 23
        assert it.stats.dropped > 0
        assert it.stats.tokens + it.stats.dropped_tokens == sum(1 + n % 5 for n in range(23))


@pytest.mark.parametrize("where", ["indexed", "stream"])
@pytest.mark.parametrize(
    ("way", "overlong"),
    [(way, word) for way in ("batch", "tokens", "static") for word in ("truncate", "drop")]
    + [("tokens", "alone"), *(("pack", word) for word in ("truncate", "drop", "split"))],
)
def test_the_tokens_that_are_cut_or_dropped_are_counted(way: str, overlong: Any, where: str) -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in (9, 3, 5, 12, 4, 1, 5)])
    data = data if where == "indexed" else data.map(dict)
    batches = {
        "batch": lambda: data.batch(2, window=7, buckets=[5], overlong=overlong),
        "tokens": lambda: data.batch_by_tokens(5, window=4, overlong=overlong),
        "static": lambda: data.batch(bf.StaticShapes([5], 10), window=4, overlong=overlong),
        "pack": lambda: data.pack(5, window=4, overlong=overlong),
    }[way]()
    with batches.iter() as it:
        list(it)
        found = (it.stats.truncated, it.stats.dropped, it.stats.alone, it.stats.dropped_tokens)
        assert it.stats.tokens + it.stats.dropped_tokens == 39
    words = {"truncate": (2, 0, 0, 4 + 7), "drop": (0, 2, 0, 9 + 12), "alone": (0, 0, 2, 0), "split": (0, 0, 0, 0)}
    assert found == words[overlong]


def test_samples_that_are_cut_in_arrival_order_are_counted_with_their_batch(tmp_path: Path) -> None:
    lengths = [12 if number % 3 else 2 for number in range(50)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"input_ids": [1] * length}) for length in lengths))
    for drop_last in (False, True):
        settings: dict[str, Any] = {"buckets": [3, 8], "overlong": "truncate", "drop_last": drop_last}
        batches = bf.from_files(tmp_path / "rows.jsonl").batch(4, **settings)
        with batches.iter() as it:
            seen = [(it.stats.truncated, it.stats.dropped_tokens, it.state_dict()) for _ in it]
            whole = it.stats.truncated, it.stats.dropped_tokens
        for done, (truncated, tokens, _) in enumerate(seen[:-1], start=1):
            assert truncated == sum(length > 8 for length in lengths[: 4 * done])
            assert tokens == 4 * truncated
        for truncated, tokens, state in seen:
            with batches.iter(state) as rest:
                list(rest)
                assert (truncated + rest.stats.truncated, tokens + rest.stats.dropped_tokens) == whole


def test_what_follows_memory_is_called_as_it_is_said() -> None:
    def optional(function: Any) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}

    def required(function: Any) -> list[str]:
        parameters = inspect.signature(function).parameters.values()
        return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]

    assert required(bf.memory.oom_guard) == ["step"]
    assert optional(bf.memory.oom_guard)["parameters"] is None
    assert required(bf.map_batches_in_order) == ["fn", "texts_or_dataset", "policy"]
    assert {"output": None, "window": "auto"}.items() <= optional(bf.map_batches_in_order).items()
    texts = ["one", "three", "two"]
    shouted = bf.map_batches_in_order(lambda batch: [text + "!" for text in batch["text"]], texts, bf.TokenBudget(6))
    assert list(shouted) == ["one!", "three!", "two!"]


def test_what_other_libraries_take_between_brackets_is_refused_with_the_method_for_it(tmp_path: Path) -> None:
    indexed = bf.from_sequence(["a", "b", "c"])
    for data in (indexed, indexed.stream()):
        with pytest.raises(
            TypeError,
            match=r"^a data set takes the number of a sample \(got 'text'\). For a column, use \.select\('text'\)",
        ):
            data["text"]
        with pytest.raises(TypeError, match=r"^a data set takes the number of a sample, or a slice \(got \[1, 2\]\)"):
            data[[1, 2]]


def test_a_method_of_samples_that_is_called_on_batches_says_where_it_belongs() -> None:
    batches = bf.from_sequence(["a"]).batch(1)
    with pytest.raises(
        AttributeError, match=r"^batches have no 'pack', which is for samples: call \.pack\(\.\.\.\) before they are"
    ):
        _ = batches.pack
    with pytest.raises(AttributeError, match=r"^'Batches' object has no attribute 'tokenise'$"):
        _ = batches.tokenise
    methods = {name for name in vars(bf.Dataset) if not name.startswith("_")} - set(dir(batches))
    for name in methods - {"kind", "stage"}:
        with pytest.raises(AttributeError, match="before they are batched"):
            getattr(batches, name)


def test_a_table_with_two_columns_of_one_name_is_refused() -> None:
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(ValueError, match=r"^from_sequence got a table with two columns 'a'; rename one"):
        bf.from_sequence(table)


def test_braces_beyond_the_length_of_a_name_are_counted() -> None:
    with pytest.raises(ValueError, match=r"stand for [\d,]+ names, but the most is 1,000,000"):
        list(bf.from_files("{a,b}" * 60 + ".jsonl"))


def test_data_without_a_row_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    data = bf.from_files(tmp_path / "empty.jsonl")
    assert list(data) == list(data.map(dict)) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"from_files: there is no row in {tmp_path}/empty.jsonl"
    ]
