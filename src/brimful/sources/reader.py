"""The rows of one shard, read forward, each with the position after it; what a bad record leads to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import concat, with_column
from brimful.core.errors import ORIGIN, DataError, OnError, StageError, StateError, count, origins, skipped

Position: TypeAlias = tuple[int, ...]
"""A place in a shard, before a record: a few integers, as many as its format needs. The first says how much of the shard lies
before it, as a rule in bytes (of the decompressed shard): blocks are cut by it. The last says how many units (lines, rows) lie
before it: a record may have several."""


class PlacedRows(NamedTuple):
    """Rows of a shard, and the position after each, int64 (n, k).

    Args:
        ends: where stages have run over the rows: how many rows of the block they have become up to each of them, int64 (n,);
            None: one each.
    """

    block: Block
    positions: NDArray[np.int64]
    ends: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    def split(self, rows: int) -> tuple[PlacedRows, PlacedRows]:
        """The first of them, and the others."""
        if self.ends is None:
            cut, first, rest = rows, None, None
        else:
            cut = int(self.ends[rows - 1]) if rows else 0
            first, rest = self.ends[:rows], self.ends[rows:] - cut
        block, positions = self.block, self.positions
        return PlacedRows(block.slice(0, cut), positions[:rows], first), PlacedRows(
            block.slice(cut), positions[rows:], rest
        )

    def then(self, more: PlacedRows) -> PlacedRows:
        """These and those after them."""
        if not self.num_rows:
            return more
        ends = None
        if self.ends is not None and more.ends is not None:
            ends = np.concatenate((self.ends, more.ends + self.block.num_rows))
        positions = np.concatenate((self.positions, more.positions)) if more.num_rows else self.positions
        return PlacedRows(concat([self.block, more.block]), positions, ends)


class Wanted(NamedTuple):
    """What is to be read of a shard.

    Args:
        name: of the shard, in messages.
        at: the position from which on.
        schema: of its rows.
        closed: whether a row may have no other columns; else these are left out.
        on_error: what a bad record leads to.
    """

    name: str
    at: Position
    schema: pa.Schema
    closed: bool
    on_error: OnError


@dataclass(frozen=True)
class Parsed:
    """What some records gave: rows, and for each the number of its record among them, counted from 0.

    `errors`: (number, message) of the records that gave no row.
    """

    block: Block
    records: NDArray[np.int64]
    errors: list[tuple[int, str]]


class Reader(ABC):
    """Abstract: reads rows from a position on. A bad record is an error after the rows before it, or is skipped."""

    unit: ClassVar[str]

    def __init__(self, wanted: Wanted) -> None:
        self.at = wanted.at
        self._name, self._on_error = wanted.name, wanted.on_error
        self._failure: DataError | None = None

    @abstractmethod
    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        """The next records, and the position after each of them, int64 (n, k); None at the end.

        Raises:
            DataError, StageError: nothing more can be had of this shard; with the place.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""

    def read(self) -> PlacedRows | None:
        """The next rows, perhaps none; None at the end."""
        if self._failure is not None:
            raise self._failure
        try:
            more = self.parse()
        except (DataError, StageError) as error:
            if self._on_error == "raise":
                raise
            skipped(type(error)(f"{error}; all that follows in this shard is left out with it"))
            count("skipped_shards", 1)
            return None
        if more is None:
            return None
        parsed, positions = more
        records = parsed.records
        before = np.concatenate((self.at[-1:], positions[:-1, -1]))
        for record, message in parsed.errors:
            bad = DataError(f"{self.place(int(before[record]))}: {message}")
            if self._on_error == "raise":
                self._failure, records = bad, records[records < record]
                break
            skipped(bad)
        origin = origins(f"shard {self._name}", before[records] + 1, self.unit)
        self.at = tuple(positions[-1].tolist())
        return PlacedRows(with_column(parsed.block.slice(0, len(records)), ORIGIN, origin), positions[records])

    def place(self, before: int | None = None) -> str:
        """Where the record is that has so many units before it, or else the next one, in words."""
        return f"shard {self._name}, {self.unit} {(self.at[-1] if before is None else before) + 1:,}"

    def located(self, error: Exception) -> Exception:
        """What reading the file raised, with the place. A fault of the store, which says nothing about the data, is no
        DataError: it is never skipped."""
        if isinstance(error, DataError | StateError | TimeoutError):
            return type(error)(f"{self.place()}: {error}")
        return OSError(f"{self.place()}: cannot be read on: {type(error).__name__}: {error}")
