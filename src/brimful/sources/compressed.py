"""Compressed files, read forward: all of their members, one after the other, or an error that says where they break off."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from brimful.plan.errors import DataError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.cache import DiskCache
from brimful.sources.restarts import (
    SKIPPED_BYTES,
    Place,
    ResumedMember,
    frame_before,
    point_before,
    say_read_from_start,
)

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".xz": "xz"}


class Decompressed(Bytes):
    """The content of a compressed file. It is read in steps of READ_BYTES from its beginning, also by a resume, so that one which
    is damaged breaks off at the same byte.

    zstd and lz4 are Arrow's. Its bz2 refuses an empty member, it has no xz, and its gzip takes zeros at the end, which are
    allowed, for damage, and rows along (370 MB/s; by members 350).
    """

    def __init__(self, file: Bytes, kind: str, cache: DiskCache | None = None) -> None:
        self._file, self._kind, self._cache, self._at = file, kind, cache, 0
        below, member = Until(file), _MEMBERS.get(kind)
        self._stream: Any = (
            pa.CompressedInputStream(pa.PythonFile(below, mode="r"), kind) if member is None else Members(below, member)
        )

    def fill(self, buffer: memoryview) -> int:
        try:
            data = self._stream.read(len(buffer))
        except Exception as error:
            self._check()
            raise DataError(f"cannot be read on: {error}; the shard is damaged") from error
        if not data:
            self._check()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def skip(self, count: int) -> int:
        """Goes on from a later place at which the file can be read on, before any byte that is wanted: of gzip by an index in the
        cache, of zstd at a frame. What follows breaks off where it does when all is read."""
        if count < SKIPPED_BYTES or self._kind not in ("gzip", "zstd") or not self._file.seekable():
            return 0
        was = self._file.tell()
        with suppress(Exception):  # which the file keeps, or meets again when it is read
            aligned = READ_BYTES if self._kind == "zstd" else 1
            place = self._place_before(self._at + count + 1 - aligned)
            if place is not None and place.at > self._at:
                # A read of Arrow's that meets damage gives nothing, so each begins where it would from the beginning on.
                stream, step = self._from(place), -place.at % aligned
                if not step or len(stream.read(step)) == step:
                    self._stream = stream
                    skipped, self._at = place.at + step - self._at, place.at + step
                    return skipped
        self._file.seek(was)
        return 0

    def _place_before(self, at: int) -> Place | None:
        if self._kind == "gzip":
            return None if self._cache is None else point_before(self._file, at, self._cache, self._count_rest)
        place = frame_before(self._file, at)
        if place is None:
            say_read_from_start()
        return place

    def _count_rest(self, place: Place) -> int:
        stream = self._from(place)
        return sum(len(data) for data in iter(partial(stream.read, READ_BYTES), b""))

    def _from(self, place: Place) -> Any:
        self._file.seek(place.byte)
        if self._kind == "gzip":
            return Members(Until(self._file), GzipMember, ResumedMember(place))
        below = Until(
            self._file, -place.byte % READ_BYTES
        )  # Arrow gives nothing of what it asked for at once and is damaged
        return pa.CompressedInputStream(pa.PythonFile(below, mode="r"), self._kind)

    def compare(self) -> None:
        self._file.compare()

    def _check(self) -> None:
        """Tells a file that could not be read on, or that has no bytes, from the end of one, or from one that is damaged."""
        if self._file.failure is not None:
            raise self._file.failure
        if not self._file.tell():
            raise DataError(f"cannot be read on: a file of 0 bytes is no {self._kind} file; the shard is damaged")

    def close(self) -> None:
        self._file.close()
        super().close()


class Until:
    """A file up to where it can be read: an error would take along what has been decompressed before it.

    `first`: so many bytes come at once at first, if any; then as many as are asked for.
    """

    closed = False

    def __init__(self, file: Bytes, first: int = 0) -> None:
        self._file, self._first = file, first

    def read(self, size: int) -> bytes:
        size, self._first = min(size, self._first or size), 0
        try:
            return self._file.read(size) or b""
        except Exception:  # which the file keeps
            return b""

    def close(self) -> None:
        """Arrow closes a stream that is given up for another one; the file goes on."""


class Members:
    """All members of a file, and zeros after them. (Python's own files take a second one that is damaged for the end.)"""

    def __init__(self, file: Until, begin: Callable[[], _Member], member: _Member | None = None) -> None:
        self._file, self._begin = file, begin
        self._member: _Member | None = begin() if member is None else member
        self._rest = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._member is None:
                while not (rest := self._rest.lstrip(b"\0")):
                    self._rest = self._file.read(READ_BYTES)
                    if not self._rest:
                        return b""
                self._rest, self._member = rest, self._begin()
            elif self._member.needs_input:
                self._rest = self._file.read(READ_BYTES)
                if not self._rest:
                    raise EOFError("Truncated compressed stream")
            data = self._member.decompress(self._rest, size)
            self._rest = b""
            if self._member.eof:
                self._rest, self._member = self._member.unused_data, None
            if data:
                return data


class GzipMember:
    """zlib's decompressor, in the manner of those of bz2 and xz."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail and not self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max(0, max_length))


_Member: TypeAlias = GzipMember | ResumedMember | bz2.BZ2Decompressor | lzma.LZMADecompressor
_MEMBERS: Final[dict[str, Callable[[], _Member]]] = {
    "gzip": GzipMember,
    "bz2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
}
