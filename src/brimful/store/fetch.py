"""Rows of a store in bulk: whole runs of them are copied, one call a column, into memory that is used again.

Fresh memory would cost as much as the copy: each page of it is a fault.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import ORIGIN, origins_of
from brimful.ragged import concat, offsets_of, with_column
from brimful.rows import Block
from brimful.store.manifest import Manifest, StoredFile

KEPT_SLABS: Final = 4


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


class StoredRows(ABC):
    """Abstract: the rows of a store's record batches, wherever they lie."""

    @property
    @abstractmethod
    def gap_bytes(self) -> int:
        """What is had in the time that one more range takes: rows that are not wanted are asked for along where they are
        less."""

    @abstractmethod
    def block(self, ranges: Ranges) -> Block:
        """The rows of some ranges, end to end.

        Raises:
            DataError: a file is missing or damaged.
        """


class Fetcher:
    """The rows of a store by number, each with where it came from.

    Args:
        name: of the store, in words.
    """

    def __init__(self, name: str, manifest: Manifest, layout: Layout, rows: StoredRows) -> None:
        self._name, self._files, self._layout, self._rows = name, manifest.files, layout, rows

    @property
    def gap_bytes(self) -> int:
        return self._rows.gap_bytes

    def fetch(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Block:
        """The rows from each of `firsts`, ascending, up to before each of `lasts`, as one block.

        Raises:
            DataError: a file is missing or damaged.
        """
        ranges = self._layout.ranges(firsts, lasts)
        return with_column(self._rows.block(ranges), ORIGIN, self._origins(ranges))

    def _origins(self, ranges: Ranges) -> pa.Array:
        """The origin column: the file of each row, and which of its rows it is, from 1."""
        layout = self._layout
        files = layout.file_of[ranges.batches]
        distinct, which = np.unique(files, return_inverse=True)
        names = [f"store {self._name}/{self._files[file].name}" for file in distinct.tolist()]
        shifts = ranges.firsts - layout.starts[layout.first_batches[files]] + 1 - ranges.places
        lines = np.repeat(shifts, ranges.counts) + np.arange(ranges.counts.sum())
        return origins_of(names, np.repeat(which.astype(np.int32), ranges.counts), lines, "row")


def list_columns(manifest: Manifest) -> list[str]:
    """The list columns whose lengths say where each row's values lie: those without a null, of rows of any length."""
    fixed = {name for name, kind in manifest.columns.items() if kind.startswith("fixed_size_list")}
    return [name for name in manifest.lengths if not manifest.nulls[name] and name not in fixed]


class Slabs:
    """Memory for a few arrays, each used again when nobody holds a view of it any more."""

    def __init__(self) -> None:
        self._slabs: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of `count` values; what it holds is not known."""
        size = count * dtype.itemsize
        with self._lock:
            free = [number for number in range(len(self._slabs)) if sys.getrefcount(self._slabs[number]) == _UNUSED]
            fitting = [number for number in free if len(self._slabs[number]) >= size]
            if not fitting:
                for number in reversed(free):
                    del self._slabs[number]
                self._slabs = [*self._slabs, np.empty(size + size // 4, dtype=np.uint8)][-KEPT_SLABS:]
                fitting = [len(self._slabs) - 1]
            return self._slabs[fitting[0]][:size].view(dtype)


_UNUSED: Final = 2  # references: the list's, and that of the call that counts them


def joined(blocks: list[Block]) -> Block:
    """Blocks of one schema, end to end."""
    try:
        return pa.concat_batches(blocks)
    except pa.ArrowInvalid:  # 32-bit offsets overflow
        return concat(blocks)
