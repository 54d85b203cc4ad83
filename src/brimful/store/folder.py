"""A finished store in any folder: its rows by their numbers."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.index.index import RowSpans
from brimful.plan.errors import DataError
from brimful.plan.once import once
from brimful.store.manifest import JOURNAL, MANIFEST, Manifest, SidecarFile, StoredFile
from brimful.tables.blocks import Block
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import is_ragged, offsets_of, with_column

HEAD_BYTES: Final = 1024
"""The header of a numpy file fits in so many."""


class Ranges(NamedTuple):
    """Ascending ranges of rows, none across the end of a record batch; int64 arrays, one number a range.

    Args:
        batches: the record batch.
        firsts: the number of the first row.
        begins: the place of the first row in its record batch.
        counts: how many rows.
        places: the place of the first row in the block that is made of them.
    """

    batches: NDArray[np.int64]
    firsts: NDArray[np.int64]
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of each row."""
        return np.repeat(self.firsts - self.places, self.counts) + np.arange(self.counts.sum())

    @property
    def slices(self) -> list[tuple[int, int, int]]:
        """The record batch of each range, its first row there, and the number of rows."""
        return list(zip(self.batches.tolist(), self.begins.tolist(), self.counts.tolist()))


class RecordBatches:
    """How the rows of a store are cut into record batches, and those into files; int64 arrays.

    Args:
        starts: the number of the first row of each record batch, and at the end the number of all rows.
        file_of: the file of each record batch.
        first_of_file: the first record batch of each file.
    """

    def __init__(self, files: Sequence[StoredFile]) -> None:
        rows = np.array([count for file in files for count in file.batches], dtype=np.int64)
        per_file = np.array([len(file.batches) for file in files], dtype=np.int64)
        self.starts: NDArray[np.int64] = offsets_of(rows)
        self.first_of_file: NDArray[np.int64] = np.cumsum(per_file) - per_file
        self.file_of: NDArray[np.int64] = np.repeat(np.arange(len(per_file)), per_file)

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
        return Ranges(batches, firsts, firsts - self.starts[batches], counts, np.cumsum(counts) - counts)


class Folder(ABC):
    """Abstract: the folder of a finished store.

    Args:
        path: as it was given, without a slash at the end.
    """

    gap_bytes: ClassVar[int]
    """So many bytes take as long as one more range: smaller gaps between wanted rows are read along."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def content(self, name: str) -> bytes:
        """All bytes of a small file.

        Raises:
            FileNotFoundError, NotADirectoryError: it is not there.
        """

    @abstractmethod
    def first_schema(self) -> pa.Schema:
        """The columns of the first file of rows."""

    @abstractmethod
    def numbers(self, side: SidecarFile) -> NDArray[Any]:
        """The array of a side file.

        Raises:
            DataError: it is missing or damaged.
        """

    @abstractmethod
    def sha256(self, file: SidecarFile) -> str:
        """The checksum of a file, all of which is read.

        Raises:
            DataError: it is missing, or has another size.
        """

    @abstractmethod
    def block(self, ranges: Ranges, columns: Sequence[str]) -> Block:
        """These columns of the rows of some ranges, end to end.

        Raises:
            DataError: a file is missing, damaged, or has changed.
        """

    def spans(self, columns: Sequence[str], rows: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        """See `Index.spans`."""
        return None

    def rows(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64], columns: Sequence[str]) -> Block:
        """The rows from each of `firsts`, ascending, up to before each of `lasts`, as one block with its origins."""
        ranges = self.record_batches.ranges(firsts, lasts)
        places = origins(f"store {os.path.basename(self.path)}", ranges.rows, "row")  # `from_store(path)[place]`
        return with_column(self.block(ranges, columns), ORIGIN, places)

    def lengths(self, name: str) -> NDArray[Any]:
        """How many values each row has in a list column."""
        return self.by_row(self.manifest.lengths[name])

    def by_row(self, side: SidecarFile) -> NDArray[Any]:
        """The array of a side file that has a number for each row."""
        numbers = self.numbers(side)
        if len(numbers) != self.manifest.rows:
            raise DataError(
                f"{self.path}: {side.name} has {len(numbers):,} numbers, but the manifest has {self.manifest.rows:,} rows. "
                "Write the store anew"
            )
        return numbers

    def file_of(self, batch: int) -> StoredFile:
        """The file that holds a record batch."""
        return self.manifest.files[int(self.record_batches.file_of[batch])]

    @once
    def manifest(self) -> Manifest:
        """The manifest, read when it is first wanted.

        Raises:
            FileNotFoundError: there is no store here, or one that is not finished.
            StateError: another release of brimful wrote it.
            DataError: it is damaged.
        """
        try:
            text = self.content(MANIFEST)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(self._missing()) from error
        return Manifest.parse(text, self.path)

    @once
    def record_batches(self) -> RecordBatches:
        return RecordBatches(self.manifest.files)

    @once
    def schema(self) -> pa.Schema:
        """All columns; none of a store without a row of which the chain did not say them."""
        if not self.manifest.files:
            return pa.schema([])
        found = self.first_schema()
        self.check_columns(found, self.manifest.files[0])
        return found

    def check_columns(self, schema: pa.Schema, file: SidecarFile) -> None:
        """Refuses a file that lacks a column.

        Raises:
            DataError: naming the file, its columns, and one that the manifest says it has.
        """
        if lost := self.manifest.columns.keys() - schema.names:
            raise DataError(
                f"{self.path}: {file.name} is damaged: it has the columns {', '.join(schema.names)}, and the manifest says "
                f"{min(lost)!r}; `brimful verify` says what else"
            )

    @once
    def list_columns(self) -> frozenset[str]:
        """The list columns whose lengths say where each row's values lie: those of numbers, without a null, of rows of any
        length."""
        nulls = self.manifest.nulls
        lists = ((name, self.schema.field(name).type) for name in self.manifest.lengths if not nulls[name])
        return frozenset(name for name, kind in lists if is_ragged(kind) and not pa.types.is_fixed_size_list(kind))

    def _missing(self) -> str:
        """The error where there is no manifest: no store, or a half-written one, which has a journal."""
        try:
            begun = bool(self.content(JOURNAL))
        except (OSError, DataError):
            begun = False
        if begun:
            return (
                f"the token store {self.path} is half-written: its writer is still at work, or was interrupted. To finish it, "
                "run the same to_store(path) or `brimful tokenize` again"
            )
        return f"there is no token store at {self.path}. To write one, use to_store(path) or `brimful tokenize`"


def numpy_file(content: Any) -> NDArray[Any]:
    """The array in the bytes of a numpy file, without a copy.

    Raises:
        ValueError: it is none.
    """
    head = io.BytesIO(memoryview(content)[:HEAD_BYTES])
    if (version := np.lib.format.read_magic(head)) != (1, 0):  # numpy writes plain integers in this one
        raise ValueError(f"its version of numpy's format is {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(content, dtype, int(np.prod(shape)), head.tell()).reshape(shape)
