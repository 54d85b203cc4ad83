"""A store behind fsspec. Only the wanted rows are read, by ranges of bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.threads import Workers, awaited
from brimful.index.index import RowSet
from brimful.plan.errors import DataError
from brimful.plan.once import once
from brimful.sources.cache import DiskCache
from brimful.sources.objects import Object, ObjectStore, Spans
from brimful.store.folder import Folder, Ranges, numpy_file
from brimful.store.manifest import SidecarFile
from brimful.store.side import MAGIC_BYTES, Places
from brimful.tables.blocks import Block, concat
from brimful.tables.ragged import array_of, distinct, has_offsets, is_list, list_array, offset_type, offsets_of

KEPT_BATCHES: Final = 32
"""Columns of other types than lists, numbers and strings, or with nulls, are read by whole record batches. Those of the last so
many record batches are kept, at most 8 MB each."""
HASHED_BYTES: Final = 64 << 20
"""So many bytes of a file are read at once for its checksum."""
SUM_ROWS: Final = 64
"""Lengths are summed up in advance for every so many rows: an eighth of a byte a row, and few additions for any row."""


class RemoteFolder(Folder):
    """A store in a folder of any file system that fsspec knows. It reads the wanted rows of lists, numbers and strings, and whole
    record batches of all other columns."""

    gap_bytes = 0  # `ObjectStore` joins near ranges, since it knows the bytes

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], timeout_seconds: float, cache: DiskCache | None = None
    ) -> None:
        super().__init__(url.rstrip("/"))
        fs, root = fsspec.core.url_to_fs(self.path, **storage_options)
        self._root = root.rstrip("/")
        self._objects = ObjectStore(fs, timeout_seconds, cache)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._sums: dict[str, NDArray[np.int64]] = {}
        self._kept: dict[tuple[Any, ...], Block] = {}
        self._lock = threading.Lock()

    def content(self, name: str) -> bytes:
        return self._objects.whole(self._object(name))

    def first_schema(self) -> pa.Schema:
        """The schema, which stands in a file before its first record batch."""
        begins, whole = self._places.message, self.manifest.files[0].bytes
        head = self._part(self._files[0], MAGIC_BYTES, int(begins[0]) if len(begins) else whole)
        return pa.ipc.read_schema(pa.py_buffer(head))

    def numbers(self, side: SidecarFile) -> NDArray[Any]:
        """The array of a side file, which is read whole into memory."""
        if side.name not in self._arrays:
            content = self._part(self._object(side.name, side.bytes), 0, side.bytes)
            side.check(self.path, hashlib.sha256(content).hexdigest())
            self._arrays[side.name] = numpy_file(content)
        return self._arrays[side.name]

    def sha256(self, file: SidecarFile) -> str:
        digest, one = hashlib.sha256(), self._object(file.name, file.bytes)
        for first in range(0, file.bytes, HASHED_BYTES):
            digest.update(self._part(one, first, min(file.bytes, first + HASHED_BYTES)))
        return digest.hexdigest()

    def block(self, ranges: Ranges, columns: Sequence[str]) -> Block:
        batches = distinct(ranges.batches)
        dense = [name for name in columns if (self._places.columns[name].validity[batches] < 0).all()]  # without a null
        numbers = [name for name in columns if self._is_list(name) or (name in dense and self._is_fixed(name))]
        texts = [name for name in dense if self._is_text(name)]
        others = [name for name in columns if name not in numbers and name not in texts]
        kept = self._known(batches, others)
        absent = [batch for batch in batches.tolist() if others and batch not in kept]
        spans = [self._values(name, ranges) for name in numbers] + [self._offsets(name, ranges) for name in texts]
        found = iter(self._read([*spans, *(self._whole(batch, others) for batch in absent)]))

        out = {name: self._array(name, next(found), ranges) for name in numbers}
        tables = {name: self._tables(name, next(found)) for name in texts}
        kept |= {batch: self._decoded(batch, others, next(found)) for batch in absent}
        strings = self._read([self._texts(name, ranges, table) for name, table in tables.items()])
        out |= {name: self._strings(name, parts, tables[name]) for name, parts in zip(texts, strings, strict=True)}
        if others:
            rows = concat(kept[batch].slice(first, count) for batch, first, count in ranges.slices)
            out |= dict(zip(others, rows.columns))
        return pa.RecordBatch.from_arrays([out[name] for name in columns], list(columns))

    @once
    def _files(self) -> list[Object]:
        return [self._object(file.name, file.bytes) for file in self.manifest.files]

    def _object(self, name: str, size: int | None = None) -> Object:
        path = f"{self._root}/{quote(name) if self._objects.is_http else name}"
        return Object(path, f"{self.path}/{name}", size)

    def _part(self, one: Object, first: int, last: int) -> memoryview:
        """Some bytes of an object."""
        (part,) = self._objects.read([one], Spans(*np.array([[0], [first], [last]], dtype=np.int64)))
        return part

    @once
    def _places(self) -> Places:
        manifest = self.manifest
        if manifest.places is None:
            raise DataError(
                f"an earlier release wrote the store {self.path}, and it cannot be read by ranges. Copy it to a local folder, or "
                "write it anew"
            )
        dictionaries = [name for name, kind in manifest.columns.items() if "dictionary<" in kind]
        if dictionaries:
            raise DataError(
                f"column {dictionaries[0]!r} of the store {self.path} holds dictionaries "
                f"({manifest.columns[dictionaries[0]]}), which cannot be read by ranges; copy the store to a local folder"
            )
        return Places(self.numbers(manifest.places), list(manifest.columns))

    def _read(self, spans: list[Spans]) -> list[list[memoryview]]:
        """The bytes of several sets of spans, in one go."""
        if not spans:
            return []
        together = Spans(*(np.concatenate(arrays) for arrays in zip(*spans)))
        found = self._objects.read(self._files, together)
        ends = np.cumsum([len(one.files) for one in spans]).tolist()
        return [found[first:last] for first, last in zip([0, *ends], ends)]

    def _type(self, name: str) -> pa.DataType:
        return self.schema.field(name).type

    # -- lists and numbers: the values of the wanted rows ----------------------------------------------------------------

    def _is_list(self, name: str) -> bool:
        return name in self.list_columns and self._type(name).value_type.bit_width % 8 == 0

    def _is_fixed(self, name: str) -> bool:
        kind = self._type(name)
        return bool(pa.types.is_primitive(kind) and kind.bit_width % 8 == 0)

    def _value_type(self, name: str) -> pa.DataType:
        return self._type(name).value_type if self._is_list(name) else self._type(name)

    def _values(self, name: str, ranges: Ranges) -> Spans:
        """Where the values of some rows lie. Those of a list begin where the lengths before it end."""
        firsts, lasts = ranges.begins, ranges.begins + ranges.counts
        if self._is_list(name):
            begins = self._before(name, ranges.firsts - ranges.begins)
            firsts = self._before(name, ranges.firsts) - begins
            lasts = self._before(name, ranges.firsts + ranges.counts) - begins
        width = self._value_type(name).bit_width // 8
        values = self._places.columns[name].last[ranges.batches]
        return self._spans(ranges, values + firsts * width, values + lasts * width)

    def _array(self, name: str, parts: list[memoryview], ranges: Ranges) -> pa.Array:
        kind, memory = self._value_type(name), self._flat(parts)
        values = pa.Array.from_buffers(kind, memory.size * 8 // kind.bit_width, [None, memory])
        return list_array(values, offsets_of(self.lengths(name)[ranges.rows])) if self._is_list(name) else values

    def _before(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many values of a list column there are before some rows."""
        lengths = self.lengths(name)
        if name not in self._sums:
            firsts = np.arange(0, len(lengths), SUM_ROWS)
            self._sums[name] = offsets_of(np.add.reduceat(lengths, firsts, dtype=np.int64))
        groups = rows // SUM_ROWS
        within = np.arange(SUM_ROWS) < (rows - groups * SUM_ROWS)[:, None]
        near = lengths.take(groups[:, None] * SUM_ROWS + np.arange(SUM_ROWS), mode="clip")
        total: NDArray[np.int64] = self._sums[name][groups] + np.where(within, near, 0).sum(axis=1, dtype=np.int64)
        return total

    # -- strings: their offsets first ------------------------------------------------------------------------------------

    def _is_text(self, name: str) -> bool:
        return has_offsets(self._type(name)) and not is_list(self._type(name))

    def _offsets(self, name: str, ranges: Ranges) -> Spans:
        width = np.dtype(offset_type(self._type(name))).itemsize
        begins = self._places.columns[name].second[ranges.batches] + ranges.begins * width
        return self._spans(ranges, begins, begins + (ranges.counts + 1) * width)

    def _tables(self, name: str, parts: list[memoryview]) -> list[NDArray[np.int64]]:
        """The offsets of the rows of each range."""
        kind = offset_type(self._type(name))
        return [np.frombuffer(part, dtype=kind).astype(np.int64) for part in parts]

    def _texts(self, name: str, ranges: Ranges, table: list[NDArray[np.int64]]) -> Spans:
        begins = self._places.columns[name].last[ranges.batches]
        firsts, lasts = np.array([offsets[0] for offsets in table]), np.array([offsets[-1] for offsets in table])
        return self._spans(ranges, begins + firsts, begins + lasts)

    def _strings(self, name: str, parts: list[memoryview], table: list[NDArray[np.int64]]) -> pa.Array:
        sizes = np.concatenate([np.diff(offsets) for offsets in table])
        offsets = offsets_of(sizes)
        kind = self._type(name)
        if offsets[-1] > np.iinfo(np.int32).max:
            kind = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)
        starts = offsets.astype(offset_type(kind))
        return pa.Array.from_buffers(kind, len(sizes), [None, array_of(starts).buffers()[1], self._flat(parts)])

    # -- all else: columns of a whole record batch, decoded by Arrow -----------------------------------------------------

    def _whole(self, batch: int, names: list[str]) -> Spans:
        """The metadata of a record batch, and some of its columns."""
        places = self._places
        firsts = [places.message[batch], *(places.columns[name].start[batch] for name in names)]
        lasts = [places.body[batch], *(places.columns[name].stop[batch] for name in names)]
        files = np.full(len(firsts), self.record_batches.file_of[batch])
        return Spans(files, np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64))

    def _decoded(self, batch: int, names: list[str], parts: list[memoryview]) -> Block:
        """Some columns of a record batch. Arrow reads them from a message in which all other columns are blank."""
        spans, begin = self._whole(batch, names), int(self._places.message[batch])
        message = np.zeros(int(self._places.end[batch]) - begin, dtype=np.uint8)  # untouched pages take no memory
        for first, last, part in zip(spans.firsts.tolist(), spans.lasts.tolist(), parts):
            message[first - begin : last - begin] = np.frombuffer(part, np.uint8)
        try:
            block = pa.ipc.read_record_batch(pa.py_buffer(message), self.schema).select(names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}/{self.file_of(batch).name} is damaged: {error}") from error
        with self._lock:
            self._kept[batch, *names] = block
            while len(self._kept) > KEPT_BATCHES:
                del self._kept[next(iter(self._kept))]
        return block

    def _known(self, batches: NDArray[np.int64], names: list[str]) -> dict[int, Block]:
        """The kept columns of some record batches. They are kept in the order of their last use."""
        with self._lock:
            found = {batch: self._kept.pop((batch, *names), None) for batch in batches.tolist()}
            known = {batch: block for batch, block in found.items() if block is not None}
            self._kept |= {(batch, *names): block for batch, block in known.items()}
            return known

    # --------------------------------------------------------------------------------------------------------------------

    def _spans(self, ranges: Ranges, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Spans:
        return Spans(self.record_batches.file_of[ranges.batches], firsts, lasts)

    def _flat(self, parts: list[memoryview]) -> pa.Buffer:
        """Runs of bytes, end to end."""
        memory = pa.allocate_buffer(sum(map(len, parts)))
        np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=np.frombuffer(memory, np.uint8))
        return memory


# -- rows in the sets in which they will be wanted, one set ahead of use --------------------------------------------------

SET_BYTES: Final = 512 << 20
"""Larger sets are not fetched whole: their rows are long enough to be asked for one by one."""
KEPT_SETS: Final = 1
"""Sets that are kept beside the expected ones: a window that is planned already may still want rows of the last one."""

Locate = Callable[[NDArray[np.int64]], tuple[Block, NDArray[np.int64]]]


class Prefetched:
    """Gives the rows of an index out of the sets that are expected.

    Shuffled rows come from all over a set. One by one they would cost a request each, or the bytes of their neighbours again and
    again. So the whole set is fetched once, and all windows are cut from it.

    Args:
        locate: fetches rows directly.
        row_bytes: the size of a row, on average.
    """

    def __init__(self, locate: Locate, row_bytes: float) -> None:
        self._locate, self._row_bytes = locate, row_bytes
        self._sets: dict[Hashable, _FetchedRows] = {}
        self._next: list[_FetchedRows] = []
        self._lock = threading.Lock()

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        """Names the sets that will be wanted from now on, in order. Nothing is fetched before one of their rows is wanted."""
        with self._lock:
            expected = {}
            for one in sets:
                known = self._sets.pop(one.name, None)
                if known is None and 0 < one.num_rows * self._row_bytes <= SET_BYTES:
                    known = _FetchedRows(one.rows(), self._locate)
                if known is not None:
                    expected[one.name] = known
            for name in list(self._sets)[:-KEPT_SETS]:
                del self._sets[name]
            self._sets |= expected
            self._next = list(expected.values())

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        """As `Index.locate`."""
        with self._lock:
            sets, expected = list(self._sets.values())[::-1], self._next
        left = np.ones(len(numbers), dtype=bool)
        found: list[tuple[_FetchedRows, NDArray[np.bool_], NDArray[np.int64]]] = []
        for one in sets:
            rows, here = one.find(numbers)
            here &= left
            if here.any():
                one.begin()
                found.append((one, here, rows[here]))
                left &= ~here
        pieces = [(one.block(), here, rows) for one, here, rows in found]
        if left.any():
            block, rows = self._locate(numbers[left])
            pieces.append((block, left, rows))
        used = [one for one, _, _ in found]
        for before, after in pairwise(expected):
            if before in used:  # the set after one in use
                after.begin()
        if len(pieces) == 1:
            return pieces[0][0], pieces[0][2]
        places = np.empty(len(numbers), dtype=np.int64)
        places[np.concatenate([np.flatnonzero(here) for _, here, _ in pieces])] = np.arange(len(numbers))
        return concat(block.take(array_of(rows)) for block, _, rows in pieces), places


class _FetchedRows:
    """Rows that are fetched together, once, at the latest when the first of them is wanted."""

    def __init__(self, rows: NDArray[np.int64], locate: Locate) -> None:
        self._given, self._locate = rows, locate
        self._block: Future[Block] | None = None
        self._lock = threading.Lock()

    def find(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of the block for each number, and whether the block has it."""
        rows = np.searchsorted(self._rows, numbers)
        return rows, self._rows[np.minimum(rows, len(self._rows) - 1)] == numbers

    @once
    def _rows(self) -> NDArray[np.int64]:
        """The numbers of the rows, ascending; sorted when the first is wanted, so planning alone costs nothing. Price: 8 ms."""
        return np.sort(self._given)

    def begin(self) -> None:
        """Fetches the rows in a thread of its own."""
        with self._lock:
            if self._block is None:
                workers = Workers(1, "rows")
                self._block = workers.submit(self._fetch)
                self._block.add_done_callback(lambda _: workers.stop())

    def block(self) -> Block:
        """The rows, ascending. An error goes to the caller; the next call tries again."""
        self.begin()
        future = self._block
        assert future is not None
        try:
            return awaited(future)
        except BaseException:
            with self._lock:
                if self._block is future and future.done():
                    self._block = None
            raise

    def _fetch(self) -> Block:
        block, rows = self._locate(self._rows)
        assert len(rows) == block.num_rows
        return block
