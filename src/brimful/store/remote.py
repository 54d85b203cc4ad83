"""A store behind fsspec. Only the wanted rows are read, by ranges of bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import array_of, concat, is_list, list_array, offset_type, offsets_of
from brimful.core.distinct import distinct
from brimful.core.errors import DataError
from brimful.core.once import once
from brimful.sources.objects import Object, ObjectStore, Spans
from brimful.store.folder import Folder, Ranges, numpy_file
from brimful.store.manifest import SideFile
from brimful.store.side import MAGIC_BYTES, Places

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

    def __init__(self, url: str, storage_options: Mapping[str, Any], timeout_seconds: float) -> None:
        super().__init__(url.rstrip("/"))
        fs, root = fsspec.core.url_to_fs(self.path, **storage_options)
        self._root = root.rstrip("/")
        self._objects = ObjectStore(fs, timeout_seconds)
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

    def numbers(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file, which is read whole into memory."""
        if side.name not in self._arrays:
            content = self._part(self._object(side.name, side.bytes), 0, side.bytes)
            if damage := side.damage(self.path, hashlib.sha256(content).hexdigest()):
                raise DataError(damage)
            self._arrays[side.name] = numpy_file(content)
        return self._arrays[side.name]

    def sha256(self, file: SideFile) -> str:
        digest, one = hashlib.sha256(), self._object(file.name, file.bytes)
        for first in range(0, file.bytes, HASHED_BYTES):
            digest.update(self._part(one, first, min(file.bytes, first + HASHED_BYTES)))
        return digest.hexdigest()

    def block(self, ranges: Ranges, columns: Sequence[str]) -> Block:
        batches = distinct(ranges.batches)
        values = {
            name: self._values(name, ranges) for name in columns if self._is_list(name) or self._is_fixed(name, batches)
        }
        offsets = {name: self._offsets(name, ranges) for name in columns if self._is_text(name, batches)}
        others = [name for name in columns if name not in values and name not in offsets]
        spans = [*values.values(), *offsets.values()]
        kept = self._known(batches, others) if others else {}
        absent = [batch for batch in batches.tolist() if others and batch not in kept]
        found = self._read([*spans, *(self._whole(batch, others) for batch in absent)])

        out = {name: self._array(name, parts, ranges) for name, parts in zip(values, found)}
        tables = {name: self._ends(name, parts) for name, parts in zip(offsets, found[len(values) :])}
        texts = self._read([self._texts(name, ranges, table) for name, table in tables.items()])
        for (name, table), parts in zip(tables.items(), texts, strict=True):
            out[name] = self._strings(name, parts, table)
        if others:
            kept |= {batch: self._decoded(batch, others, parts) for batch, parts in zip(absent, found[len(spans) :])}
            out |= self._taken(others, ranges, kept)
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

    def _is_fixed(self, name: str, batches: NDArray[np.int64]) -> bool:
        kind = self._type(name)
        fixed = pa.types.is_primitive(kind) and kind.bit_width % 8 == 0
        return fixed and bool((self._places[name].validity[batches] < 0).all())

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
        values = self._places[name].last[ranges.batches]
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

    def _is_text(self, name: str, batches: NDArray[np.int64]) -> bool:
        kind = self._type(name)
        text = offset_type(kind) is not None and not is_list(kind)
        return text and bool((self._places[name].validity[batches] < 0).all())

    def _offsets(self, name: str, ranges: Ranges) -> Spans:
        width = np.dtype(offset_type(self._type(name))).itemsize
        begins = self._places[name].second[ranges.batches] + ranges.begins * width
        return self._spans(ranges, begins, begins + (ranges.counts + 1) * width)

    def _ends(self, name: str, parts: list[memoryview]) -> list[NDArray[np.int64]]:
        """The offsets of the rows of each range."""
        kind = offset_type(self._type(name))
        return [np.frombuffer(part, dtype=kind).astype(np.int64) for part in parts]

    def _texts(self, name: str, ranges: Ranges, table: list[NDArray[np.int64]]) -> Spans:
        begins = self._places[name].last[ranges.batches]
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
        firsts = [places.message[batch], *(places[name].start[batch] for name in names)]
        lasts = [places.body[batch], *(places[name].stop[batch] for name in names)]
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
        keys = {batch: (batch, *names) for batch in batches.tolist()}
        with self._lock:
            for key in keys.values():
                if key in self._kept:
                    self._kept[key] = self._kept.pop(key)
            return {batch: self._kept[key] for batch, key in keys.items() if key in self._kept}

    def _taken(self, names: list[str], ranges: Ranges, blocks: dict[int, Block]) -> dict[str, pa.Array]:
        together = concat(blocks[batch].slice(first, count) for batch, first, count in ranges.slices)
        return dict(zip(names, together.columns))

    # --------------------------------------------------------------------------------------------------------------------

    def _spans(self, ranges: Ranges, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Spans:
        return Spans(self.record_batches.file_of[ranges.batches], firsts, lasts)

    def _flat(self, parts: list[memoryview]) -> pa.Buffer:
        """Runs of bytes, end to end."""
        memory = pa.allocate_buffer(sum(map(len, parts)))
        np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=np.frombuffer(memory, np.uint8))
        return memory
