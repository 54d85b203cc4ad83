"""What a batch is made of: told for every layout, wherever its tensors go, and forgotten with them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful.arrays import explained
from tests import tokenizers as make
from tests.shards import write

TEXTS = ["the dog " * count for count in (3, 1, 4, 2, 5)]


@pytest.fixture
def files(tmp_path: Path) -> bf.Dataset:
    return bf.from_files(
        write(tmp_path / "a.jsonl", [{"text": text, "id": number} for number, text in enumerate(TEXTS)])
    )


def expected(number: int) -> tuple[int, str, int, int, str, int]:
    ids = make.bert()(TEXTS[number])["input_ids"]
    return number, f"shard a.jsonl, line {number + 1}", 0, len(ids), make.bert().decode(ids), number + 1


LAYOUTS: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "arrival": lambda data: data.batch(2),
    "sorted": lambda data: data.batch_by_tokens(30, seed=1),
    "left": lambda data: data.batch(2, pad_side="left"),
    "nested": lambda data: data.batch(2, layout="nested"),
    "static": lambda data: data.batch(bf.StaticShapes([8, 16], 32)),
    "packed": lambda data: data.pack(15, rows=2),
    "prefetched": lambda data: data.batch(2).prefetch(2),
    "mapped": lambda data: data.batch(2).map(
        lambda batch: {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    ),
    "on a device": lambda data: data.batch(2).to_device("cpu"),
    "padded there": lambda data: data.batch(2).to_device("cpu", pad_on_device=True),
    "static buffers": lambda data: data.batch(2).to_device("cpu", static_buffers=True, prefetch=0),
    "packed on a device": lambda data: data.pack(16).to_device("cpu", static_buffers=True),
    "a rank's": lambda data: data.cache().batch(2).shard(0, 1),
    "renamed": lambda data: data.rename({"input_ids": "ids"}).batch(2, length_column="ids"),
    "many workers": lambda data: data.map(dict, max_workers=2).batch(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_sample_has_its_line_its_length_and_its_text(files: bf.Dataset, layout: str) -> None:
    batches = LAYOUTS[layout](files.tokenize(make.bert()))
    found = [one for batch in batches for one in batches.explain(batch)]
    lines = [one.place for one in found]
    assert sorted(lines) == [f"shard a.jsonl, line {line}" for line in range(1, 6)]
    assert [one[1:-1] for one in found] == [expected(int(one.place.rpartition(" ")[2]) - 1)[1:] for one in found]


def test_of_packed_rows_each_piece_is_told(files: bf.Dataset) -> None:
    batches = files.tokenize(make.bert()).pack(7, overlong="split", shuffle_batches=False)
    pieces = [one for batch in batches for one in batches.explain(batch)]
    last = [one for one in pieces if one.place == "shard a.jsonl, line 5"]
    assert sorted((one.first, one.length) for one in last) == [(0, 7), (7, 5)]
    assert " ".join(one.text for one in sorted(last, key=lambda one: one.first) if one.text) == expected(4)[-2]


def test_of_a_function_the_tensors_that_it_makes_are_told(files: bf.Dataset) -> None:
    transformers = pytest.importorskip("transformers")
    collator = transformers.DataCollatorWithPadding(make.bert(padding_side="left"))
    batches = files.tokenize(make.bert()).select("input_ids").batch(5, collate_fn=collator)
    assert [tuple(one)[:-1] for one in batches.explain(next(iter(batches)))] == [
        expected(number) for number in range(5)
    ]


def test_it_prints_as_a_table_of_what_is_known(files: bf.Dataset, tmp_path: Path) -> None:
    batches = files.tokenize(make.bert()).batch(2)
    assert repr(batches.explain(next(iter(batches)))) == (
        "sample  place                  length  text\n"
        "     0  shard a.jsonl, line 1       8  [CLS] the dog the dog the dog [SEP]\n"
        "     1  shard a.jsonl, line 2       4  [CLS] the dog [SEP]"
    )
    stored = files.tokenize(make.bert()).to_store(tmp_path / "store").select("input_ids").shuffle(9).batch(5)
    assert sorted(one.number for one in stored.explain(next(iter(stored)))) == [0, 1, 2, 3, 4]


STORED: dict[str, Callable[[bf.IndexedDataset], bf.Batches]] = {
    "in order": lambda store: store.batch(5),
    "shuffled": lambda store: store.shuffle(3).batch_by_tokens(30),
    "a split": lambda store: store.train_valid_split(0.3, key="id")[0].batch(2, keep_text=True),
    "a slice": lambda store: store[1:4].batch(2),
    "packed": lambda store: store.pack(7, overlong="split"),
    "two stores": lambda store: (store + store).batch(5),
    "a stream": lambda store: store.causal_labels().batch(2),
    "without text": lambda store: store.select("input_ids").batch(2),
}


@pytest.mark.parametrize("layout", STORED)
def test_of_a_store_the_place_finds_the_sample_and_the_text_is_that_it_keeps(
    files: bf.Dataset, tmp_path: Path, layout: str
) -> None:
    files.tokenize(make.bert()).to_store(tmp_path / "store")
    store = bf.from_store(tmp_path / "store")
    batches = STORED[layout](store)
    for batch in batches:
        for one in batches.explain(batch):
            name, _, row = str(one.place).rpartition(" ")
            assert name == "store store, row"
            sample = store[int(row)]
            text = None if layout in ("a stream", "without text") else TEXTS[sample["id"]]
            assert one.text == text == (text and sample["text"])
            assert layout == "packed" or one.length == len(sample["input_ids"])


def test_two_tokenizers_say_nothing_of_the_text(files: bf.Dataset) -> None:
    both = bf.interleave_datasets([files.tokenize(one()).drop("text") for one in (make.byt5, make.chatty)])
    batches = both.batch(2)
    assert {one.text for one in batches.explain(next(iter(batches)))} == {None}


def test_conversations_are_told_by_their_tokenizer() -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    batches = bf.from_sequence([{"messages": json.dumps(talk)}]).chat(make.chatty()).batch(1)
    (one,) = batches.explain(next(iter(batches)))
    assert one.place == "sequence, row 0"
    assert str(one.text).startswith("<|im_start|>")


@pytest.mark.parametrize(
    ("batches", "batch", "kind", "message"),
    [
        (
            lambda data: data.batch(2),
            lambda batch: [batch],
            TypeError,
            r"^explain takes a batch, a dict of tensors or arrays \(got list\)\. It goes by these: have collate_fn and map ",
        ),
        (
            lambda data: data.batch(2, collate_fn=lambda samples: {"texts": ["a"], "n": [len(samples)]}),
            dict,
            ValueError,
            r"^explain goes by the tensors of a batch, and this one holds none \(keys: texts, n\)\. Have collate_fn and map keep",
        ),
        (
            lambda data: data.batch(2),
            lambda batch: {"input_ids": batch["input_ids"] + 1},
            ValueError,
            r"^what this batch was made of ",
        ),
        (
            lambda data: data.batch(2, layout="grouped"),
            dict,
            ValueError,
            r"layout='grouped', a copy by hand and another process",
        ),
    ],
)
def test_what_is_not_known_is_an_error(batches: Any, batch: Any, kind: type[Exception], message: str) -> None:
    made = batches(bf.from_sequence([[1, 2], [3]]))
    with pytest.raises(kind, match=message):
        made.explain(batch(next(iter(made))))


def test_what_is_remembered_goes_with_the_tensors() -> None:
    data = bf.from_sequence([[1, 2], [3]] * 50)
    gc.collect()
    before = len(explained._MADE)
    held = list(data.batch(2).to_device("cpu"))
    assert len(explained._MADE) > before
    lengths = torch.stack([batch["lengths"] for batch in held])
    assert all(type(value) in (torch.Tensor,) for batch in held for value in batch.values()), "a batch is what it was"
    del held
    gc.collect()
    assert len(explained._MADE) == before
    assert lengths.tolist() == [[2, 1]] * 50


def test_of_a_torch_data_set_the_planned_lengths_are_told() -> None:
    """Also where a collate_fn gets its samples, which brimful does not look into."""

    class Words(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, number: int) -> Any:
            return {"words": [1] * (1 + number), "number": number}

    def collate(samples: list[Any]) -> Any:
        return {"number": torch.tensor([one["number"] for one in samples])}

    batches = bf.from_dataset(Words(), lengths=[*range(1, 21)], collate_fn=collate).batch_by_tokens(40)
    for batch in batches:
        explained = batches.explain(batch)
        assert [one.number for one in explained] == batch["number"].tolist()
        assert [one.length for one in explained] == (batch["number"] + 1).tolist()
    fixed = bf.from_dataset(Words(), collate_fn=collate).batch(4)
    assert {one.length for one in fixed.explain(next(iter(fixed)))} == {None}
