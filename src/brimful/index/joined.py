"""Several data sets over one index, which has the rows of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.index.index import Index
from brimful.index.indexed import Indexed
from brimful.plan.once import once
from brimful.tables.blocks import Block
from brimful.tables.ragged import LABELS, array_of, concat, distinct
from brimful.tables.schema import united
from brimful.tables.several import conformed


@dataclass(frozen=True)
class Joined(Indexed):
    """Abstract: samples of several data sets. One index has the rows of all of them."""

    fills_nulls: ClassVar[bool] = True

    upstreams: tuple[Indexed, ...]

    @property
    def index(self) -> Index:
        return self._joined[0]

    @property
    def shifts(self) -> list[int]:
        """The number that is added to the row numbers of each data set."""
        return self._joined[1]

    @once
    def _joined(self) -> tuple[Index, list[int]]:
        """One index for all data sets, and the shifts. An index that several data sets share is in it once."""
        indexes = [upstream.index for upstream in self.upstreams]
        numbers: dict[int, int] = {}
        for number, index in enumerate(indexes):
            numbers.setdefault(id(index), number)
        unique = [indexes[number] for number in numbers.values()]
        if len(unique) == 1:
            return unique[0], [0] * len(indexes)
        whole = JoinedIndex(tuple(unique), self.verb, tuple(numbers.values()))
        starts = {id(index): int(start) for index, start in zip(unique, whole.starts)}
        return whole, [starts[id(index)] for index in indexes]


@dataclass(frozen=True, eq=False)
class JoinedIndex(Index):
    """The rows of the first, then those of the second, and so on.

    Args:
        what: the verb that joins them, for messages.
        numbers: the number of each part's data set among those that are joined, for messages.
    Price: what each of them costs; rows of several of them at once are copied once more.
    """

    parts: tuple[Index, ...]
    what: str
    numbers: tuple[int, ...]

    @once
    def starts(self) -> NDArray[np.int64]:
        """The number of the first row of each part, and of the row after the last."""
        return np.cumsum([0, *(len(part) for part in self.parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return np.concatenate([part.lengths(columns, required) for part in self.parts])

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        shape = (len(numbers), len(columns)) if len(columns) > 1 else (len(numbers),)
        out = np.zeros(shape, dtype=np.int64)
        for part, at, own in self._by_part(numbers):
            counts = self.parts[part].lengths_at(own, columns, required)
            out[at] = counts if counts.ndim == out.ndim else 0  # a part without the columns has zeros, (n,)
        return out

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        shares = list(self._by_part(numbers))
        if len(shares) == 1:
            part, _, own = shares[0]
            if self.parts[part].schema.equals(self.schema):
                return self.parts[part].locate(own)
        blocks: list[Block] = []
        out = np.empty(len(numbers), dtype=np.int64)
        start = 0
        for part, at, own in shares:
            block, rows = self.parts[part].locate(own)
            if block.num_rows > 2 * len(rows):  # rather than join all of a block in memory to others
                block, rows = block.take(array_of(rows)), np.arange(len(rows))
            out[at] = rows + start
            start += block.num_rows
            blocks.append(conformed(block, self.schema, self.what, self.numbers[part]))
        return concat(blocks), out

    @once
    def schema(self) -> pa.Schema:
        """The columns of all parts; of a sample of a part that has not one of them, it is null."""
        return united(((number, part.schema) for number, part in zip(self.numbers, self.parts)), self.what)

    @once
    def list_columns(self) -> Sequence[str]:
        return [
            name
            for name in self.schema.names
            if all(name in part.list_columns or name not in part.schema.names for part in self.parts)
        ]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        if any(part.num_labels_at(numbers[:0], column) is None for part in self.parts):
            return None
        out = np.zeros((3, len(numbers)), dtype=np.int64)
        for part, at, own in self._by_part(numbers):
            counts = self.parts[part].num_labels_at(own, column)
            assert counts is not None
            out[:, at] = counts
        return out

    def _by_part(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Each part that has some of the rows, the places of these among `numbers`, and their numbers in the part."""
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        for part in distinct(owners).tolist():
            at = np.flatnonzero(owners == part)
            yield part, at, numbers[at] - self.starts[part]
