"""Several indexes as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import array_of, concat
from brimful.blocks.schema import united
from brimful.blocks.typed import conformed
from brimful.core.distinct import distinct
from brimful.core.once import once
from brimful.index.index import Index


def joined(indexes: Sequence[Index], what: str) -> tuple[Index, list[int]]:
    """One index for several, in which each object is once; and what to add to the row numbers of each of them.

    `what` joins them, for the message of an error.
    """
    numbers: dict[int, int] = {}
    for number, index in enumerate(indexes):
        numbers.setdefault(id(index), number)
    unique = [indexes[number] for number in numbers.values()]
    if len(unique) == 1:
        return unique[0], [0] * len(indexes)
    whole = JoinedIndex(tuple(unique), what, tuple(numbers.values()))
    starts = {id(index): int(start) for index, start in zip(unique, whole.starts)}
    return whole, [starts[id(index)] for index in indexes]


@dataclass(frozen=True, eq=False)
class JoinedIndex(Index):
    """The rows of the first, then those of the second, and so on.

    Args:
        what: joins them.
        numbers: of the data sets that they are of.
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
        owners = self._owners(numbers)
        shape = (len(numbers), len(columns)) if len(columns) > 1 else (len(numbers),)
        out = np.zeros(shape, dtype=np.int64)
        for part in distinct(owners).tolist():
            at = owners == part
            counts = self.parts[part].lengths_at(numbers[at] - self.starts[part], columns, required)
            out[at] = counts if counts.ndim == out.ndim else 0  # a part without the columns has zeros, (n,)
        return out

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        owners = self._owners(numbers)
        touched: list[int] = distinct(owners).tolist()
        if len(touched) == 1 and self.parts[touched[0]].schema.equals(self.schema):
            return self.parts[touched[0]].locate(numbers - int(self.starts[touched[0]]))
        blocks: list[Block] = []
        out = np.empty(len(numbers), dtype=np.int64)
        start = 0
        for part in touched:
            at = owners == part
            block, rows = self.parts[part].locate(numbers[at] - self.starts[part])
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

    @property
    def knows_labels(self) -> bool:
        return all(part.knows_labels for part in self.parts)

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        owners = self._owners(numbers)
        out = np.zeros((3, len(numbers)), dtype=np.int64)
        for part in distinct(owners):
            at = owners == part
            out[:, at] = self.parts[part].num_labels_at(numbers[at] - self.starts[part])
        return out

    def fingerprint(self) -> list[Any]:
        return [part.fingerprint() for part in self.parts]

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The part that each row is of."""
        return np.searchsorted(self.starts, numbers, side="right") - 1
