"""Rows without the tokens that an attention_mask hides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import MASK, gather, is_ragged, list_array, offsets_of, ragged, with_column
from brimful.blocks.rechunk import equally_long


def unmasked(block: Block, columns: Sequence[str]) -> Block:
    """A block in which some columns, those that it has, are without the values that `attention_mask`, one of them, hides.

    Raises:
        DataError: one of them is not as long as the mask; with file and line.
    Price: nothing where nothing is hidden; else about 10 ns a token.
    """
    rows = np.arange(block.num_rows)
    if MASK not in columns or not (hidden := num_hidden(block, rows)).any():
        return block
    names = [name for name in columns if name in block.schema.names and is_ragged(block.schema.field(name).type)]
    lists = equally_long(block, names)
    mask = lists[names.index(MASK)]
    seen = mask.values[mask.offsets[0] : mask.offsets[-1]] != 0
    offsets = offsets_of(mask.lengths - hidden)
    for name, column in zip(names, lists, strict=True):
        values = column.values[column.offsets[0] : column.offsets[-1]]
        block = with_column(block, name, list_array(values[seen], offsets))
    return block


def num_hidden(block: Block, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens of some rows of a block `attention_mask` hides, (len(rows),); zeros where it is no list of numbers."""
    if MASK not in block.schema.names or not is_ragged(block.schema.field(MASK).type):
        return np.zeros(len(rows), dtype=np.int64)
    mask = ragged(block, MASK)
    values, offsets = gather(mask.values, *mask.spans(rows))
    before = offsets_of(values == 0)
    hidden: NDArray[np.int64] = before[offsets[1:]] - before[offsets[:-1]]
    return hidden
