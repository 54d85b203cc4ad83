"""Each sample padded to one length."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from brimful.plan.errors import DataError, settle
from brimful.tables import ragged as kernels
from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.origins import where
from brimful.tables.ragged import MASK, list_array, offsets_of, ragged, with_column


@dataclass(frozen=True)
class Pad(Blockwise):
    """Fills each list of the columns in `values` to `length` values; a longer one is an error.

    What was there is remembered in `attention_mask`, by the first of these columns; one that the rows have is filled too.
    """

    length: int
    values: dict[str, int]

    def __post_init__(self) -> None:
        settle(self, "length", 1, "token")
        if not self.values:
            raise ValueError("values must name at least one column (got none)")
        value: Any
        for name, value in self.values.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"values[{name!r}] of pad must be a number (got {value!r})")
            if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**64:
                raise ValueError(f"values[{name!r}] of pad must fit into 64 bits (got {value!r:.80})")

    def apply(self, block: Block) -> Block:
        masked = MASK in self.values or block.schema.get_field_index(MASK) >= 0
        if not masked:
            column = ragged(block, next(iter(self.values)))
            ones = np.ones(int(column.lengths.sum()), dtype=np.int8)
            block = with_column(block, MASK, list_array(ones, offsets_of(column.lengths)))
        for name, value in (self.values | {MASK: self.values.get(MASK, 0)}).items():
            block = self._filled(block, name, value)
        return block

    def _filled(self, block: Block, name: str, value: int) -> Block:
        column = ragged(block, name)
        long = np.flatnonzero(column.lengths > self.length)
        if len(long):
            raise DataError(
                f"pad: column {name!r} has {column.lengths[long[0]]:,} values ({where(block, int(long[0]))}), more than "
                f"length={self.length:,}; chunk, truncate or filter it"
            )
        own = column.values.dtype
        fraction = own.kind in "iu" and not float(value).is_integer()
        if fraction or (own.kind == "f" and float(np.finfo(own).max) < abs(float(value)) < np.inf):
            raise DataError(f"pad: column {name!r} holds {own}, which cannot hold its value {value}")
        spans = column.spans(np.arange(block.num_rows))
        dtype = kernels.holding(own, value)
        padded = kernels.pad(column.values, *spans, self.length, value, dtype, left=False)
        offsets = np.arange(block.num_rows + 1) * self.length
        return with_column(block, name, list_array(padded.ravel(), offsets))
