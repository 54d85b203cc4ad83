"""An index without the tokens that an attention_mask hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import MASK, array_of
from brimful.blocks.unmasked import num_hidden, unmasked
from brimful.core.once import once
from brimful.index.index import Index


@dataclass(frozen=True, eq=False)
class UnmaskedIndex(Index):
    """The rows of `base` without the values that `attention_mask`, one of `columns`, hides in these.

    Price: where there is a mask, it is read for the lengths too, about 5 ns a token.
    """

    base: Index
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.base)

    @property
    def schema(self) -> pa.Schema:
        return self.base.schema

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.lengths_at(np.arange(len(self)), columns, required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        lengths = self.base.lengths_at(numbers, columns, required)
        if self._masks is None or not len(numbers):
            return lengths
        hidden = num_hidden(*self._masks.locate(numbers))
        return np.maximum(lengths - hidden, 0)  # lists of two lengths: `locate` says so

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block, rows = self.base.locate(numbers)
        if self._masks is None or not num_hidden(block, rows).any():
            return block, rows
        return unmasked(block.take(array_of(rows)), self.columns), np.arange(len(rows))

    @property
    def knows_labels(self) -> bool:
        return self.base.knows_labels

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        # those of rows with hidden tokens are looked at, as of all that are cut
        return self.base.num_labels_at(numbers)

    def fingerprint(self) -> Any:
        return self.base.fingerprint()

    @once
    def _masks(self) -> Index | None:
        """The rows with their masks; None where there are none."""
        return self.base.only([MASK]) if MASK in self.columns and MASK in self.schema.names else None
