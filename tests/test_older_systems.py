"""Each example that the documents of the five older systems print, as their users would write it here.

epochraft (README and tutorial), infinibatch (tutorial and the page on iterators), asym (its example and its thresholds), TorchAcc
(quick start, AsyncLoader, bucketing) and dynabatch (README, and that of version 0.1). The sentences and the code are ours; the
data and the results are theirs.
"""

from __future__ import annotations

import gzip
import io
import logging
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import brimful as bf
from brimful.grouping import Collection, LengthThresholds, OneGroup, Partition, balanced_thresholds, find_thresholds
from brimful.integrations.transformers import trainer_class
from tests import tokenizers as make
from tests.shards import write

# -- epochraft ---------------------------------------------------------------------------------------------------------


def pretraining(folder: Path) -> bf.Batches:
    tokenizer = make.gpt2()
    return (
        bf.from_files(str(folder / "cc-100_{00..03}.jsonl"), repeat=True, shuffle_shards=True)
        .tokenize(tokenizer)
        .ensure_bos_eos(tokenizer)
        .concat_chunk(32)
        .shuffle(10)
        .batch(8)
    )


def test_epochraft_a_pretraining_set_and_its_checkpoint(tmp_path: Path) -> None:
    for shard in range(4):
        write(tmp_path / f"cc-100_{shard:02}.jsonl", [{"text": f"text {shard} {n} " * 9} for n in range(20)])
    train_iter = pretraining(tmp_path).iter()
    for step, batch in enumerate(train_iter):
        assert batch["input_ids"].shape == (8, 32)
        if step == 5:
            break
    saved = io.BytesIO()
    torch.save({"iter": train_iter.state_dict()}, saved)
    rest = [batch["input_ids"] for batch in islice(train_iter, 12)]
    saved.seek(0)
    resumed = pretraining(tmp_path).iter(state_dict=torch.load(saved)["iter"])
    assert all(map(torch.equal, rest, (batch["input_ids"] for batch in resumed)))
    resumed.close()
    train_iter.close()


HELLO = [
    {"text": text}
    for text in ("Hello world!", "こんにちは世界\uff01", "你好世界\uff01", "안녕하세요 세계!")  # fullwidth "!"
]


@pytest.mark.parametrize(
    "urls", ["cc-100_00.jsonl", ["cc-100_00.jsonl", "cc-100_01.jsonl"], "cc-100_{00..99}.jsonl"], ids=str
)
def test_epochraft_the_first_sample_of_one_url_of_a_list_and_of_a_hundred(tmp_path: Path, urls: Any) -> None:
    for shard in range(100):
        write(tmp_path / f"cc-100_{shard:02}.jsonl", [{"text": f"嬉しい事に {shard}"}])
    urls = [str(tmp_path / url) for url in urls] if isinstance(urls, list) else str(tmp_path / urls)
    assert next(iter(bf.from_files(urls))) == {"text": "嬉しい事に 0"}


def test_epochraft_samples_of_a_list_in_another_order() -> None:
    found = [sample["text"] for sample in bf.from_sequence(HELLO, shuffle=True)]
    assert found != [sample["text"] for sample in HELLO]
    assert sorted(found) == sorted(sample["text"] for sample in HELLO)


def upper(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"text": sample["text"].upper()}


def is_short(sample: dict[str, Any]) -> bool:
    return len(sample["text"]) < 10


@pytest.mark.parametrize("workers", [{}, {"max_workers": 1, "executor_type": "thread"}], ids=str)
def test_epochraft_map_and_filter_here_and_in_workers(workers: dict[str, Any]) -> None:
    data = bf.from_sequence(HELLO)
    assert next(iter(data.map(upper, **workers))) == {"text": "HELLO WORLD!"}
    assert [*data.filter(is_short, **workers)] == HELLO[1:]
    short = data.filter_map(lambda sample: upper(sample) if is_short(sample) else None)
    assert [*short] == HELLO[1:]


def test_epochraft_tokens_with_bos_and_eos() -> None:
    tokenizer = make.llama()
    tokens = bf.from_sequence(HELLO).tokenize(tokenizer, max_workers=2, extra_outputs="attention_mask")
    ids = tokenizer("Hello world!")["input_ids"]
    first = {name: value if name == "text" else value.tolist() for name, value in next(iter(tokens)).items()}
    assert first == {"text": "Hello world!", "input_ids": ids, "attention_mask": [1] * len(ids)}
    closed = next(iter(bf.from_sequence(HELLO).tokenize(tokenizer, max_workers=2).ensure_bos_eos(tokenizer)))
    assert ids[0] == tokenizer.bos_token_id, "which is there once"
    assert closed["input_ids"].tolist() == [*ids, tokenizer.eos_token_id]


def test_epochraft_chunks_of_six_tokens() -> None:
    data = bf.from_sequence([{"input_ids": [*range(10)]}, {"input_ids": [10, 11, 12]}, {"input_ids": [*range(20, 27)]}])
    assert [one["input_ids"].tolist() for one in data.chunk(6)] == [[0, 1, 2, 3, 4, 5], [20, 21, 22, 23, 24, 25]]
    assert [one["input_ids"].tolist() for one in data.concat_chunk(6)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 20, 21, 22, 23, 24],
    ]


def test_epochraft_two_sources_by_weight_and_one_after_the_other() -> None:
    english, japanese = (bf.from_sequence([sample], repeat=True) for sample in HELLO[:2])
    mixed = bf.interleave_datasets([english, japanese], weights=[1.5, 1]).take(10)
    assert "".join("HK"[sample["text"] != "Hello world!"] for sample in mixed) == "HKHKHHKHKH"
    joined = bf.concat_datasets([english.take(3), japanese.take(3)])
    assert [*joined] == HELLO[:1] * 3 + HELLO[1:2] * 3


def test_epochraft_each_worker_strides_through_the_samples_or_has_urls_of_its_own(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{shard}.jsonl", [{"n": 2 * shard}, {"n": 2 * shard + 1}]) for shard in range(4)]
    assert [[row["n"] for row in bf.from_files(urls, n_active_shards=1).stride(2, rank)] for rank in range(2)] == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    ]
    assert [[row["n"] for row in bf.from_files(urls[rank::2], n_active_shards=1)] for rank in range(2)] == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
    ]


def test_epochraft_the_next_batch_is_fetched_between_forward_and_backward() -> None:
    model = nn.Linear(1, 1, bias=False)
    it = iter(bf.from_sequence([{"x": float(n)} for n in range(4)], repeat=True).batch(2))
    batch = next(it)
    seen = []
    for _ in range(4):
        loss = model(batch["x"][:, None].float()).sum()
        seen.append(batch["x"].tolist())
        batch = next(it)
        loss.backward()
    assert seen == [[0.0, 1.0], [2.0, 3.0]] * 2
    assert model.weight.grad is not None
    assert float(model.weight.grad) == 12.0


def test_epochraft_validation_data_are_read_once_and_kept(tmp_path: Path) -> None:
    file = Path(write(tmp_path / "valid.jsonl", [{"n": n} for n in range(3)]))
    cached = bf.from_files(str(file)).cache()
    rows = [*cached]
    file.unlink()
    assert [*cached] == rows == [{"n": n} for n in range(3)]


def test_epochraft_a_column_counts_the_steps() -> None:
    data = bf.from_sequence([{"text": letter} for letter in "abcd"]).enumerate().batch(2)
    assert [batch["step"].tolist() for batch in data] == [[0, 1], [2, 3]]
    assert [number for number, _ in data.enumerate()] == [0, 1]


def test_epochraft_names_of_old_lead_to_the_new_ones() -> None:
    data = bf.from_sequence([{"x": 1}])
    for old, new in (("parallel_map", "map"), ("parallel_filter", "filter"), ("parallel_filter_map", "filter_map")):
        with pytest.raises(AttributeError, match=rf"no attribute '{old}': call {new}\(fn, max_workers=4\)$"):
            getattr(data, old)
    with pytest.raises(AttributeError, match=r"'CheckpointableDataset'; call bf\.from_files, bf\.from_sequence or"):
        bf.CheckpointableDataset  # noqa: B018
    with pytest.raises(AttributeError, match=r"^'IndexedDataset' object has no attribute 'parallel_batch'$"):
        data.parallel_batch  # type: ignore[attr-defined]  # noqa: B018


def test_epochraft_a_data_loader_around_it() -> None:
    loader = DataLoader(bf.from_sequence([{"x": n} for n in range(4)]).batch(2).loader(), batch_size=None)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_function_may_return_any_mapping() -> None:
    """Such as what a tokenizer returns when it is called by itself."""
    tokenizer = make.bert()
    texts = bf.from_sequence([{"text": "the dog"}, {"text": "a lazy dog"}])
    expected = [tokenizer(text)["input_ids"] for text in ("the dog", "a lazy dog")]
    for data in (
        texts.map(lambda sample: tokenizer(sample["text"])),
        texts.map(lambda sample: tokenizer(sample["text"]), max_workers=1, executor_type="process"),
        texts.filter_map(lambda sample: tokenizer(sample["text"])),
        texts.flat_map(lambda sample: [tokenizer(sample["text"])]),
        texts.scan(lambda carry, sample: (carry, tokenizer(sample["text"])), 0),
        bf.from_iterable([tokenizer("the dog"), tokenizer("a lazy dog")]),
        bf.from_sequence([tokenizer("the dog"), tokenizer("a lazy dog")]),
    ):
        assert [sample["input_ids"].tolist() for sample in data] == expected


# -- infinibatch -------------------------------------------------------------------------------------------------------

CORPUS = """Lorem ipsum dolor sit amet,
consectetur adipiscing elit,
sed do eiusmod tempor incididunt ut labore et dolore magna aliqua.
Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat.
Duis aute irure dolor in reprehenderit in voluptate velit esse cillum dolore eu fugiat nulla pariatur.
The quick brown fox jumps over the lazy dog.""".splitlines()


@pytest.fixture
def lines(tmp_path: Path) -> bf.Dataset:
    """Three chunks of two lines each, without end, in a new order each epoch."""
    for chunk in range(3):
        with gzip.open(tmp_path / f"corpus.{chunk:02}.txt.gz", "wt") as file:
            file.write("\n".join(CORPUS[2 * chunk :][:2]) + "\n")
    return bf.from_files(str(tmp_path / "corpus.*.txt.gz"), shuffle_shards=True, repeat=True, seed=1).shuffle(6, seed=1)


def test_infinibatch_items_in_a_random_order(lines: bf.Dataset) -> None:
    with lines.iter() as it:
        epochs = [[next(it)["text"] for _ in range(6)] for _ in range(3)]
    assert all(sorted(epoch) == sorted(CORPUS) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_infinibatch_batches_of_two_of_about_the_same_length(lines: bf.Dataset) -> None:
    batches = lines.batch_by(2, key=lambda line: len(line["text"]), window=6, seed=1)
    by_length = sorted(CORPUS, key=len, reverse=True)
    pairs = {frozenset(by_length[at : at + 2]) for at in (0, 2, 4)}
    with batches.iter() as it:
        found = [[frozenset(next(it)["text"]) for _ in range(3)] for _ in range(8)]
    assert all(set(epoch) == pairs for epoch in found)
    assert len({tuple(map(hash, epoch)) for epoch in found}) > 1, "their order is another one each time"


def collate(samples: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """Each character is a token; what is shorter is padded with -1."""
    ids = [[ord(character) for character in sample["text"]] for sample in samples]
    width = max(map(len, ids))
    return np.array([line + [-1] * (width - len(line)) for line in ids])


def test_infinibatch_as_many_lines_as_150_characters_hold_as_padded_arrays(lines: bf.Dataset) -> None:
    batches = lines.batch_by(
        lambda longest: max(1, 150 // len(longest["text"])),
        key=lambda line: len(line["text"]),
        window=6,
        collate_fn=collate,
    )
    with batches.iter() as it:
        arrays = [next(it) for _ in range(4)]
        state = it.state_dict()
        expected = next(it)
    assert sorted(array.shape for array in arrays) == [(1, 102), (1, 107), (2, 28), (2, 66)]
    assert all(array.shape[0] == 1 or array.size <= 150 for array in arrays)
    rows = ["".join(map(chr, row[row >= 0])) for array in arrays for row in array]
    assert sorted(rows) == sorted(CORPUS), "one epoch, each line behind its own padding"
    (short,) = (array for array in arrays if array.shape == (2, 28))
    assert short[:, -1].tolist() in ([ord(","), -1], [-1, ord(",")])
    assert np.array_equal(next(batches.iter(state)), expected)


def test_infinibatch_one_object_that_is_looped_over_again() -> None:
    loader = bf.from_sequence(["a", "b", "c", "d"]).batch(2).loader()
    first = next(iter(loader))["text"]
    state = loader.state_dict()
    again = bf.from_sequence(["a", "b", "c", "d"]).batch(2).loader()
    again.load_state_dict(state)
    assert (first, [batch["text"] for batch in again]) == (["a", "b"], [["c", "d"]])


def test_infinibatch_pairs_of_doubled_numbers_and_a_checkpoint_of_the_whole_pipeline() -> None:
    data = bf.from_sequence([{"n": n} for n in range(6)]).map(lambda sample: {"n": 2 * sample["n"]})
    batches = data.batch(2).map(lambda pair: int(pair["n"][1]))
    assert [*batches] == [2, 6, 10]
    it = batches.iter()
    assert next(it) == 2
    checkpoint = pickle.loads(pickle.dumps(it.state_dict()))
    assert [*it] == [6, 10]
    with pytest.raises(StopIteration):
        next(it)
    assert next(batches.iter(checkpoint)) == 6
    assert next(batches.iter(None)) == 2, "setstate(None): from the beginning"


# -- asym --------------------------------------------------------------------------------------------------------------


class Strange(nn.Module):
    """A product of features times a squared distance, of each residue with each atom."""

    def __init__(self, dim1: int, dim2: int, dim: int = 8) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(dim1, dim), nn.Linear(dim2, dim)

    def forward(self, objects1: dict[str, torch.Tensor], objects2: dict[str, torch.Tensor]) -> torch.Tensor:
        first, second = self.linear1(objects1["p"]), self.linear2(objects2["m"])
        apart = (objects1["t"][:, :, None] - objects2["t"][:, None]).square().sum(-1)
        return torch.einsum("bic,bjc->bij", first, second) * apart


def complexes() -> list[dict[str, Any]]:
    return [
        {
            "protein": {"p": torch.rand(res, 8), "R": torch.rand(res, 3, 3), "t": torch.rand(res, 3)},
            "ligand": {"m": torch.rand(atm, 4), "t": torch.rand(atm, 3)},
        }
        for res, atm in ((10, 3), (20, 6), (12, 20))
    ]


def test_asym_its_example() -> None:
    samples = complexes()
    dims = {
        "protein": {"p": "res 8", "R": "res 3 3", "t": "res 3"},
        "ligand": {"m": "atm 4", "t": "atm 3"},
    }
    pads = {"protein": {"R": torch.eye(3)}}
    first = Collection(samples, dims, pad_values=pads).group(LengthThresholds("res", [15]))
    assert first.partition == ((0, 2), (1,))
    group = first.groups[0]
    shapes = [tuple(group[kind][name].shape) for kind, name in (("protein", "p"), ("protein", "R"), ("ligand", "m"))]
    assert shapes == [(2, 12, 8), (2, 12, 3, 3), (2, 20, 4)]
    assert torch.equal(group["protein"]["R"][0, 10:], torch.eye(3).expand(2, 3, 3)), "padded with the identity"
    second = first.regroup(LengthThresholds("atm", [10]))
    assert second.partition == ((0, 1), (2,))
    assert tuple(second["protein"].groups[0]["p"].shape) == (2, 20, 8)
    assert tuple(second["ligand"].groups[0]["m"].shape) == (2, 6, 4)
    assert [tuple(second["protein"].groups[0][name].shape) for name in ("p", "R")] == [(2, 20, 8), (2, 20, 3, 3)]
    twice = Collection(
        [sample | {"duplicate": sample} for sample in samples],
        dims | {"duplicate": dims},
        pad_values=pads | {"duplicate": pads},
    ).group(LengthThresholds("atm", [10]))
    assert twice.partition == second.partition, "a key that is added is one of a new collection"
    assert torch.equal(twice["duplicate"].groups[0]["protein"]["R"], second["protein"].groups[0]["R"])
    assert second.regroup(OneGroup()).partition == ((0, 1, 2),)
    assert second.regroup(Partition([[2], [0, 1]])).partition == ((2,), (0, 1))
    module = Strange(8, 4)
    results = second.apply(module, inputs={"objects1": "protein", "objects2": "ligand"}, outputs="res atm").ungroup()
    assert [tuple(result.shape) for result in results] == [(10, 3), (20, 6), (12, 20)]
    for sample, result in zip(samples, results, strict=True):
        alone = module(*({name: value[None] for name, value in sample[kind].items()} for kind in ("protein", "ligand")))
        torch.testing.assert_close(result, alone[0])


def test_asym_thresholds_of_old_give_the_groups_that_they_were_found_for() -> None:
    lengths = np.repeat([1, 4, 16, 64], [193, 48, 12, 3])
    collection = Collection([torch.rand(length) for length in lengths.tolist()], "seq")

    def slots(thresholds: list[int]) -> int:
        return sum(int(group.numel()) for group in collection.group(LengthThresholds("seq", thresholds)).groups)

    assert slots([1, 4, 16]) == 769
    assert find_thresholds(lengths, 4) == [1, 4, 16]
    costs = balanced_thresholds(np.repeat([2, 4, 8, 16], [64, 16, 4, 1]), 4, cost=lambda length: length**2)
    assert costs == [2, 4, 8], "64 x 2^2 = 16 x 4^2 = 4 x 8^2 = 1 x 16^2"
    longest, counts = [2**i for i in range(1, 7)], [4 ** (6 - i) for i in range(1, 7)]
    assert balanced_thresholds(np.repeat(longest, counts), 6, cost=lambda length: length**2) == longest[:-1]


# -- TorchAcc ----------------------------------------------------------------------------------------------------------


def of_lengths(*lengths: int) -> DataLoader[Any]:
    rows = [
        {"input_ids": torch.ones(n, dtype=torch.int64), "attention_mask": torch.ones(n), "labels": torch.ones(n)}
        for n in lengths
    ]
    return DataLoader(rows, batch_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({"buckets": [128, 256, 512, 1024]}, [128, 256, 1024]),
        ({"max_length": 1024, "num_buckets": 4}, [256, 256, 768]),
        ({"max_length": 1024}, [128, 256, 768]),
    ],
    ids=["given", "uniform", "8 by default"],
)
def test_torchacc_pads_to_the_nearest_bucket(buckets: dict[str, Any], expected: list[int]) -> None:
    pads = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    loader = bf.AsyncLoader(of_lengths(100, 129, 700), "cpu", pad_value_dict=pads, **buckets)
    batches = list(loader)
    assert [batch["labels"].shape[-1] for batch in batches] == expected
    assert (batches[0]["labels"][0, 100:] == -100).all()
    assert not batches[0]["attention_mask"][0, 100:].any()


def test_torchacc_its_uniform_buckets() -> None:
    assert bf.uniform_buckets(1024, 4) == [256, 512, 768, 1024]


def test_torchacc_its_quick_start_trains_as_without_it() -> None:
    """Batches are pairs: without buckets nothing is padded, whatever they are."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 12), torch.randint(0, 4, (64,)))
    losses = []
    for wrap in (list, lambda loader: bf.AsyncLoader(loader, "cpu")):
        torch.manual_seed(1)
        model = nn.Linear(12, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train_loader: Any = wrap(DataLoader(dataset, batch_size=16))  # type: ignore[operator]
        found = []
        for _ in range(4):
            for _, (inputs, labels) in enumerate(train_loader, 1):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1]
    assert len(losses[0]) == 16


def test_torchacc_its_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "brimful"):
        list(bf.AsyncLoader(of_lengths(179, 367, 248, 63), "cpu", max_length=1024, num_buckets=16))
    found = [record.getMessage() for record in caplog.records if "bucket" in record.getMessage()]
    assert found == [
        "original length: 179, bucket length: 192, padding length: 13",
        "original length: 367, bucket length: 384, padding length: 17",
        "original length: 248, bucket length: 256, padding length: 8",
        "original length: 63, bucket length: 64, padding length: 1",
    ]


# -- dynabatch ---------------------------------------------------------------------------------------------------------

TEXTS = [
    words * times
    for words, times in (("very short ", 1), ("short ", 2), ("medium ", 8), ("long ", 32), ("very long ", 64))
] * 3


SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
}


def peak() -> float:
    return 1e9


def test_dynabatch_0_1_with_the_names_and_the_order_of_its_arguments() -> None:
    tokenizer = make.bert()
    loader = bf.build_dynamic_batch_dataloader(TEXTS, tokenizer, 3, 128, 0.025, False, 0, 1.0, 6.0, 50, peak_bytes=peak)
    batches = list(loader)
    assert sorted(text for batch in batches for text in batch["texts"]) == sorted(TEXTS)
    assert [len(batch["texts"]) for batch in batches[:1]] == [3], "the first one has batch_size texts"
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 128, "the longest texts come first, cut"
    assert all(batch["attention_mask"].shape == batch["input_ids"].shape for batch in batches)


def test_dynabatch_0_1_its_quick_start() -> None:
    texts = ["Hello world", "A much longer sentence that will tokenize to more input tokens.", "Short one"]
    tokenizer = make.bert(padding_side="left")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SIZES)).eval()
    loader = bf.build_dynamic_batch_dataloader(
        texts, tokenizer, batch_size=32, max_input_token_length=256, num_workers=0, peak_bytes=peak
    )
    with torch.inference_mode():
        for batch in loader:
            outputs = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=2)
            assert outputs.shape[1] == batch["input_ids"].shape[1] + 2
    (alone, *_) = bf.build_dynamic_batch_dataloader(TEXTS, tokenizer, 1, 64, num_workers=0, peak_bytes=peak)
    assert (alone["input_ids"].shape, len(alone["texts"])) == ((1, 64), 1)
    assert batch["texts"] == [texts[1], *sorted(texts[::2], key=lambda text: -len(tokenizer(text)["input_ids"]))]


def test_dynabatch_a_shuffled_sampler_for_training() -> None:
    lengths = [len(ids) for ids in make.bert()(TEXTS)["input_ids"]]
    sampler = bf.BatchSampler(lengths, bf.TokenBudget(512), shuffle=True, overlong="alone")
    epochs = []
    for number in range(2):
        sampler.set_epoch(number)
        epochs.append([sorted(batch) for batch in sampler])
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == [*range(len(TEXTS))]


def test_dynabatch_a_trainer_whose_batches_have_many_short_texts_or_few_long_ones(tmp_path: Path) -> None:
    """Each text counts as much whatever batch it is in, also where gradients are accumulated."""
    texts = [[1 + n % 8] * length for n, length in enumerate([4] * 12 + [16] * 4)]
    data = bf.from_sequence([{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in texts])
    model = bf.memory.MemoryModel.fit(
        [(b, n) for b in (1, 4, 8) for n in (4, 8, 16)], [1e3 + 1e3 * b * n for b in (1, 4, 8) for n in (4, 8, 16)]
    )
    batches = data.batch(bf.MemoryBudget(model, limit_bytes=5e4), window=16, micro_batches=2)
    sizes = [len(plan.numbers) for plan in batches.plans()]
    assert min(sizes) < max(sizes)
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=1,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = trainer_class(Trainer)(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=16, **SIZES)), args=arguments, train_dataset=batches
    )
    trainer.train()
    assert trainer.state.global_step == -(-len(batches) // 2)
    assert 2.0 < trainer.state.log_history[0]["loss"] < 3.5, "about log(16), a mean over all tokens of the step"


def test_dynabatch_a_training_step_that_is_split_or_skipped() -> None:
    """`split_retry` keeps all samples, and `skip` gives no gradient; both are counted."""
    weight = torch.ones(2, requires_grad=True)
    device = bf.memory.SimulatedOOM(4)

    def step(batch: dict[str, torch.Tensor], scale: float) -> None:
        ((device(batch["x"]) @ weight).mean() * scale).backward()

    split = bf.memory.oom_guard(step, parameters=[weight])
    split({"x": torch.arange(8.0).reshape(4, 2)})
    assert weight.grad is not None
    assert (weight.grad.tolist(), split.stats.ooms, split.stats.parts) == ([3.0, 4.0], 1, 2)
    weight.grad, device.limit = None, 1
    skip = bf.memory.oom_guard(step, parameters=[weight], on_sample_oom="skip")
    assert skip({"x": torch.ones(4, 2)}) is None
    assert (weight.grad, skip.stats.skipped) == (None, 4)


def test_dynabatch_a_sampler_for_a_data_loader_of_your_own() -> None:
    tokenizer = make.bert()
    lengths = [len(ids) for ids in tokenizer(TEXTS, truncation=True, max_length=128)["input_ids"]]
    model = bf.memory.MemoryModel.fit(
        [(b, n) for b in (1, 4, 8) for n in (8, 32, 128)], [1e6 + 1e3 * b * n for b in (1, 4, 8) for n in (8, 32, 128)]
    )
    sampler = bf.BatchSampler(lengths, bf.MemoryBudget(model, limit_bytes=1.5e6), shuffle=False)

    def tokenized(texts: list[str]) -> Any:
        return tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")

    sizes = [len(batch["input_ids"]) for batch in DataLoader(TEXTS, batch_sampler=sampler, collate_fn=tokenized)]  # type: ignore[arg-type]
    assert sum(sizes) == len(TEXTS)
    assert len(sizes) == len(sampler)
    static = bf.BatchSampler(lengths, bf.FixedSize(3), shuffle=False)
    assert [len(batch) for batch in static] == [3] * 5, "dynamic_batch_mode=False"
    assert len(sizes) < len(static)


def test_dynabatch_generation_that_survives_a_lack_of_memory() -> None:
    device = bf.memory.SimulatedOOM(2 * 16)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **SIZES)).eval()
    model.get_input_embeddings().register_forward_pre_hook(lambda module, inputs: (device(inputs[0]),))
    batch = {"input_ids": torch.arange(64).reshape(4, 16) % 16, "attention_mask": torch.ones(4, 16, dtype=torch.int64)}
    generate = bf.memory.oom_safe_generate(model, max_new_tokens=1)
    tokens = generate(batch)
    assert torch.equal(tokens[:, :16], batch["input_ids"])
    assert (len(tokens), generate.stats.ooms) == (4, 1), "did_fallback"
