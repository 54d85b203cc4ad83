"""Samples from an iterable of Arrow tables: what Hugging Face's `datasets` streams."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import EMPTY, concat, with_column
from brimful.blocks.schema import SAMPLE_ROWS, as_text, fitted, from_text, settled, united
from brimful.blocks.typed import Typed
from brimful.core.errors import ORIGIN, StageError, StateError, origins
from brimful.core.stage import END, State, runtime
from brimful.sources.hugging_face import stored, tables_of
from brimful.sources.iterable import ROWS


@dataclass(frozen=True)
class FromTables(Typed):
    """The rows of a `datasets.IterableDataset` that has them in Arrow, in the types of its first 1,000.

    State: [epoch, rows handed on, the types as text]; a resume has the tables before those read again, and makes no row of
    them. (`IterableDataset.state_dict` is not used: what a shuffle of theirs had in its buffer would be lost.)
    """

    verb = "from_iterable"

    dataset: Any = runtime()

    def start(self, epoch: int) -> State:
        return [epoch, 0, ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, done, text = at
        blocks = _after(_drawn(self.dataset), done)
        schema = from_text(text) if text else vars(self).get("schema")
        if schema is None and epoch == done == 0:
            held = _first(blocks)
            schema = vars(self).setdefault("schema", _types(held))
            blocks = chain(held, blocks)
        elif schema is None:
            schema = self.schema
        text = text or as_text(schema)
        following = next(blocks, None)
        if following is None:
            yield EMPTY, END
        while following is not None:
            if isinstance(following, Exception):
                raise following
            block = _typed(following, schema, done)
            done += block.num_rows
            following = next(blocks, None)
            yield block, END if following is None else [epoch, done, text]

    def first_types(self) -> pa.Schema:
        return _types(_first(_drawn(self.dataset)))


def _drawn(dataset: Any) -> Iterator[Block | Exception]:
    """The rows of a data set, 256 at a time; where it fails, the last thing that comes is a StageError."""
    number = 0
    try:
        for table in tables_of(dataset, ROWS):
            if table.num_rows:
                yield stored(concat(table.to_batches()))
                number += table.num_rows
    except Exception as error:
        failure = StageError(f"from_iterable failed at row {number:,}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        yield failure


def _after(blocks: Iterator[Block | Exception], done: int) -> Iterator[Block | Exception]:
    """What comes after so many rows."""
    left = done
    while left:
        block = next(blocks, None)
        if block is None:
            raise StateError(f"the iterable has {done - left:,} samples, but this state was saved after {done:,}")
        if isinstance(block, Exception):
            return chain([block])
        if block.num_rows > left:
            return chain([block.slice(left)], blocks)
        left -= block.num_rows
    return blocks


def _first(blocks: Iterator[Block | Exception]) -> list[Block | Exception]:
    """Blocks that have the first 1,000 rows, or what there is."""
    held: list[Block | Exception] = []
    count = 0
    while count < SAMPLE_ROWS and (block := next(blocks, None)) is not None:
        held.append(block)
        count += 0 if isinstance(block, Exception) else block.num_rows
    return held


def _types(blocks: Iterable[Block | Exception]) -> pa.Schema:
    schemas = (block.schema for block in blocks if not isinstance(block, Exception))
    return settled(united(enumerate(schemas), "from_iterable"))


def _typed(block: Block, schema: pa.Schema, first: int) -> Block:
    place = f"from_iterable failed in rows {first:,} to {first + block.num_rows - 1:,}"
    if unknown := [name for name in block.schema.names if name not in schema.names]:
        raise StageError(f"{place}: column {unknown[0]!r} is not among those of the first {SAMPLE_ROWS:,} rows")
    try:
        rows = fitted(block, schema)
    except pa.ArrowException as error:
        raise StageError(f"{place}: {error}; cast the data set to one set of features") from error
    return with_column(rows, ORIGIN, origins("iterable", np.arange(first, first + rows.num_rows), "row"))
