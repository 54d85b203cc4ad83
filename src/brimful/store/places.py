"""Where in its file each record batch and each column of it lies: what it takes to read rows by ranges of bytes.

An int64 array with a row for each record batch of the store:

message, body, end                  of the record batch: its metadata, its columns, and what follows
validity, second, last, stop        of each column, in the schema's order: the bitmap of its nulls (-1: it has none), its
                                    second buffer, its last one, and the end of that; a list's values begin at `last`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.ragged import is_ragged
from brimful.store.mapped import MappedFile

PLACES: Final = "places.npy"
BATCH_FIELDS: Final = 3
COLUMN_FIELDS: Final = 4
MAGIC_BYTES: Final = 8
"""What stands in an Arrow file before the stream of its record batches."""
PREFIX_BYTES: Final = 8
"""Of a message: a mark, and the size of the metadata that follow."""


def num_places(schema: pa.Schema) -> int:
    """Numbers that a record batch has."""
    return BATCH_FIELDS + COLUMN_FIELDS * len(schema)


class ColumnPlaces(NamedTuple):
    """Of a column in each record batch, int64 (n,) each; `start`: where the column before ends."""

    start: NDArray[np.int64]
    validity: NDArray[np.int64]
    second: NDArray[np.int64]
    last: NDArray[np.int64]
    stop: NDArray[np.int64]


class Places:
    """The places of the record batches of a store, int64 (n,) each, and of their columns by name."""

    def __init__(self, array: NDArray[np.int64], columns: Sequence[str]) -> None:
        self.message, self.body, self.end = array[:, :BATCH_FIELDS].T
        self._columns: dict[str, ColumnPlaces] = {}
        start = self.body
        for number, name in enumerate(columns):
            first = BATCH_FIELDS + COLUMN_FIELDS * number
            found = ColumnPlaces(start, *array[:, first : first + COLUMN_FIELDS].T)
            self._columns[name], start = found, found.stop

    def __getitem__(self, name: str) -> ColumnPlaces:
        return self._columns[name]


def places_of(mapped: MappedFile) -> NDArray[np.int64]:
    """The places of the record batches of a file. Price: 20 us a record batch; no row is read."""
    base = mapped.memory.address
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(mapped.memory[MAGIC_BYTES:]))
    found = []
    for batch in mapped.batches():
        message = messages.read_next_message()
        while message.type != "record batch":  # but the schema, or a dictionary inside a struct
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
