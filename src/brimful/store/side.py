"""What is known of the rows without reading them: an array on disk for each list column, with a number a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.ragged import LABELS, NOT_TRAINED_ON, is_ragged, numpy_of, trained_on
from brimful.sources.index import has_labels
from brimful.store.manifest import SideFile, StoredFile, settle
from brimful.store.mapped import MappedFile
from brimful.store.part import sha256_of


def write_side_files(
    folder: Path, schema: pa.Schema, files: Sequence[StoredFile]
) -> tuple[dict[str, SideFile], dict[str, int], SideFile | None, SideFile | None]:
    """Lengths of each list column, nulls of every column, and the counts of labels and their firsts where there are any."""
    names = [field.name for field in schema if is_ragged(field.type)]
    rows = sum(file.rows for file in files)
    lengths = {name: _Numbers(folder, f"lengths.{quote(name, safe='')}.npy", rows, np.int32) for name in names}
    labelled = LABELS in names and has_labels(schema.field(LABELS).type)
    counts = _Numbers(folder, "num_labels.npy", rows, np.int32) if labelled else None
    firsts = _Numbers(folder, "first_labels.npy", rows, np.uint8) if labelled else None
    nulls = dict.fromkeys(schema.names, 0)
    for file in files:
        mapped = MappedFile(folder / file.name)
        for block in map(mapped.batch, range(len(mapped))):
            for name in schema.names:
                column = block.column(name)
                nulls[name] += column.null_count
                if name in lengths:
                    lengths[name].append(_lengths(column))
                    nulls[name] += column.flatten().null_count
            if counts is not None and firsts is not None:
                for numbers, found in zip((counts, firsts), _labels(block.column(LABELS)), strict=True):
                    numbers.append(found)
        mapped.release()
    done = {name: numbers.close() for name, numbers in lengths.items()}
    labels = (None if numbers is None else numbers.close() for numbers in (counts, firsts))
    return done, nulls, next(labels), next(labels)


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, dtype=np.int32)
    return np.diff(numpy_of(column.offsets))


def _labels(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels of each row that are trained on, and whether the first one is; a null is not."""
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(_lengths(column))))
    values = column.flatten()
    if values.null_count:
        values = pc.fill_null(values.cast(pa.int64()), NOT_TRAINED_ON)
    return trained_on(numpy_of(values), offsets)


class _Numbers:
    """An array of a known size, filled from its start to its end on disk."""

    def __init__(self, folder: Path, name: str, count: int, dtype: type[np.integer[Any]]) -> None:
        self._path, self._part, self._filled = folder / name, folder / f"{name}.part", 0
        if count:
            self._array = np.lib.format.open_memmap(self._part, "w+", np.dtype(dtype), (count,))
        else:
            with self._part.open("wb") as file:
                np.save(file, np.zeros(0, dtype))

    def append(self, numbers: NDArray[np.integer]) -> None:
        self._array[self._filled : self._filled + len(numbers)] = numbers
        self._filled += len(numbers)

    def close(self) -> SideFile:
        if self._filled:
            self._array.flush()
        settle(self._part, self._path)
        return SideFile(self._path.name, self._path.stat().st_size, sha256_of(self._path))
