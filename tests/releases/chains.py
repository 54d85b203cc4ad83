"""What each release leaves behind for the later ones to open: shards, a token store, results, and a state of every verb.

A chain that stands here is never changed, nor a function that it calls: saved states name them. New verbs get new lines.
`python -m tests.releases` writes the folder of a release that has none yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.core.iterator import ResumableIterator
from brimful.loader import Loader
from tests import shards

HERE: Final = Path(__file__).parent
BEFORE: Final = 2
"""Items that were taken before a state was."""
AFTER: Final = 4
"""Items of after it that are kept."""
WORDS: Final = [
    "all",
    "batches",
    "are",
    "filled",
    "to",
    "the",
    "brim",
    "and",
    "no",
    "sample",
    "is",
    "ever",
    "left",
    "behind",
    "by",
    "us",
]

Chain = Callable[[Path], "bf.Dataset | bf.Batches"]


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**sample, "drawn": int(rng.bit_generator.random_raw() % 1_000)}


def truth(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 5)


def several(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample, sample]


def block_of(block: Any) -> Any:
    return block


def counted(carry: Any, sample: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return carry + 1, {**sample, "counted": carry}


def length(sample: dict[str, Any]) -> int:
    return len(sample["input_ids"])


def letters(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def counts(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"letters": len(text)} for text in batch["text"]]


class InterruptedRunError(Exception):
    """Ends a run between its windows."""


@dataclass(frozen=True)
class Ends:
    """What `ensure_bos_eos` asks a tokenizer."""

    bos_token_id: int = 0
    eos_token_id: int = 1


def talk(number: int) -> dict[str, Any]:
    turns = [{"role": "user", "content": WORDS[number]}, {"role": "assistant", "content": WORDS[-number]}]
    return {"id": number, "messages": turns}


def chat(folder: Path) -> bf.Dataset:
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder / "tokenizer")
    return bf.from_sequence([talk(number) for number in range(8)]).chat(tokenizer)


def row(number: int) -> dict[str, Any]:
    count = 1 + number * 7 % 10
    return {"id": number, "text": " ".join(WORDS[:count]), "input_ids": [number] * count}


TEXTS: Final = [row(number)["text"] for number in range(30)]
ROWS: Final = bf.from_sequence([row(number) for number in range(40)])
STREAM: Final = ROWS.stream()
EXTENSIONS: Final = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".ipc")


def files(folder: Path, extension: str) -> bf.Dataset:
    return bf.from_files(
        sorted(str(path) for path in (folder / "shards").glob(f"[0-9]{extension}")), shuffle_shards=True
    )


CHAINS: Final[dict[str, Chain]] = {
    **{f"from_files, {ending}": lambda folder, ending=ending: files(folder, ending) for ending in EXTENSIONS},
    "from_files, streams": lambda folder: bf.from_files(
        sorted(str(path) for path in (folder / "shards").glob("*.jsonl")), streams=2, n_active_shards=1, repeat=True
    ).batch(3),
    "from_store": lambda folder: bf.from_store(folder / "store", shuffle=True, repeat=True),
    "from_sequence": lambda _: bf.from_sequence(WORDS, shuffle=True, repeat=True),
    "from_dataset": lambda _: bf.from_dataset([row(n) for n in range(9)], lengths=[length(row(n)) for n in range(9)]),
    "from_iterable": lambda _: bf.from_iterable([row(number) for number in range(9)], repeat=True),
    "map": lambda _: STREAM.map(same),
    "map with a seed": lambda _: ROWS.map(drawn, seed=3, on_error="skip"),
    "filter": lambda _: ROWS.filter(truth),
    "filter of a stream": lambda _: STREAM.filter(truth),
    "filter_map": lambda _: STREAM.filter_map(same),
    "flat_map": lambda _: STREAM.flat_map(several),
    "map_blocks": lambda _: STREAM.map_blocks(block_of),
    "scan": lambda _: STREAM.scan(counted, 0),
    "sliding_window": lambda _: STREAM.select("id").sliding_window(2),
    "tokenize": lambda _: STREAM.tokenize(letters, output_column="tokens", remove_columns="text"),
    "add_bos_eos": lambda _: STREAM.add_bos_eos(1, None),
    "ensure_bos_eos": lambda _: STREAM.ensure_bos_eos(Ends()),
    "chat": chat,
    "cache": lambda folder: STREAM.map(same).cache(),
    "causal_labels": lambda _: STREAM.causal_labels(shift=True),
    "chunk": lambda _: STREAM.chunk(4, drop_remainder=False),
    "concat_chunk": lambda _: STREAM.concat_chunk(4),
    "pack_chunk": lambda _: STREAM.select(["id", "input_ids"]).pack_chunk(10),
    "pad": lambda _: STREAM.pad(10, {"input_ids": 0}),
    "shuffle": lambda _: ROWS.shuffle(5, seed=1),
    "shuffle of a stream": lambda _: STREAM.map(same).shuffle(5),
    "take": lambda _: ROWS.take(5),
    "take of a stream": lambda _: STREAM.map(same).take(5),
    "skip": lambda _: ROWS.skip(3),
    "skip of a stream": lambda _: STREAM.map(same).skip(3),
    "stride": lambda _: ROWS.stride(3, 1),
    "stride of a stream": lambda _: STREAM.map(same).stride(3, 1),
    "enumerate": lambda _: STREAM.enumerate(count_column="n"),
    "select": lambda _: STREAM.select(["id", "text"]),
    "drop": lambda _: STREAM.drop("id"),
    "rename": lambda _: STREAM.rename({"id": "number"}),
    "train_valid_split": lambda _: ROWS.train_valid_split(0.5, key="id")[1],
    "train_valid_split of a stream": lambda _: STREAM.map(same).train_valid_split(0.5)[0],
    "concat_datasets": lambda _: ROWS.take(3) + ROWS,
    "concat_datasets of streams": lambda _: ROWS.take(3) + STREAM,
    "interleave_datasets": lambda _: bf.interleave_datasets([ROWS, ROWS], weights=[1, 2], stop="all"),
    "interleave_datasets of streams": lambda _: bf.interleave_datasets([ROWS, STREAM.map(same)], by="tokens"),
    "zip_datasets": lambda _: bf.zip_datasets([STREAM, STREAM.select("id").rename({"id": "other"})]),
    "batch": lambda _: ROWS.batch(4, drop_last=True),
    "batch with a window": lambda _: STREAM.batch(4, window=16, pad_to_multiple_of=8, pad_values={"input_ids": 7}),
    "batch of a policy": lambda _: ROWS.batch(bf.StaticShapes([4, 8, 12], 24), balance_group=2),
    "batch_by": lambda _: ROWS.batch_by(4, length),
    "batch_by_tokens": lambda _: STREAM.batch_by_tokens(24, buckets=[4, 12], shuffle_batches=False),
    "batch_by_tokens of a shuffled store": lambda folder: bf.from_store(
        folder / "store", shuffle=True, repeat=True
    ).batch_by_tokens(40, window=20),
    "pack": lambda _: ROWS.pack(16, rows=2, micro_batches=2),
    "pack of a stream": lambda _: STREAM.causal_labels().pack(16, window=20),
    "pack by cost": lambda _: ROWS.pack(16, balance_group=2, balance_cost=bf.AttentionCost(quadratic=0.25)),
    "methods of batches": lambda _: ROWS.batch(3).shard(0, 2).map(same).enumerate().prefetch(2).take(6),
}


def plain(value: Any) -> Any:
    """An item as JSON can hold it: arrays and tensors as their type and values."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.item()]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    assert value is None or isinstance(value, str | int | float | bool), type(value)
    return value


def items(it: Iterator[Any], count: int) -> list[Any]:
    return [plain(item) for item in islice(it, count)]


def left_behind(made: bf.Dataset | bf.Batches) -> dict[str, Any]:
    it: ResumableIterator[Any] = made.iter()
    before = items(it, BEFORE)
    state = json.loads(json.dumps(it.state_dict()))
    return {"before": before, "state": state, "after": items(it, AFTER)}


def loader() -> Loader:
    return STREAM.batch_by_tokens(40, window=20).loader()


def sampler() -> bf.BatchSampler:
    return bf.BatchSampler([length(row(number)) for number in range(40)], bf.TokenBudget(24), window=20)


def keep(made: Loader | bf.BatchSampler) -> dict[str, Any]:
    """Of what is resumed by `load_state_dict`."""
    it = iter(made)
    before = items(it, BEFORE)
    state = json.loads(json.dumps(made.state_dict()))
    return {"before": before, "state": state, "after": items(it, AFTER)}


def guard() -> bf.memory.OomGuard:
    """A device that has room for 128 tokens."""
    device = bf.memory.SimulatedOOM(128)
    return bf.memory.oom_guard(lambda batch, scale: float(device(batch["input_ids"]).sum() * scale), parameters=[])


def results(folder: Path, limit: int = len(TEXTS)) -> list[Any]:
    """The counts of all texts, from a run that is interrupted after some of them."""
    called = 0

    def limited(batch: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal called
        called += len(batch["text"])
        if called > limit:
            raise InterruptedRunError
        return counts(batch)

    return [plain(one) for one in bf.map_batches_in_order(limited, TEXTS, 4, window=8, output=folder, version="1")]


def write(folder: Path) -> None:
    """Everything that this release leaves behind, in a new folder."""
    from tests.tokenizers import MARKED, chatty

    folder.mkdir()
    samples = [row(number) for number in range(40)]
    for part in range(4):
        for extension in EXTENSIONS:
            path, rows = folder / "shards" / f"{part}{extension}", samples[part::4]
            if extension.startswith(".jsonl"):
                shards.write(path, rows)
            else:
                shards.write_table(path, pa.Table.from_pylist(rows), rows=4)
    chatty(MARKED).save_pretrained(folder / "tokenizer")
    files(folder, ".jsonl").causal_labels().to_store(folder / "store")
    found = {name: left_behind(make(folder)) for name, make in CHAINS.items()}
    found |= {"Loader": keep(loader()), "BatchSampler": keep(sampler())}
    guarded = guard()
    guarded({"input_ids": torch.ones(16, 16)})
    found["oom_guard"] = {"state": json.loads(json.dumps(guarded.state_dict()))}
    (folder / "states.json").write_text(json.dumps(found) + "\n", "utf-8")
    with suppress(InterruptedRunError):
        results(folder / "results", limit=20)
    bf.memory.MemoryModel.pretrained().anchored(4, 128, 10**9).save(folder / "memory_model.json")
