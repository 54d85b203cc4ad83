"""Arrow's own files and streams to rows: record batch after record batch, of which only the columns wanted are read."""

from __future__ import annotations

import io
import struct
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from brimful.plan.errors import DataError
from brimful.sources.bytes import Bytes, PrefetchedFile, RandomAccessFile
from brimful.sources.columnar import ColumnarFormat, ColumnarRows, Unit
from brimful.sources.format import Position, ReadRequest, ShardReader
from brimful.tables.ragged import any_part

_MAGIC: Final = b"ARROW1"
_HEAD: Final = struct.Struct("<ii")
"""Of a message: a mark, and how many bytes of metadata follow; none at the end of a stream."""
_TAIL: Final = struct.Struct("<i6s")
"""Of a file: the size of its footer, and what it is."""
_BLOCK: Final = struct.Struct("<qi4xq")
"""An entry of a footer: where a message is, and the bytes of its head and of its body."""
_MARK: Final = -1
_ALIGNED: Final = 64
_DICTIONARY, _ROWS = 2, 3
"""Kinds of messages."""


@final
class Arrow(ColumnarFormat):
    """Arrow IPC, files (also called Feather) and streams (as Hugging Face's data sets are kept), told apart by how they begin."""

    name = "arrow"
    extensions: tuple[str, ...] = (".arrow", ".ipc", ".feather")

    def columns(self, file: PrefetchedFile) -> pa.Schema | None:
        messages = Messages(file)
        return messages.schema if any(message.rows for message in messages.read(messages.first)) else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        return ArrowRows(file, request)


class Message(NamedTuple):
    """One message: where it begins and its body does, where it ends, what kind it is, and how many rows it has."""

    begin: int
    body: int
    end: int
    kind: int
    rows: int


class Messages:
    """The messages of a file or a stream, which lie end to end from the schema to the mark of the end. Also in a file: its
    footer is asked for what cannot be had otherwise, where dictionaries are, where a schema of polars ends, and where the
    messages do if older writers left out the mark.

    A stream that ends without the mark is taken for one whose writer was stopped, although Arrow allows it: its rows come, then
    an error. pyarrow, polars and Hugging Face's `datasets` all write it.

    Raises:
        DataError: it is neither of them.
    """

    metadata: bytes
    first: int

    def __init__(self, file: PrefetchedFile) -> None:
        self._file, self._end, self._footer = file, file.size, False
        head = bytes(file.bytes_at(0, 8))
        if not head:
            raise DataError("a file of 0 bytes is no Arrow file; the shard is damaged")
        if head.startswith(b"FEA1"):
            raise DataError("it is a Feather file of version 1; write it anew with pyarrow.feather.write_feather")
        begin = 0
        if head.startswith(_MAGIC):
            begin = len(head)
            tail = bytes(file.bytes_at(max(begin, file.size - _TAIL.size), _TAIL.size))
            size = _TAIL.unpack(tail)[0] if len(tail) == _TAIL.size and tail.endswith(_MAGIC) else -1
            self._footer = 0 <= size <= file.size - begin - _TAIL.size
            self._end -= (_TAIL.size + size) * self._footer
        self.metadata, self.first = self._schema(begin)
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(self.metadata))

    def _schema(self, begin: int) -> tuple[bytes, int]:
        """The message that has the schema, and where it ends. (polars writes it to files without its head.)"""
        if self._footer and bytes(self._file.bytes_at(begin, 4)) != _HEAD.pack(_MARK, 0)[:4]:
            end = min(self._in_footer(2) + self._in_footer(3), default=self._end - _HEAD.size)
            if not begin <= end <= begin + self._file.size - self._end + _ALIGNED:
                raise DataError(f"no message begins at byte {begin:,}, where one should; the shard is damaged")
            return _HEAD.pack(_MARK, end - begin) + bytes(self._file.bytes_at(begin, end - begin)), end
        message = self.at(begin)
        if message is None:
            raise DataError("it has no schema; the shard is damaged")
        return bytes(self._file.bytes_at(begin, message.end - begin)), message.end

    @property
    def dictionaries(self) -> list[int] | None:
        """Where those of a file begin, which may stand behind the rows; None: where they are met."""
        return self._in_footer(2) if self._footer else None

    def _in_footer(self, number: int) -> list[int]:
        """Where the messages begin that a field of the footer lists."""
        footer = self._file.bytes_at(self._end, self._file.size - self._end - _TAIL.size)
        place = _field(footer, _table(footer, 0), number)
        if place is None:
            return []
        place = _table(footer, place)
        (count,) = struct.unpack_from("<I", footer, place)
        return [first for first, *_ in _BLOCK.iter_unpack(footer[place + 4 : place + 4 + count * _BLOCK.size])]

    def read(self, begin: int) -> Iterator[Message]:
        """Those from an offset on."""
        while (message := self.at(begin)) is not None:
            yield message
            begin = message.end

    def at(self, begin: int) -> Message | None:
        """The message that begins there; None at the end."""
        if begin == self._end:
            if self._footer:
                return None
            raise DataError("it ends without the mark of its end: its writer was stopped, or it was cut off")
        if begin > self._end - _HEAD.size:
            raise DataError(f"it ends at byte {self._end:,}, within a message: it was cut off")
        mark, size = _HEAD.unpack(self._file.bytes_at(begin, _HEAD.size))
        body = begin + _HEAD.size + size
        if mark != _MARK or not 0 <= size <= self._end - begin - _HEAD.size:
            raise DataError(f"no message begins at byte {begin:,}, where one should; the shard is damaged")
        if not size:
            self._check_rest(begin + _HEAD.size)
            return None
        data = self._file.bytes_at(begin + _HEAD.size, size)
        top = _table(data, 0)
        (kind,) = struct.unpack_from("<B", data, _field(data, top, 1) or 0)
        where, length = _field(data, top, 2), _field(data, top, 3)
        end = body + (struct.unpack_from("<q", data, length)[0] if length else 0)
        if where is None or not body <= end <= self._end:
            raise DataError(f"the message at byte {begin:,} ends beyond the shard, which is damaged or was cut off")
        inner = _table(data, where)
        first = _field(data, inner, 0)
        if kind == _ROWS:
            return Message(begin, body, end, kind, struct.unpack_from("<q", data, first)[0] if first else 0)
        if kind != _DICTIONARY and first is not None:
            (big,) = struct.unpack_from("<h", data, first)
            if big != (sys.byteorder == "big"):
                raise DataError("it was written by a machine of another byte order; write it anew on this one")
        return Message(begin, body, end, kind, 0)

    def _check_rest(self, end: int) -> None:
        """Only zeros may follow the mark of the end: anything else could be rows."""
        rest = bytes(self._file.bytes_at(end, min(_ALIGNED, self._end - end)))
        if any(rest) or end + len(rest) < self._end:
            raise DataError(f"{self._end - end:,} bytes follow the mark of its end; the shard is damaged")


@final
class ArrowRows(ColumnarRows):
    """The rows of an Arrow file or stream. Position: [bytes, offset of the record batch, row in it, row].

    A resume reads on from the record batch in which it lies. Where a column is encoded by dictionaries it reads these first;
    of a stream, whose dictionaries lie between its record batches, it also reads how long each of those before it is.

    Price: a record batch is in memory at a time, as it is stored and decoded; those that Hugging Face's `datasets` write have
    1,000 rows. It is read whole where all columns are wanted, or one has a dictionary.
    """

    def begin(self, file: PrefetchedFile) -> pa.Schema:
        self._held, self._messages = file, Messages(file)
        return self._messages.schema

    def units(self, names: list[str], at: Position) -> Iterator[Unit | None]:
        schema, first = self._messages.schema, self._messages.first
        wanted = [schema.get_field_index(name) for name in names] or list(range(len(schema)))  # which have the rows
        dictionary = any(any_part(schema.field(place).type, _has_dictionary) for place in wanted)
        whole = dictionary or len(wanted) == len(schema)
        stream = _InTurn(self._held, self._messages)
        decode = stream if whole else _Alone(self._held, schema, wanted)
        known = self._messages.dictionaries if dictionary else []
        for message in filter(None, map(self._messages.at, known or ())):
            yield from self._hold(message)
            stream.put(message)
        for message in self._messages.read(first if known is None else max(first, at[1])):
            if message.kind == _ROWS and message.begin >= at[1]:
                if whole:
                    yield from self._hold(message)
                yield Unit(decode.batch(message).select(names), message.begin, 0, message.end)
            elif message.kind == _DICTIONARY and known is None:
                yield from self._hold(message)
                stream.put(message)
            elif message.kind not in (_DICTIONARY, _ROWS):
                raise DataError(
                    f"the message at byte {message.begin:,} is of kind {message.kind}; the shard is damaged"
                )

    def _hold(self, message: Message) -> Iterator[None]:
        yield from self._held.hold([(message.begin, message.end)], ahead=True)


class _Alone:
    """Record batches by themselves. Arrow takes single columns from files only: so each is given a footer of its own, that of
    a file which has no other."""

    def __init__(self, file: PrefetchedFile, schema: pa.Schema, wanted: list[int]) -> None:
        self._file, self._options = file, pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)
        sink = io.BytesIO()
        pa.ipc.new_file(sink, schema).close()
        written = sink.getvalue()
        size, _ = _TAIL.unpack(written[-_TAIL.size :])
        footer = bytearray(written[-_TAIL.size - size : -_TAIL.size])
        footer += bytes(-(len(footer) + 4) % 8)
        batches = _field(footer, _table(footer, 0), 3)
        assert batches is not None
        struct.pack_into("<I", footer, batches, len(footer) - batches)
        self._footer = bytes(footer) + struct.pack("<I", 1)

    def batch(self, message: Message) -> pa.RecordBatch:
        block = _BLOCK.pack(message.begin, message.body - message.begin, message.end - message.body)
        footer = self._footer + block
        source = _Followed(self._file, footer + _TAIL.pack(len(footer), _MAGIC))
        return pa.ipc.open_file(pa.PythonFile(source, mode="r"), options=self._options).get_batch(0)


class _Followed(RandomAccessFile):
    """A file with some bytes behind it."""

    def __init__(self, file: PrefetchedFile, tail: bytes) -> None:
        self._file, self._tail = file, memoryview(tail)
        self.size = file.size + len(tail)

    def bytes_at(self, first: int, count: int) -> memoryview:
        behind = first - self._file.size
        return self._tail[behind : behind + count] if behind >= 0 else self._file.bytes_at(first, count)


class _InTurn:
    """Record batches with dictionaries, which Arrow has to be given in the order in which they were written: a stream of those
    that are wanted."""

    closed = False

    def __init__(self, file: PrefetchedFile, messages: Messages) -> None:
        self._file = file
        self._parts = deque([memoryview(messages.metadata)])
        self._reader = pa.ipc.open_stream(
            pa.PythonFile(self, mode="r"), options=pa.ipc.IpcReadOptions(use_threads=False)
        )

    def put(self, message: Message) -> None:
        self._parts.append(self._file.bytes_at(message.begin, message.end - message.begin))

    def batch(self, message: Message) -> pa.RecordBatch:
        self.put(message)
        return self._reader.read_next_batch()

    def read(self, size: int) -> memoryview:
        """Arrow asks for the parts of a message, never beyond."""
        if not self._parts:
            return memoryview(b"")
        part = self._parts.popleft()
        if len(part) > size:
            self._parts.appendleft(part[size:])
        return part[:size]

    def close(self) -> None:
        self._parts.clear()


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return any_part(kind.storage_type, _has_dictionary)
    return bool(pa.types.is_dictionary(kind))


# -- as much of FlatBuffers as it takes to find a message's body ---------------------------------------------------------


def _table(data: Any, place: int) -> int:
    """The table that an offset at a place leads to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: Any, table: int, number: int) -> int | None:
    """Where a field of a table is; None where it has its default."""
    entries = table - int(struct.unpack_from("<i", data, table)[0])
    if entries < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, entries)[0]:
        return None
    (offset,) = struct.unpack_from("<H", data, entries + 4 + 2 * number)
    return table + int(offset) if offset else None
