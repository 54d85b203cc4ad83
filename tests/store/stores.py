"""Stores for tests: of little data, in many files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import brimful as bf
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State
from brimful.store import writer
from brimful.store.manifest import Manifest
from brimful.tables.blocks import Block
from brimful.tables.origins import ORIGIN, origins


@dataclass(frozen=True)
class Given(Stage[Block]):
    """Blocks as they are; the `fail_at`th is an error. The state is the number of the next one."""

    blocks: tuple[Block, ...]
    name: str = "given"
    fail_at: int | None = None

    verb = "given"

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "rows": sum(block.num_rows for block in self.blocks)}

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        for number in range(at, len(self.blocks)):
            if number == self.fail_at:
                raise KeyboardInterrupt
            block = self.blocks[number]
            if block.num_rows:
                block = block.append_column(ORIGIN, origins("given", np.arange(block.num_rows), "row"))
            yield block, number + 1 if number + 1 < len(self.blocks) else END


@contextmanager
def small(batch_bytes: int, file_bytes: int) -> Iterator[None]:
    """Record batches and files so small that little data has many of them."""
    with patch.object(writer, "BATCH_BYTES", batch_bytes), patch.object(writer, "FILE_BYTES", file_bytes):
        yield


def blocks_of(lengths: list[int], rows: int) -> tuple[Block, ...]:
    """Samples of these lengths, `rows` a block: tokens that tell them apart, an id, a text."""
    ids = range(len(lengths))
    samples = [
        {
            "input_ids": [(7 * number + place) % 1000 for place in range(lengths[number])],
            "id": number,
            "text": f"t{number}",
        }
        for number in ids
    ]
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("id", pa.int64()), ("text", pa.string())])
    return tuple(
        pa.RecordBatch.from_pylist(samples[first : first + rows], schema) for first in range(0, len(samples), rows)
    )


def store_of(path: Path, blocks: tuple[Block, ...], batch_bytes: int = 1 << 23, file_bytes: int = 1 << 28) -> Manifest:
    with small(batch_bytes, file_bytes):
        return writer.write_store(Given(blocks), path)


def rows_of(dataset: bf.Dataset) -> list[dict[str, Any]]:
    """The samples of a data set, lists as lists."""
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        for sample in dataset
    ]
