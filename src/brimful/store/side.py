"""What is known of the rows without reading them: an array on disk for each list column, with a number a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.ragged import is_ragged, numpy_of
from brimful.rows import Block
from brimful.store.manifest import SideFile, StoredFile, settle
from brimful.store.mapped import MappedFile
from brimful.store.part import sha256_of

LABELS: Final = "labels"
NOT_TRAINED_ON: Final = -100


def write_side_files(
    folder: Path, schema: pa.Schema, files: Sequence[StoredFile]
) -> tuple[dict[str, SideFile], dict[str, int], SideFile | None]:
    """Lengths and nulls of each list column, and the counts of labels where there are any."""
    names = [field.name for field in schema if is_ragged(field.type)]
    rows = sum(file.rows for file in files)
    lengths = {name: _Numbers(folder, f"lengths.{quote(name, safe='')}.npy", rows) for name in names}
    labelled = LABELS in names and pa.types.is_integer(schema.field(LABELS).type.value_type)
    labels = _Numbers(folder, "num_labels.npy", rows) if labelled else None
    nulls = dict.fromkeys(names, 0)
    for file in files:
        mapped = MappedFile(folder / file.name)
        for block in map(mapped.batch, range(len(mapped))):
            for name in names:
                column = block.column(name)
                lengths[name].append(_lengths(column))
                nulls[name] += column.null_count + column.flatten().null_count
            if labels is not None:
                labels.append(_num_labels(block))
        mapped.release()
    done = {name: numbers.close() for name, numbers in lengths.items()}
    return done, nulls, None if labels is None else labels.close()


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, dtype=np.int32)
    return np.diff(numpy_of(column.offsets))


def _num_labels(block: Block) -> NDArray[np.int64]:
    """Labels of each row that are trained on."""
    column = block.column(LABELS)
    differ = pc.not_equal(column.flatten(), pa.scalar(NOT_TRAINED_ON, pa.int64()))  # of unsigned integers too
    trained_on = numpy_of(differ.fill_null(False))
    before = np.concatenate(([0], np.cumsum(trained_on)))
    ends = np.cumsum(_lengths(column))
    counts: NDArray[np.int64] = np.diff(before[ends], prepend=0)
    return counts


class _Numbers:
    """An int32 array of a known size, filled from its start to its end on disk."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._path, self._part, self._filled = folder / name, folder / f"{name}.part", 0
        if count:
            self._array = np.lib.format.open_memmap(self._part, "w+", np.dtype(np.int32), (count,))
        else:
            with self._part.open("wb") as file:
                np.save(file, np.zeros(0, np.int32))

    def append(self, numbers: NDArray[np.integer]) -> None:
        self._array[self._filled : self._filled + len(numbers)] = numbers
        self._filled += len(numbers)

    def close(self) -> SideFile:
        if self._filled:
            self._array.flush()
        settle(self._part, self._path)
        return SideFile(self._path.name, self._path.stat().st_size, sha256_of(self._path))
