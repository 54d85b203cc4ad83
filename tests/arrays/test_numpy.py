"""`numpy()` stops before torch: the same keys and values as arrays, and no import of torch."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore
from torch.utils.data import DataLoader, IterableDataset

import brimful as bf
from brimful.arrays.columns import ColumnRules
from brimful.tensors.in_torch import in_torch
from brimful.testing import assert_exact_resume

ROWS = [
    {
        "input_ids": [*range(1, 2 + n * 7 % 11)],
        "labels": [-100, *range(2, 2 + n * 7 % 11)],
        "score": n / 2,
        "kind": n % 3,
        "tags": [*range(n % 4)],
        "text": f"row {n}",
        "sample": {"of": [n]},
    }
    for n in range(60)
]
STATIC = bf.StaticShapes([4, 8, 11], max_tokens=33)
TYPES = {"input_ids": "int32", "attention_mask": "bool", "score": "float16", "lengths": "uint16"}
CASES: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "padded": lambda data: data.batch(4),
    "on the left": lambda data: data.batch_by_tokens(24, window=16, pad_side="left"),
    "types": lambda data: data.batch(4, window=16, dtypes=TYPES),
    "static": lambda data: data.batch(STATIC, window=16),
    "a rank": lambda data: data.batch(STATIC, window=16).shard(1, 4),
    "packed": lambda data: data.pack(16, rows=2, window=16),
    "packed pieces": lambda data: data.pack(8, rows=3, window=16, overlong="split"),
    "packed on a rank": lambda data: data.pack(16, rows=2, window=16, micro_batches=2).shard(2, 3),
    "shifted": lambda data: data.rename({"labels": "shift_labels"}).pack(16, rows=2, window=16),
    "without labels": lambda data: data.batch(4, unlabelled="drop"),
    "ahead": lambda data: data.batch(4).prefetch(2).enumerate().take(7),
}


def as_arrays(value: Any) -> Any:
    """What `numpy()` gives for what is there without it."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return {name: as_arrays(one) for name, one in value.items()} if isinstance(value, dict) else value


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert [*found] == [*expected]
        for name, one in expected.items():
            assert_same(found[name], one)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert found.flags.writeable
    else:
        assert found == expected


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_keys_values_and_types_are_those_of_tensors(case: str, streamed: bool) -> None:
    data: bf.Dataset = bf.from_sequence(ROWS)
    if streamed and "rank" in case:
        pytest.skip("streamed data are not shared out without streams")
    batches = CASES[case](data.stream() if streamed else data)
    made = [*batches.numpy()]
    assert made
    for found, expected in zip(made, batches, strict=True):
        if isinstance(expected, tuple):
            expected = expected[0], as_arrays(expected[1])
        assert_same(found, as_arrays(expected))


def test_what_is_no_array_stays_what_it_is() -> None:
    (batch,) = bf.from_sequence(ROWS[:2]).pack(32).numpy()
    assert {type(batch[name]) for name in ("max_seqlen", "max_length_q")} == {int}
    assert batch["use_cache"] is False
    assert batch["text"] == ["row 1", "row 0"]
    assert batch["sample"] == [{"of": [1]}, {"of": [0]}]


@pytest.mark.parametrize("case", CASES)
def test_a_state_goes_on_with_tensors_and_with_arrays(case: str) -> None:
    tensors = CASES[case](bf.from_sequence(ROWS))
    assert_exact_resume(tensors.numpy, max_resumes=3)
    with tensors.iter() as taken, tensors.numpy().iter() as found:
        for _ in range(2):
            next(taken), next(found)
        state = json.loads(json.dumps(found.state_dict()))
        assert state == taken.state_dict()
        rest = [*found]
    with tensors.iter(state) as again:
        assert len([*again]) == len(rest)


def test_tensors_have_the_memory_of_the_arrays() -> None:
    (arrays,) = bf.from_sequence(ROWS[:4]).pack(64).numpy()
    tensors = dict(arrays)
    in_torch(tensors, ColumnRules(("input_ids",)), tensors)
    shared = {name for name, one in arrays.items() if isinstance(one, np.ndarray)}
    assert {"input_ids", "labels", "cu_seqlens", "sample_numbers", "score"} <= shared
    for name in shared:
        assert tensors[name].data_ptr() == arrays[name].ctypes.data
    assert tensors["cu_seqlens"] is tensors["cu_seq_lens_q"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_goes_with_every_verb(when: str) -> None:
    batches = bf.from_sequence(ROWS).batch(4)
    made = batches.numpy() if when == "before" else batches
    made = made.shard(0, 2).take(5).prefetch(1)
    made = made if when == "before" else made.numpy()
    assert [type(batch["input_ids"]) for batch in made] == [np.ndarray] * 5
    assert made.numpy() is made
    assert [int(number) for number in made.map(lambda batch: batch["kind"][0])] == [0, 2, 1, 0, 2]
    assert made.shapes() == batches.shard(0, 2).take(5).shapes()
    assert [one.number for one in made.explain(next(iter(made)))] == [0, 1, 2, 3]


def test_a_loader_has_epochs_of_arrays() -> None:
    batches = bf.from_sequence(ROWS).batch(4, window=16)
    loader, other = batches.numpy().loader(steps_per_epoch=4), batches.loader(steps_per_epoch=4)
    assert not isinstance(loader, IterableDataset)
    assert isinstance(other, IterableDataset)
    for _ in range(5):
        for found, expected in zip(loader, other, strict=True):
            assert_same(found, as_arrays(expected))
        assert loader.state_dict() == other.state_dict()
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert len([*DataLoader(other, batch_size=None)]) == 4


def test_a_collate_fn_makes_what_it_makes_and_a_filler_has_no_labels() -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {"labels": np.array([(*sample["labels"], *[-100] * 8)[:8] for sample in samples]), "made": torch.ones(1)}

    batches = bf.from_sequence(ROWS[1:3]).batch(2, collate_fn=collate)
    for made in (batches, batches.numpy()):
        (batch,), (filler,) = made.shard(0, 2), made.shard(1, 2)
        assert batch["labels"].tolist() == [[-100, *range(2, 9)], [-100, 2, 3, 4, *[-100] * 4]]
        assert filler["labels"].tolist() == [[-100] * 8]
        assert isinstance(batch["made"], torch.Tensor)
        count = batch["num_items_in_batch"]
        assert (type(count), int(count)) == (torch.Tensor if made is batches else np.ndarray, 10)


def test_labels_in_arrays_that_a_collate_fn_lost_are_an_error() -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {"labels": np.array([sample["labels"][:2] for sample in samples])}

    batches = bf.from_sequence(ROWS[1:3]).batch(2, collate_fn=collate).shard(0, 2)
    with pytest.raises(bf.DataError, match=r"collate_fn made 2 labels .* have 10"):
        next(iter(batches.numpy()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda data: data.batch(2, layout="nested").numpy(),
            r"layout='nested' .* only torch has.* choose layout='padded', or pack",
        ),
        (
            lambda data: data.batch(2, layout="grouped").numpy(),
            r"layout='grouped' .* only torch has.* choose layout='padded', or pack",
        ),
        (
            lambda data: data.batch(2, dtypes={"score": "bfloat16"}).numpy(),
            r"dtypes\['score'\] is 'bfloat16'.* Choose 'float32'",
        ),
        (lambda data: data.batch(2).map(dict).numpy(), r"after map\(\).* Call numpy\(\) first"),
        (lambda data: data.batch(2).to_device("cpu").numpy(), r"after to_device\(\).* Leave to_device\(\) out"),
        (lambda data: data.batch(2).numpy().to_device("cpu"), r"numpy arrays.* Leave numpy\(\) out"),
        (
            lambda data: data.batch(2).numpy().take(1).to_device("cpu", pad_on_device=True),
            r"^these batches are numpy arrays",
        ),
        (lambda data: bf.AsyncLoader(data.batch(2).numpy().loader(), "cpu"), r"send the arrays yourself"),
        (lambda data: bf.warm_up(dict, data.batch(STATIC).numpy()), r"^warm_up runs a step of torch.* numpy arrays"),
    ],
)
def test_what_arrays_cannot_be_is_an_error(make: Callable[[bf.Dataset], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(bf.from_sequence(ROWS))


def test_states_of_two_processes_go_on_in_one(tmp_path: Path) -> None:
    """Each of the two reads two of four streams, and both states together are that of one that reads all."""
    for number in range(4):
        rows = (json.dumps({"input_ids": [number + 1] * (1 + line % 5)}) + "\n" for line in range(20))
        (tmp_path / f"{number}.jsonl").write_text("".join(rows))
    batches = bf.from_files(f"{tmp_path}/*.jsonl", streams=4).pack(16, rows=2, window=10).numpy()

    def tokens(batch: dict[str, Any]) -> list[int]:
        return sorted(batch["input_ids"][batch["segment_ids"] > 0].tolist())

    whole = [tokens(batch) for batch in batches.shard(0, 1) if not batch["is_filler"]]
    store = HashStore()

    def process(rank: int) -> tuple[list[list[int]], dict[str, Any]]:
        with batches.shard(rank, 2, process_group=store).iter() as taken:
            return [tokens(next(taken)) for _ in range(3)], json.loads(json.dumps(taken.state_dict()))

    with ThreadPoolExecutor(2) as threads:
        (first, one), (second, other) = threads.map(process, range(2))
    before = [found for step in zip(first, second) for found in step]
    with batches.shard(0, 1).iter(bf.merge_states([one, other])) as rest:
        assert before + [tokens(batch) for batch in rest if not batch["is_filler"]] == whole


def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "words of {line}"}}\n' for line in range(300)))
    code = f"""
        import json, sys
        import brimful as bf
        from tests import tokenizers as make
        assert "torch" not in sys.modules
        text = bf.from_files({str(tmp_path)!r} + "/*.jsonl").tokenize(make.bpe(), remove_columns="text")
        store = text.to_store({str(tmp_path)!r} + "/store").shuffle(100, seed=1)
        verbs = [lambda data: data.batch_by_tokens(64, window=50), lambda data: data.pack(32, rows=2, window=50)]
        for verb in verbs:
            for batches in (verb(text).numpy(), verb(store).shard().numpy(), verb(store).numpy().shard(0, 2).prefetch(2)):
                with batches.map(dict).iter() as taken:
                    next(taken)
                    state = json.loads(json.dumps(taken.state_dict()))
                    rest = len([*taken])
                assert len([*batches.map(dict).iter(state)]) == rest > 1
                batches.explain(next(iter(batches)))
            loader = verb(store).numpy().loader()
            for epoch in range(2):
                for batch in loader:
                    batch["input_ids"]
            loader.load_state_dict(loader.state_dict())
        by_hand = store.causal_labels().batch(1, collate_fn=lambda samples: dict(labels=samples[0]["labels"][None]))
        assert "num_items_in_batch" in next(iter(by_hand.shard(0, 2).numpy()))
        sys.exit("torch was imported" if "torch" in sys.modules else None)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
