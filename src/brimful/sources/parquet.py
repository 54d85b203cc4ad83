"""Parquet files to rows: a row group at a time, of which only the columns wanted are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import Bytes, PrefetchedFile, RandomAccessFile
from brimful.sources.columnar import BUFFER_BYTES, ROWS, ColumnarFormat, ColumnarRows, Unit
from brimful.sources.format import Position, ReadRequest, ShardReader
from brimful.tables.ragged import is_list


@final
class Parquet(ColumnarFormat):
    """Parquet: row groups, and a footer that says where the columns of each are."""

    name = "parquet"
    extensions: tuple[str, ...] = (".parquet", ".pq")

    def columns(self, file: PrefetchedFile) -> pa.Schema | None:
        opened = _opened(file)
        return opened.schema_arrow if opened.metadata.num_rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        return ParquetRows(file, request)


@final
class ParquetRows(ColumnarRows):
    """The rows of a parquet file. Position: [bytes, row group, row in it, row].

    A resume opens the row group in which it lies alone, and decodes and drops the rows of it that come before: at worst all
    of it, .5 s for 10^6 short texts.

    Price: the bytes of the columns wanted of a row group, as they are stored, are in memory while it is read, and about 1 MB
    of rows. Checksums of pages are held against them where there are any.
    """

    def begin(self, file: PrefetchedFile) -> pa.Schema:
        self._held, self._opened = file, _opened(file)
        groups = map(self._opened.metadata.row_group, range(self._opened.metadata.num_row_groups))
        self._rows = [group.num_rows for group in groups]
        if sum(self._rows) != self._opened.metadata.num_rows or min(self._rows, default=0) < 0:
            raise DataError(
                f"its footer says that it has {self._opened.metadata.num_rows:,} rows, and its row groups have "
                f"{sum(self._rows):,}; the shard is damaged"
            )
        return self._opened.schema_arrow

    def units(self, names: list[str], at: Position) -> Iterator[Unit | None]:
        _, place, within, row = at
        if sum(self._rows[:place]) + within != row or place > len(self._rows):
            raise StateError(
                f"row {row:,} is not row {within:,} of row group {place:,}, as in this state: the shard was edited"
            )
        prefixes = tuple(f"{name}." for name in names)
        paths = [self._opened.schema.column(number).path for number in range(len(self._opened.schema))]
        leaves = [number for number, path in enumerate(paths) if f"{path}.".startswith(prefixes)]
        flat = [number for number in range(len(paths)) if not self._opened.schema.column(number).max_repetition_level]
        counted = [number for number in flat if number in leaves] or flat[:1]
        looked_at = list(dict.fromkeys([*names, *(paths[number] for number in counted if number not in leaves)]))
        for group in range(place, len(self._rows)):
            self._look_at(group, looked_at)
            found = self._opened.metadata.row_group(group)
            self._check_rows(group, [found.column(number).num_values for number in counted])
            chunks = [found.column(number) for number in leaves]
            yield from self._held.hold(map(_span, chunks))
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            yield from self._decoded(group, names, size, *([] if counted else self._listed(leaves, names, found)))

    def _look_at(self, group: int, names: list[str]) -> None:
        """Has Arrow look where the columns of a row group are, before pyarrow is asked: of damage one raises, by the other the
        process would end."""
        source = pa.PythonFile(_Refusing(self._held.size), mode="r")
        looking = pa.parquet.ParquetFile(source, metadata=self._opened.metadata, pre_buffer=True)
        with suppress(_RefusedError):
            next(looking.iter_batches(1, row_groups=[group], columns=names, use_threads=False), None)

    def _check_rows(self, group: int, values: list[int]) -> None:
        """Refuses a row group for which the footer says another number of rows than its columns have values, which are not in
        lists: Arrow would leave out the rows beyond it without a word."""
        if other := next((count for count in values if count != self._rows[group]), None):
            raise DataError(
                f"row group {group:,} has {other:,} rows in a column, and its footer says {self._rows[group]:,}; the shard is "
                "damaged. Write it anew"
            )

    def _listed(self, leaves: list[int], names: list[str], found: Any) -> tuple[str, int] | tuple[()]:
        """A column of lists, and how many values the footer says that its first part has in a row group."""
        for number in leaves:
            path = f"{self._opened.schema.column(number).path}."
            if len(of := [name for name in names if path.startswith(f"{name}.")]) == 1:
                return of[0], found.column(number).num_values
        return ()

    def _decoded(self, group: int, names: list[str], size: int, listed: str = "", values: int = 0) -> Iterator[Unit]:
        """The rows of a row group. Arrow leaves out those beyond the number in the footer without a word. Where all columns have
        lists, it is seen by the values of one (`listed`), which are fewer than the footer says."""
        rows, first, seen = self._rows[group], 0, 0
        step = max(1, min(ROWS, rows, rows * BUFFER_BYTES // max(1, size)))
        for batch in self._opened.iter_batches(step, row_groups=[group], columns=names, use_threads=False):
            last = first + batch.num_rows
            if last > rows:
                break
            seen += num_values(batch.column(listed)) if listed else 0
            whole = last == rows and seen >= values
            yield Unit(batch.select(names), group, first, group + 1 if whole else None)
            first = last
        if first != rows:
            raise DataError(
                f"row group {group:,} has {first:,} rows, and its footer says {rows:,}; the shard is damaged. Write it anew"
            )
        if seen < values:
            raise DataError(
                f"row group {group:,} has more rows than the {rows:,} that its footer says: they hold {seen:,} of the {values:,} "
                f"values of column {listed!r}; the shard is damaged. Write it anew"
            )


def _span(chunk: Any) -> tuple[int, int]:
    first = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < first:
        first = chunk.dictionary_page_offset
    return first, first + chunk.total_compressed_size


def num_values(array: pa.Array) -> int:
    """How many values Parquet writes for a column, or for the first part of its structs: also one for each list that is empty or
    null.

    >>> num_values(pa.array([[1, 2], [], None, [3]]))
    5
    """
    if isinstance(array, pa.ExtensionArray):
        return num_values(array.storage)
    if pa.types.is_map(array.type):
        return num_values(array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field]))))
    if pa.types.is_struct(array.type):
        return num_values(array.flatten()[0])
    if not is_list(array.type):
        return len(array)
    empty = pc.sum(pc.equal(pc.fill_null(pc.list_value_length(array), 0), 0)).as_py() or 0
    return empty + num_values(array.flatten())


def _opened(file: PrefetchedFile) -> Any:
    """Read in this thread alone, and nothing ahead: what is wanted is held."""
    source = pa.PythonFile(file, mode="r")
    return pa.parquet.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)


class _RefusedError(Exception):
    """A file would be read."""


class _Refusing(RandomAccessFile):
    """A file that is not read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def bytes_at(self, first: int, count: int) -> memoryview:
        raise _RefusedError
