"""A map-style data set of Hugging Face: its Arrow table stays where it is, as a rule mapped from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brimful.core.header import CHECKSUMS
from brimful.index.index import DataIndex, has_integers, has_null, label_counts, lengths_by_column, taken
from brimful.plan import random
from brimful.plan.once import once
from brimful.sources.data_libraries import stored
from brimful.tables.blocks import Block, concat
from brimful.tables.checksums import RowChecksums, checksums
from brimful.tables.origins import ORIGIN, ORIGIN_TYPE, origins
from brimful.tables.ragged import (
    LABELS,
    distinct,
    empty_block,
    has_fixed_bytes,
    has_offsets,
    is_list,
    is_lists,
    null_in,
    numpy_of,
    offsets_of,
    ragged,
    with_column,
)

SAMPLED_ROWS: Final = 1024
"""A state is compared with all values of so many rows, and with the lengths of all rows."""
_NULL: Final = -1
"""In place of the length of a list that is null, or has a null in it."""


class TablePieces(NamedTuple):
    """The record batches of a table, and where each begins among its rows, then how many these are, int64 (n + 1,).

    `chosen`: the rows of the table that make up the data set, in their order (`select`, `shuffle`); None: all as they are.
    """

    batches: list[Block]
    starts: NDArray[np.int64]
    chosen: NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class TableIndex(DataIndex):
    """The rows of a `datasets.Dataset`.

    Args:
        columns: these alone; all where None.
    Price: rows are copied when they are wanted, those that follow one another in a record batch not even then: 1 to 3 us a
        row out of order and one call of Arrow's for each record batch touched (`datasets` writes 1,000 rows in one). Kept
        are 4 bytes a row and list column, once their lengths are asked for, and 8 a row of what was selected or shuffled.
    """

    dataset: Any
    columns: tuple[str, ...] | None = None

    @once
    def record_batches(self) -> TablePieces:
        batches = [batch for batch in self._table.to_batches() if batch.num_rows]
        starts = offsets_of(np.array([batch.num_rows for batch in batches], dtype=np.int64))
        indices = self.dataset._indices  # which `datasets` has no other name for
        chosen = None if indices is None else indices.column(0).to_numpy()
        return TablePieces(batches, starts, chosen)

    @once
    def schema(self) -> pa.Schema:
        return stored(empty_block(self._table.schema)).schema.remove_metadata()

    def __len__(self) -> int:
        return len(self.dataset)

    def only(self, columns: Sequence[str]) -> TableIndex:
        return replace(self, columns=tuple(columns)) if columns else self

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        if not len(numbers):
            return np.zeros(0, dtype=np.int64)

        def counts(column: str) -> NDArray[np.int32]:
            if not (column in self.schema.names and is_lists(self.schema.field(column).type)):
                ragged(self.take(numbers[:1]), column)  # says what is wrong, and where
            found = self._counts(column)[self._rows(numbers)]
            if len(bad := np.flatnonzero(found == _NULL)):
                ragged(self.take(numbers[bad[:1]]), column)
            return found

        return lengths_by_column(self, columns, required, len(numbers), counts)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return empty_block(self.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))), numbers
        rows = self._rows(numbers)
        order = np.argsort(rows, kind="stable")
        block = stored(self._copied(rows[order]))
        places = np.empty(len(rows), dtype=np.int64)
        places[order] = np.arange(len(rows))
        return with_column(block, ORIGIN, origins("sequence", numbers[order], "row")), places

    @once
    def list_columns(self) -> Sequence[str]:
        lists = [field.name for field in self.schema if is_lists(field.type)]
        every = self._rows(np.arange(len(self)))
        return [name for name in lists if (self._counts(name)[every] != _NULL).all()]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        if (
            column != LABELS or self._num_labels is None
        ):  # tokens are not read for it: they may be all that a disk holds
            return None
        return self._num_labels[:, self._rows(numbers)].astype(np.int64)

    def fingerprint(self) -> dict[str, Any]:
        return {"rows": len(self), CHECKSUMS: self._checksums}

    @once
    def _checksums(self) -> dict[str, int]:
        """By column: of all lengths of lists and texts, of all values of a fixed width, of what was selected, and of all values
        in 1,024 rows. Price: 2 to 10 ns a row and column; no tokens are read but of those."""
        sizes, chosen = RowChecksums(), self.record_batches.chosen
        for batch in self.record_batches.batches:
            sizes.add(_sizes(batch))
        selected = 0 if chosen is None else crc32(chosen.tobytes())
        parts = (sizes.by_column(), checksums(self.locate(self._sampled())[0]))
        return {
            name: crc32(repr([selected, *(one.get(name, 0) for one in parts)]).encode()) for name in self.schema.names
        }

    def _sampled(self) -> NDArray[np.int64]:
        """The rows of which all values are compared: 1,024 that a key chooses, the first and the last; whatever the files."""
        count = len(self)
        chosen = random.KeyedPermutation(count, random.key(0))(np.arange(min(count, SAMPLED_ROWS)))
        return distinct(np.concatenate([chosen, np.array([0, count - 1][:count], dtype=np.int64)]))

    @property
    def _table(self) -> pa.Table:
        table = self.dataset.data.table
        return table if self.columns is None else table.select(list(self.columns))

    def _rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the table that some rows of the data set are."""
        chosen = self.record_batches.chosen
        return numbers if chosen is None else chosen[numbers].astype(np.int64)

    def _copied(self, rows: NDArray[np.int64]) -> Block:
        """Rows of the table, ascending."""
        batches, starts, _ = self.record_batches
        first, last = np.searchsorted(starts, rows[[0, -1]], side="right") - 1
        edges = np.searchsorted(rows, starts[first : last + 2])
        found = []
        for number, begin, end in zip(range(first, last + 1), edges[:-1].tolist(), edges[1:].tolist()):
            if begin < end:
                found.append(taken(batches[number], rows[begin:end] - starts[number]))
        return concat(found)

    def _counts(self, column: str) -> NDArray[np.int32]:
        """The lengths of a list column in all rows of the table."""
        kept = self._known_counts
        if column not in kept:
            counts = [_counts_of(batch.column(column)) for batch in self.record_batches.batches]
            kept[column] = np.concatenate([np.zeros(0, np.int32), *counts])
        return kept[column]

    @once
    def _known_counts(self) -> dict[str, NDArray[np.int32]]:
        return {}

    @once
    def _num_labels(self) -> NDArray[np.int32] | None:
        if LABELS not in self.schema.names or not has_integers(self.schema.field(LABELS).type):
            return None
        batches = [batch.select([LABELS]) for batch in self.record_batches.batches]
        return None if any(has_null(batch.column(0)) for batch in batches) else label_counts(batches, LABELS)


def _counts_of(lists: pa.Array) -> NDArray[np.int32]:
    lists = (
        lists.storage if isinstance(lists, pa.ExtensionArray) else lists
    )  # of Array2D, whose first dimension is ragged
    counts = numpy_of(pc.list_value_length(lists)).astype(np.int32)
    counts[null_in(lists)] = _NULL
    values = lists.flatten()
    if values.null_count:
        counts[numpy_of(pc.list_parent_indices(lists).filter(values.is_null()))] = _NULL
    return counts


def _sizes(batch: Block) -> Block:
    """The lengths of lists and texts, and the values of a fixed width, by column; of others nothing."""
    found = {}
    for name, array in zip(batch.schema.names, batch.columns):
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if is_list(array.type):
            found[name] = pc.list_value_length(array)
        elif has_offsets(array.type):
            found[name] = pc.binary_length(array)
        elif has_fixed_bytes(array.type):
            found[name] = array
    return pa.RecordBatch.from_pydict(found) if found else batch.select([])
