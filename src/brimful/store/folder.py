"""A finished store, wherever its folder lies: what its files hold, by row numbers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import with_column
from brimful.core.errors import ORIGIN, DataError, origins_of
from brimful.core.once import once
from brimful.store.layout import Layout, Ranges
from brimful.store.manifest import Manifest, SideFile


class Folder(ABC):
    """Abstract: the folder of a finished store.

    Args:
        path: as it was given, without a slash at the end.
    """

    gap_bytes: ClassVar[int]
    """What is had in the time that one more range takes: rows that are not wanted are asked for along where they are less."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def load_manifest(self) -> Manifest:
        """Reads the manifest.

        Raises:
            FileNotFoundError: there is no store here, or one that is not finished.
            StateError: another release of brimful wrote it.
            DataError: it is damaged.
        """

    @abstractmethod
    def first_schema(self) -> pa.Schema:
        """What the first file of rows says of its columns."""

    @abstractmethod
    def numbers(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file.

        Raises:
            DataError: it is missing or damaged.
        """

    @abstractmethod
    def sha256(self, file: SideFile) -> str:
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

    def rows(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64], columns: Sequence[str]) -> Block:
        """The rows from each of `firsts`, ascending, up to before each of `lasts`, as one block, with where they came from."""
        ranges = self.layout.ranges(firsts, lasts)
        return with_column(self.block(ranges, columns), ORIGIN, self._origins(ranges))

    def lengths(self, name: str) -> NDArray[Any]:
        """How many values each row has in a list column."""
        return self.by_row(self.manifest.lengths[name])

    def by_row(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file that has a number for each row."""
        numbers = self.numbers(side)
        if len(numbers) != self.manifest.rows:
            raise DataError(
                f"{self.path}: {side.name} has {len(numbers):,} numbers, and the manifest {self.manifest.rows:,} rows; write "
                "it anew"
            )
        return numbers

    @once
    def manifest(self) -> Manifest:
        return self.load_manifest()

    @once
    def layout(self) -> Layout:
        return Layout(self.manifest.files)

    @once
    def schema(self) -> pa.Schema:
        """All columns; none of a store without a row."""
        return self.first_schema() if self.manifest.files else pa.schema([])

    @once
    def list_columns(self) -> frozenset[str]:
        """The list columns whose lengths say where each row's values lie: those without a null, of rows of any length."""
        nulls = self.manifest.nulls
        lists = (name for name in self.manifest.lengths if not nulls[name])
        return frozenset(name for name in lists if not pa.types.is_fixed_size_list(self.schema.field(name).type))

    def _origins(self, ranges: Ranges) -> pa.Array:
        """The origin column: the file of each row, and which of its rows it is, from 1."""
        layout = self.layout
        files = layout.file_of[ranges.batches]
        distinct, which = np.unique(files, return_inverse=True)
        names = [f"store {os.path.basename(self.path)}/{self.manifest.files[file].name}" for file in distinct.tolist()]
        shifts = ranges.firsts - layout.starts[layout.first_batches[files]] + 1 - ranges.places
        lines = np.repeat(shifts, ranges.counts) + np.arange(ranges.counts.sum())
        return origins_of(names, np.repeat(which.astype(np.int32), ranges.counts), lines, "row")
