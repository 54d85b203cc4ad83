"""What is known of the rows without reading them: arrays on disk, most with a number a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.blocks.ragged import LABELS, NOT_TRAINED_ON, is_ragged, numpy_of, offsets_of, trained_on
from brimful.core.whole import part_of, settle
from brimful.index.index import has_labels
from brimful.store.manifest import SideFile, StoredFile, described
from brimful.store.mapped import MappedFile
from brimful.store.places import PLACES, num_places, places_of


class Sides(TypedDict):
    """What the manifest says of the side files, under the names that it has for them."""

    lengths: dict[str, SideFile]
    nulls: dict[str, int]
    num_labels: SideFile | None
    first_labels: SideFile | None
    places: SideFile


def write_side_files(
    folder: Path, schema: pa.Schema, files: Sequence[StoredFile], working: Callable[[], None]
) -> Sides:
    """Lengths of each list column, nulls of every column, counts of labels and their firsts where there are any, and the
    places of all columns.

    Args:
        working: called now and then.
    """
    names = [field.name for field in schema if is_ragged(field.type)]
    rows, batches = sum(file.rows for file in files), sum(len(file.batches) for file in files)
    lengths = {name: _Array(folder / f"lengths.{quote(name, safe='')}.npy", (rows,), np.int32) for name in names}
    labelled = LABELS in names and has_labels(schema.field(LABELS).type)
    counts = _Array(folder / "num_labels.npy", (rows,), np.int32) if labelled else None
    firsts = _Array(folder / "first_labels.npy", (rows,), np.uint8) if labelled else None
    places = _Array(folder / PLACES, (batches, num_places(schema)), np.int64)
    nulls = dict.fromkeys(schema.names, 0)
    for file in files:
        mapped = MappedFile(folder, file)
        for block in mapped.batches():
            for name in schema.names:
                column = block.column(name)
                nulls[name] += column.null_count
                if name in lengths:
                    lengths[name].append(_lengths(column))
                    nulls[name] += column.flatten().null_count
            if counts is not None and firsts is not None:
                for array, found in zip((counts, firsts), _labels(block.column(LABELS)), strict=True):
                    array.append(found)
        places.append(places_of(mapped))
        mapped.release()
        working()
    return {
        "lengths": {name: array.close() for name, array in lengths.items()},
        "nulls": nulls,
        "num_labels": None if counts is None else counts.close(),
        "first_labels": None if firsts is None else firsts.close(),
        "places": places.close(),
    }


def _lengths(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size)
    return np.diff(numpy_of(column.offsets))


def _labels(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels of each row that are trained on, and whether the first one is; a null is not."""
    values = column.flatten()
    if values.null_count:
        values = pc.fill_null(values.cast(pa.int64()), NOT_TRAINED_ON)
    return trained_on(numpy_of(values), offsets_of(_lengths(column)))


class _Array:
    """A file of numpy's, filled from its start to its end."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type[np.integer[Any]]) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        with part_of(path).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)

    def append(self, numbers: NDArray[np.integer]) -> None:
        with part_of(self._path).open("ab") as file:
            numbers.astype(self._dtype, copy=False).tofile(file)

    def close(self) -> SideFile:
        settle(part_of(self._path), self._path)
        return described(self._path)
