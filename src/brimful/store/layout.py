"""How the rows of a store are cut into record batches, and those into files; and the memory that they come to."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import concat, offsets_of
from brimful.store.manifest import StoredFile

HEAD_BYTES: Final = 1024
"""An array's header is within so many."""


class Ranges(NamedTuple):
    """Ranges of rows, ascending, none across the end of a record batch; int64 arrays, one number a range.

    Args:
        batches: the record batch.
        firsts: the number of the first row.
        counts: how many rows.
        places: where in the block they come to stand.
    """

    batches: NDArray[np.int64]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of each row."""
        return np.repeat(self.firsts - self.places, self.counts) + np.arange(self.counts.sum())


class Layout:
    """How the rows of a store are cut into record batches, and those into files; int64 arrays.

    Args:
        starts: the number of the first row of each record batch; then, of all rows.
        file_of: the file of each record batch.
        first_batches: the first record batch of each file.
    """

    def __init__(self, files: Sequence[StoredFile]) -> None:
        rows = np.array([count for file in files for count in file.batches], dtype=np.int64)
        per_file = np.array([len(file.batches) for file in files], dtype=np.int64)
        self.starts = offsets_of(rows)
        self.first_batches = np.cumsum(per_file) - per_file
        self.file_of = np.repeat(np.arange(len(per_file)), per_file)

    def ranges(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Ranges:
        """Ranges of rows cut where record batches end."""
        batches = np.searchsorted(self.starts, firsts, side="right") - 1
        spanned = np.searchsorted(self.starts, lasts, side="left") - batches
        if (spanned > 1).any():
            owners = np.repeat(np.arange(len(firsts)), spanned)
            nth = np.arange(len(owners)) - (np.cumsum(spanned) - spanned)[owners]
            batches = batches[owners] + nth
            firsts = np.maximum(firsts[owners], self.starts[batches])
            lasts = np.minimum(lasts[owners], self.starts[batches + 1])
        counts = lasts - firsts
        return Ranges(batches, firsts, counts, np.cumsum(counts) - counts)


def joined(blocks: list[Block]) -> Block:
    """Blocks of one schema, end to end."""
    try:
        return pa.concat_batches(blocks)
    except pa.ArrowInvalid:  # 32-bit offsets overflow
        return concat(blocks)


def memory_for(size: int) -> pa.Buffer:
    """Memory for rows, whose content is not known; Arrow's pool uses pages again, of which each fresh one is a fault."""
    return pa.allocate_buffer(size)


def numpy_file(content: Any) -> NDArray[Any]:
    """The array in the bytes of a file of numpy's, without a copy.

    Raises:
        ValueError: it is none.
    """
    head = io.BytesIO(memoryview(content)[:HEAD_BYTES])
    if (version := np.lib.format.read_magic(head)) != (1, 0):  # what numpy writes of plain integers
        raise ValueError(f"its version of numpy's format is {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(content, dtype, int(np.prod(shape)), head.tell()).reshape(shape)
