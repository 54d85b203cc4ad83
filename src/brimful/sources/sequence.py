"""Samples in memory: a list of dicts or of strings, a Hugging Face map-style data set, an Arrow table."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful import random
from brimful.errors import ORIGIN, origins
from brimful.order import Order
from brimful.ragged import EMPTY, concat, fingerprint, token_counts, with_column
from brimful.rows import Block
from brimful.sources.index import Index
from brimful.sources.iterable import drawn, numbered
from brimful.stream import BLOCK_ROWS, END, Stage, State, describe, place, running

_VIEWS: Final = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""What Arrow cannot take rows of, and what stands for it."""


@dataclass(frozen=True, eq=False)
class SequenceIndex(Index):
    """A list of dicts or strings, a Hugging Face map-style data set, or an Arrow table; columnar from the first use on."""

    sequence: Any

    @cached_property
    def block(self) -> Block:
        rows = self.sequence
        if hasattr(rows, "with_format"):  # Hugging Face datasets
            rows = rows.with_format("arrow")[:]
        if isinstance(rows, pa.Table):
            kinds = pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in rows.schema])
            block = concat(rows.cast(kinds).to_batches())
            return with_column(block, ORIGIN, origins("sequence", np.arange(block.num_rows), "row"))
        samples = list(drawn((rows[row] for row in range(len(rows))), "from_sequence", 0))
        if samples and isinstance(samples[-1], Exception):
            raise samples[-1]
        starts = range(0, len(samples), BLOCK_ROWS)
        return concat(numbered(samples[first : first + BLOCK_ROWS], "from_sequence", first) for first in starts)

    def __len__(self) -> int:
        return int(self.block.num_rows)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return token_counts(self.block, columns, required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.block, numbers

    def fingerprint(self) -> dict[str, int]:
        return {"rows": len(self), "crc32": fingerprint(self.block)}


@dataclass(frozen=True, eq=False)
class CachedIndex(Index):
    """The rows of the first epoch of a chain, read once, kept in memory."""

    upstream: Stage[Block]

    @cached_property
    def block(self) -> Block:
        with running(self.upstream, self.upstream.start(0)) as items:
            return concat(block for block, _ in items)

    def __len__(self) -> int:
        return int(self.block.num_rows)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return token_counts(self.block, columns, required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.block, numbers

    def fingerprint(self) -> dict[str, Any]:
        return {"cached": describe(self.upstream), "crc32": fingerprint(self.block)}


@dataclass(frozen=True)
class FromSequence(Stage[Block]):
    """The samples of an index, as they are or in another order each epoch. State: [epoch, samples handed on]."""

    rows: Index
    shuffle: bool
    seed: int

    def start(self, epoch: int) -> State:
        return [epoch, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, done = at
        count = len(self.rows)
        order = self.order(epoch)
        if not count:
            yield EMPTY, END
        for first in range(done, count, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, count)
            block, rows = self.rows.locate(order.rows(first, last))
            follow = rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
            taken = block.slice(int(rows[0]), len(rows)) if follow else block.take(pa.array(rows))
            yield taken, [epoch, last] if last < count else END

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        return Order(len(self.rows), random.key(self.seed, place(self), epoch) if self.shuffle else None)
