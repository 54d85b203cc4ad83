"""Side files: arrays on disk, most with a number for each row, that tell about rows without reading them.

The places tell where each record batch and each of its columns lies in its file, so that rows can be read by ranges of bytes.
They are an int64 array with a row for each record batch of the store:

message, body, end                  of the record batch: its metadata, its columns, and its end
validity, second, last, stop        of each column, in the schema's order: the bitmap of its nulls (-1: it has none), its
                                    second buffer, its last one, and the end of that; a list's values begin at `last`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.core.atomic import commit_file, naming, part_of
from brimful.index.index import has_labels
from brimful.store.local import MappedFile
from brimful.store.manifest import SidecarFile, StoredFile, sha256_of
from brimful.tables.checksums import RowChecksums
from brimful.tables.ragged import LABELS, NOT_TRAINED_ON, is_lists, is_ragged, numpy_of, offsets_of, trained_on

PLACES: Final = "places.npy"
BATCH_FIELDS: Final = 3
COLUMN_FIELDS: Final = 4
MAGIC_BYTES: Final = 8
"""An Arrow file has so many before the stream of its record batches."""
PREFIX_BYTES: Final = 8
"""A message begins with so many: a mark, and the size of the metadata that follow."""
_LABEL_FILES: Final[dict[str, type[np.integer[Any]]]] = {"num_labels": np.int32, "first_labels": np.uint8}


def write_side_files(
    folder: Path, schema: pa.Schema, files: Sequence[StoredFile], working: Callable[[], None]
) -> dict[str, Any]:
    """Writes the lengths of each list column, which labels are trained on if there are any, and the places of all columns. Counts
    the nulls of every column, and takes the checksums of all values. Gives all that under its names in the manifest.

    Args:
        working: called now and then.
    """
    names = [field.name for field in schema if is_lists(field.type)]
    rows, batches = sum(file.rows for file in files), sum(len(file.batches) for file in files)
    lengths = {name: _Array(folder / f"lengths.{quote(name, safe='')}.npy", (rows,), np.int32) for name in names}
    labelled = LABELS in names and has_labels(schema.field(LABELS).type)
    labels = {name: _Array(folder / f"{name}.npy", (rows,), kind) for name, kind in _LABEL_FILES.items() if labelled}
    places = _Array(folder / PLACES, (batches, BATCH_FIELDS + COLUMN_FIELDS * len(schema)), np.int64)
    nulls, values = dict.fromkeys(schema.names, 0), RowChecksums()
    for file in files:
        mapped = MappedFile(folder, file)
        for block in mapped.batches():
            values.add(block)
            for name in schema.names:
                column = block.column(name)
                nulls[name] += column.null_count
                if name in lengths:
                    lengths[name].append(_lengths(column))
                    nulls[name] += column.flatten().null_count
            if labelled:
                for array, found in zip(labels.values(), _labels(block.column(LABELS)), strict=True):
                    array.append(found)
        places.append(_places(mapped))
        mapped.release()
        working()
    return {
        "lengths": {name: array.close() for name, array in lengths.items()},
        "nulls": nulls,
        "checksums": values.by_column(),
        "places": places.close(),
        **{name: labels[name].close() if labelled else None for name in _LABEL_FILES},
    }


def _lengths(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size)
    return np.diff(numpy_of(column.offsets))


def _labels(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many labels of each row are trained on, and whether the first one is; a null is not."""
    values = column.flatten()
    if values.null_count:
        values = pc.fill_null(values.cast(pa.int64()), NOT_TRAINED_ON)
    return trained_on(numpy_of(values), offsets_of(_lengths(column)))


def _places(mapped: MappedFile) -> NDArray[np.int64]:
    """The places of the record batches of a file. Price: 20 us a record batch; no row is read."""
    base = mapped.memory.address
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(mapped.memory[MAGIC_BYTES:]))
    found = []
    for batch in mapped.batches():
        message = messages.read_next_message()
        while message.type != "record batch":  # the schema, or a dictionary inside a struct
            message = messages.read_next_message()
        body = message.body.address - base
        row = [message.metadata.address - base - PREFIX_BYTES, body, body + message.body.size]
        stop = body
        for column in batch.columns:
            places = [(-1, 0) if it is None else (it.address - base, it.size) for it in column.buffers()]
            there = [(place, size) for place, size in places if place >= 0] or [(stop, 0)]
            stop = max(place + size for place, size in there)
            last = there[-1][0]
            if is_ragged(column.type) and not pa.types.is_fixed_size_list(column.type) and places[-1][0] < 0:
                last = stop  # all lists are empty
            row += [places[0][0], places[1][0] if len(places) > 1 else -1, last, stop]
        found.append(row)
    return np.array(found, dtype=np.int64)


class _Array:
    """A numpy file that is written from its start to its end."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type[np.integer[Any]]) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        with naming(path), part_of(path).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)

    def append(self, numbers: NDArray[np.integer]) -> None:
        with naming(self._path), part_of(self._path).open("ab") as file:
            file.write(np.ascontiguousarray(numbers, self._dtype).data)  # `tofile` does not say why it fails

    def close(self) -> SidecarFile:
        with naming(self._path):
            commit_file(part_of(self._path), self._path)
        return SidecarFile(self._path.name, self._path.stat().st_size, sha256_of(self._path))


class ColumnPlaces(NamedTuple):
    """The places of a column in each record batch, int64 (n,) each; `start`: the end of the column before."""

    start: NDArray[np.int64]
    validity: NDArray[np.int64]
    second: NDArray[np.int64]
    last: NDArray[np.int64]
    stop: NDArray[np.int64]


class Places:
    """The places of the record batches of a store, int64 (n,) each, and of their columns by name."""

    message: NDArray[np.int64]
    body: NDArray[np.int64]
    end: NDArray[np.int64]

    def __init__(self, array: NDArray[np.int64], columns: Sequence[str]) -> None:
        self.message, self.body, self.end = array[:, :BATCH_FIELDS].T
        self.columns: dict[str, ColumnPlaces] = {}
        start = self.body
        for number, name in enumerate(columns):
            first = BATCH_FIELDS + COLUMN_FIELDS * number
            found = ColumnPlaces(start, *array[:, first : first + COLUMN_FIELDS].T)
            self.columns[name], start = found, found.stop
