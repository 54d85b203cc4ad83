"""Several indexes as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.once import once
from brimful.ragged import concat
from brimful.rows import Block
from brimful.sources.index import Index, Regular

MOST_ALONG: Final = 2
"""Times the rows wanted: of a block that has more, they are taken before it is joined to others."""


def joined(indexes: Sequence[Index]) -> tuple[Index, list[int]]:
    """One index for several, in which each object is once; and what to add to the row numbers of each of them."""
    unique = list({id(index): index for index in indexes}.values())
    if len(unique) == 1:
        return unique[0], [0] * len(indexes)
    whole = JoinedIndex(tuple(unique))
    starts = {id(index): int(start) for index, start in zip(unique, whole.starts)}
    return whole, [starts[id(index)] for index in indexes]


@dataclass(frozen=True, eq=False)
class JoinedIndex(Index):
    """The rows of the first, then those of the second, and so on.

    Price: what each of them costs; rows of several of them at once are copied once more.
    """

    parts: tuple[Index, ...]

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
        for part in np.unique(owners).tolist():
            at = owners == part
            counts = self.parts[part].lengths_at(numbers[at] - self.starts[part], columns, required)
            out[at] = counts if counts.ndim == out.ndim else 0  # a part without the columns has zeros, (n,)
        return out

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        owners = self._owners(numbers)
        touched = np.unique(owners)
        if len(touched) == 1:
            only = int(touched[0])
            return self.parts[only].locate(numbers - int(self.starts[only]))
        blocks: list[Block] = []
        out = np.empty(len(numbers), dtype=np.int64)
        start = 0
        for part in touched.tolist():
            at = owners == part
            block, rows = self.parts[part].locate(numbers[at] - self.starts[part])
            if block.num_rows > MOST_ALONG * len(rows):
                block, rows = block.take(pa.array(rows)), np.arange(len(rows))
            out[at] = rows + start
            start += block.num_rows
            blocks.append(block)
        return concat(blocks), out

    @property
    def regular(self) -> Regular | None:
        """Those of all parts, where they are the same."""
        first = self.parts[0].regular
        return first if all(part.regular == first for part in self.parts[1:]) else None

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        owners = self._owners(numbers)
        out = np.zeros((3, len(numbers)), dtype=np.int64)
        for part in np.unique(owners):
            at = owners == part
            counts = self.parts[part].num_labels_at(numbers[at] - self.starts[part])
            if counts is None:
                return None
            out[:, at] = counts
        return out

    def fingerprint(self) -> list[Any]:
        return [part.fingerprint() for part in self.parts]

    def _owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The part that each row is of."""
        return np.searchsorted(self.starts, numbers, side="right") - 1
