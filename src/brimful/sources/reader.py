"""The rows of one shard, read forward, each with the position after it; what a bad record leads to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.errors import ORIGIN, DataError, OnError, StageError, origins, skipped
from brimful.ragged import with_column
from brimful.rows import Block


class Position(NamedTuple):
    """A place in a shard, before a record: the byte (of the decompressed shard), and how many lines lie before it.

    Where a user's function reads the shard, both are the number of rows before it.
    """

    offset: int
    line: int


START: Final = Position(0, 0)


class Rows(NamedTuple):
    """Rows of a shard, and the position after each, int64 (n,) each."""

    block: Block
    offsets: NDArray[np.int64]
    lines: NDArray[np.int64]


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

    def __init__(self, name: str, at: Position, on_error: OnError) -> None:
        self.at = at
        self._name, self._on_error = name, on_error
        self._failure: DataError | None = None

    @abstractmethod
    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        """The next records, and the offset after each of them, int64 (n,); None at the end.

        Raises:
            DataError, StageError: nothing more can be had of this shard; with the place.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""

    def read(self) -> Rows | None:
        """The next rows, perhaps none; None at the end."""
        if self._failure is not None:
            raise self._failure
        try:
            more = self.parse()
        except (DataError, StageError) as error:
            if self._on_error == "raise":
                raise
            skipped(error)
            return None
        if more is None:
            return None
        parsed, ends = more
        records = parsed.records
        for record, message in parsed.errors:
            bad = DataError(f"{self.place(record)}: {message}")
            if self._on_error == "raise":
                self._failure, records = bad, records[records < record]
                break
            skipped(bad)
        numbers = records + self.at.line + 1
        origin = origins(f"shard {self._name}", numbers, self.unit)
        self.at = Position(int(ends[-1]), self.at.line + len(ends))
        return Rows(with_column(parsed.block.slice(0, len(records)), ORIGIN, origin), ends[records], numbers)

    def place(self, record: int = 0) -> str:
        """Where a record among the next ones is, in words."""
        return f"shard {self._name}, {self.unit} {self.at.line + record + 1:,}"
