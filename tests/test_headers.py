"""What a state says of each verb: its parameters under their public names. A changed header breaks saved states."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import brimful as bf

GOLDEN: Final = Path(__file__).parent / "headers.json"
"""Of all verbs. A change of it is a breaking change: `python -c "from tests.test_headers import write; write()"`."""
NO_PARAMETERS: Final = {
    "verb": "the method or function that was called",
    "datasets": "the headers of what is joined",
    "of": "the header of what `cache` keeps",
    "rows": "how many there are",
    "checksums": "those of their values, by column",
    "crc32": "a checksum of which rows a filter or a split keeps, or of what made them",
    "lengths_crc32": "a checksum of lengths that were given, or measured",
    "digest": "of names and sizes of shards, or of a store's manifest",
    "shards": "how many there are",
    "kept": "how many rows a filter or a split keeps",
    "side": "of a split",
    "chat_template": "a digest of it",
    "runs": "whether a mixture finds its rows by place, or forward",
    "sources": "the names of what a mixture mixes",
    "draws": "how many stages draw random numbers below a mixture with names",
    "before": "the weights that an indexed mixture had up to a place",
    "policy": "what `batch` was given, or made of what it was given",
    "names": "what `select`, `drop` and `rename` were given",
}
"""What a header holds beside parameters; docs/data.md has the list."""


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return sample


def truth(sample: dict[str, Any]) -> bool:
    return True


def several(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample]


def block_of(block: Any) -> Any:
    return block


def counted(carry: Any, sample: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return carry, sample


def length(sample: dict[str, Any]) -> int:
    return len(sample["input_ids"])


def letters(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


ROWS: Final = bf.from_sequence(
    [{"id": number, "text": "a" * number, "input_ids": [1] * number} for number in range(1, 9)]
)
STREAM: Final = ROWS.stream().map(same)
MADE: Final[dict[str, Callable[[], bf.Dataset | bf.Batches]]] = {
    "from_sequence": lambda: bf.from_sequence(["a"], shuffle=True, repeat=True),
    "from_dataset": lambda: bf.from_dataset([{"input_ids": [1]}], lengths=[1], shuffle=True),
    "from_dataset with measured lengths": lambda: bf.from_dataset([{"input_ids": [1]}]).batch(1),
    "from_iterable": lambda: bf.from_iterable([{"a": 1}]),
    "map": lambda: ROWS.map(same),
    "map with a seed": lambda: ROWS.map(drawn, seed=3, on_error="skip"),
    "filter": lambda: ROWS.filter(truth),
    "filter of a stream": lambda: STREAM.filter(truth),
    "filter_map": lambda: ROWS.filter_map(same),
    "flat_map": lambda: ROWS.flat_map(several),
    "map_blocks": lambda: ROWS.map_blocks(block_of),
    "scan": lambda: ROWS.scan(counted, 0),
    "sliding_window": lambda: ROWS.sliding_window(2),
    "tokenize": lambda: ROWS.tokenize(letters, output_column="tokens", remove_columns="text"),
    "add_bos_eos": lambda: ROWS.add_bos_eos(1, None),
    "causal_labels": lambda: ROWS.causal_labels(shift=True),
    "chunk": lambda: ROWS.chunk(4, drop_remainder=False),
    "concat_chunk": lambda: ROWS.concat_chunk(4),
    "pack_chunk": lambda: ROWS.pack_chunk(4, discard_long_samples=True),
    "pad": lambda: ROWS.pad(9, {"input_ids": 0}),
    "shuffle": lambda: ROWS.shuffle(3, seed=1),
    "shuffle of a stream": lambda: STREAM.shuffle(3),
    "take": lambda: ROWS.take(3),
    "take of a stream": lambda: STREAM.take(3),
    "skip": lambda: ROWS.skip(3),
    "skip of a stream": lambda: STREAM.skip(3),
    "stride": lambda: ROWS.stride(3, 1),
    "stride of a stream": lambda: STREAM.stride(3, 1),
    "enumerate": lambda: ROWS.enumerate(count_column="n"),
    "select": lambda: ROWS.select(["id", "text"]),
    "drop": lambda: STREAM.drop("id"),
    "rename": lambda: ROWS.rename({"id": "number"}),
    "train_valid_split": lambda: ROWS.train_valid_split(0.5, key="id")[1],
    "train_valid_split of a stream": lambda: STREAM.train_valid_split(0.5)[0],
    "concat_datasets": lambda: ROWS + ROWS.take(1),
    "concat_datasets of streams": lambda: ROWS + STREAM,
    "interleave_datasets": lambda: bf.interleave_datasets([ROWS, ROWS], weights=[1, 2], stop="all"),
    "interleave_datasets of streams": lambda: bf.interleave_datasets([ROWS, STREAM], by="tokens"),
    "zip_datasets": lambda: bf.zip_datasets([ROWS, ROWS.select("id").rename({"id": "other"})]),
    "cache": lambda: STREAM.cache(),
    "batch": lambda: ROWS.batch(4, drop_last=True),
    "batch with a window": lambda: ROWS.batch(4, window=8, pad_to_multiple_of=8, pad_values={"input_ids": 7}),
    "batch_by_tokens": lambda: STREAM.batch_by_tokens(64, buckets=[4, 8], shuffle_batches=False).take(3),
    "batch of static shapes": lambda: ROWS.batch(
        bf.StaticShapes([4, 8], 16), balance_group=2, token_columns=["labels"]
    ),
    "batch_by": lambda: ROWS.batch_by(4, length),
    "pack": lambda: ROWS.pack(16, rows=2, overlong="truncate", micro_batches=2).enumerate(),
    "pack by cost": lambda: ROWS.pack(16, balance_group=2, balance_cost=bf.AttentionCost(quadratic=0.25)),
    "batches after methods": lambda: ROWS.batch(4).shard(0, 2).map(same).prefetch(2).take(2),
}


def header(made: bf.Dataset | bf.Batches) -> list[Any]:
    found: list[Any] = made.iter().state_dict()["header"]
    return found


@pytest.mark.parametrize("name", MADE)
def test_the_header_of_a_verb_is_what_it_was(name: str) -> None:
    assert header(MADE[name]()) == json.loads(GOLDEN.read_text("utf-8"))[name]


def test_a_header_holds_parameters_by_their_public_names() -> None:
    faces = [bf.from_files, bf.from_sequence, bf.from_dataset, bf.from_iterable, bf.from_store, bf.interleave_datasets]
    faces += [
        method for owner in (bf.Dataset, bf.Batches) for _, method in inspect.getmembers(owner, inspect.isfunction)
    ]
    faces += [bf.TokenBudget, bf.FixedSize, bf.StaticShapes, bf.Packed]
    public = {name for face in faces for name in inspect.signature(face).parameters}

    def check(stages: list[Any]) -> None:
        for stage in stages:
            assert set(stage) <= public | NO_PARAMETERS.keys(), stage["verb"]
            for branch in (*stage.get("datasets", ()), *([stage["of"]] if "of" in stage else ())):
                check(branch)

    for stages in json.loads(GOLDEN.read_text("utf-8")).values():
        check(stages)


def test_the_docs_name_what_is_no_parameter() -> None:
    text = (Path(__file__).parents[1] / "docs" / "data.md").read_text("utf-8")
    assert [name for name in NO_PARAMETERS if f"`{name}`" not in text] == []


def write() -> None:
    GOLDEN.write_text(json.dumps({name: header(make()) for name, make in MADE.items()}, indent=1) + "\n", "utf-8")
