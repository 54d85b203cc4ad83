"""Small data sets for tests, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import brimful as bf
from brimful.core.iterator import ResumableIterator
from brimful.core.stage import Stage
from tests.shards import write


def all_stages(stage: Stage[Any]) -> Iterator[Stage[Any]]:
    """A stage, and those that it reads through, from itself down."""
    yield stage
    for below in stage.inputs:
        yield from all_stages(below)


def tokens(*rows: Sequence[int], **columns: Sequence[Any]) -> bf.Dataset:
    """A sample a row, with other columns as they are given."""
    others = [dict(zip(columns, values)) for values in zip(*columns.values())] if columns else [{} for _ in rows]
    return bf.from_sequence([{"input_ids": list(row), **other} for row, other in zip(rows, others, strict=True)])


def ids(dataset: bf.Dataset, column: str = "input_ids") -> list[list[int]]:
    return [sample[column].tolist() for sample in dataset]


def letters(text: str, **options: Any) -> bf.Dataset:
    """A sample a letter."""
    return bf.from_sequence([{"letter": letter} for letter in text], **options)


def streamed(text: str, repeat: bool = False) -> bf.Dataset:
    """The same, of which no sample can be had but by reading those before it."""
    return bf.from_iterable([{"letter": letter} for letter in text], repeat=repeat)


def spelled(dataset: bf.Dataset) -> str:
    return "".join(sample["letter"] for sample in dataset)


def shard(folder: Path, rows: Sequence[Any]) -> bf.Dataset:
    """Rows that have a file and a line."""
    return bf.from_files(write(folder / "a.jsonl", rows))


def counted(dataset: bf.Dataset) -> tuple[list[dict[str, Any]], ResumableIterator[Any]]:
    """All samples, and the iterator with its stats."""
    it = dataset.iter()
    return list(it), it


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def failing_at(letter: str) -> Callable[[dict[str, Any]], Any]:
    def fails(sample: dict[str, Any], *_: Any) -> Any:
        if sample["letter"] == letter:
            raise KeyError("boom")
        return sample

    return fails
