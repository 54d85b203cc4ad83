"""Places inside of compressed files from which they can be read on: frames of zstd, and the points of an index of gzip."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

from brimful.plan.errors import logger
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.cache import DiskCache

SKIPPED_BYTES: Final = 8 << 20
"""Fewer bytes are decompressed sooner (25 ms) than a place is looked for."""
POINT_BYTES: Final = 4 << 20
"""From one point of a gzip file to the next, decompressed: 10 ms, and 32 KB of the index."""
MOST_POINTS: Final = 100
"""A point every so many parts of the compressed size, where that is more: of 1 GB, 10 MB."""
TRAILER_BYTES: Final = 8
"""After the data of a member: its checksum and size."""
INDEX_SECONDS: Final = 15.0
"""Making an index is given up after so long (5 GB, decompressed): the reader of the shard waits."""

_HEADER: Final = struct.Struct("<5s2xQQIII")  # mark, version, bytes compressed, bytes, spacing, window, points
_POINT: Final = struct.Struct("<QQBB")  # byte compressed, byte, bits of the byte before it, whether it has a window


class Place(NamedTuple):
    """A place: the decompressed byte, and the compressed one at which it is read on. In the middle of a member of gzip, the last
    `bits` of the byte `before` belong to it, and it refers to what is in the `window`."""

    at: int
    byte: int
    bits: int = 0
    before: bytes = b""
    window: bytes = b""


# -- gzip ------------------------------------------------------------------------------------------------------------------


def point_before(file: Bytes, at: int, kept: DiskCache, count_rest: Callable[[Place], int]) -> Place | None:
    """The last point of a gzip file before a byte; None: there is no index of it, nor can one be made.

    An index is made at the first resume, in one pass over the file, and kept only of a file that is whole. So one that is
    damaged is always read from its beginning, and breaks off where it always does.

    Args:
        count_rest: how many bytes there are from a place on; raises an error of a file that is damaged.
    """
    key = file.identity
    if key is None:
        return None
    name = f"{key}-index"
    found = kept.open(name)
    index = None if found is None else found.read(0, found.size)
    if index is None:
        index = _index(file, count_rest)
        if index is None:
            return None
        kept.put(name, index)
    return _last_before(index, min(at, _size_in(index) - 1), file)  # at the end there is a point that is none


def _size_in(index: memoryview) -> int:
    """How many bytes a file has, decompressed."""
    return int(_HEADER.unpack_from(index)[2])


def _index(file: Bytes, count_rest: Callable[[Place], int]) -> memoryview | None:
    """The index of a file, as indexed_gzip writes it; None where the file is not whole, or the package is not there.

    (rapidgzip is faster, with threads of its own, which ask for many parts of a file at once and outlive a fork.)
    """
    try:
        import indexed_gzip
    except ImportError:
        return None
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    exported, timed = io.BytesIO(), _Timed(file)
    try:
        with indexed_gzip.IndexedGzipFile(
            fileobj=timed, spacing=max(POINT_BYTES, size // MOST_POINTS), readbuf_size=READ_BYTES
        ) as reader:
            reader.build_full_index()  # the one way in which it compares the checksums of all members
            reader.export_index(fileobj=exported)
        index = exported.getbuffer()
        last = _last_before(index, _size_in(index) - 1, file)
        if last is None or last.at + count_rest(last) != _size_in(
            index
        ):  # indexed_gzip takes one that is cut off for whole
            return None
        file.compare()
    except Exception as error:  # of a file that is read from its beginning, then, and has one there too
        logger.info("no index was made of a gzip file of %d bytes: %s", size, error)
        return None
    return index


class _Timed:
    """A file that is read for INDEX_SECONDS at most."""

    def __init__(self, file: Bytes) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file
        self._until = time.monotonic() + INDEX_SECONDS

    def read(self, size: int) -> bytes:
        if time.monotonic() > self._until:
            raise TimeoutError(f"it takes more than {INDEX_SECONDS:g} seconds")
        return self._file.read(size) or b""


def _last_before(index: memoryview, at: int, file: Bytes) -> Place | None:
    *_, window_bytes, count = _HEADER.unpack_from(index)
    end = _HEADER.size + count * _POINT.size
    points = list(takewhile(lambda point: point[1] <= at, _POINT.iter_unpack(index[_HEADER.size : end])))
    if not points:
        return None
    byte, begin, bits, has_window = points[-1]
    first = end + window_bytes * sum(point[3] for point in points[:-1])
    before = b""
    if bits:
        file.seek(byte - 1)
        before = file.read(1) or b""
    return Place(begin, byte, bits, before, bytes(index[first : first + window_bytes * has_window]))


class ResumedMember:
    """The rest of a member of gzip from a point on, in the manner of `GzipMember`. (Its checksum was right when the index was
    made.)"""

    def __init__(self, place: Place) -> None:
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=place.window)
        self._after = b""
        if place.bits:
            bits = _PREFIXES[place.bits] + f"{place.before[0]:08b}"[::-1][-place.bits :]
            self._inflate.decompress(bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)))

    @property
    def eof(self) -> bool:
        return self._inflate.eof and len(self._after) >= TRAILER_BYTES

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail and not self.eof

    @property
    def unused_data(self) -> bytes:
        return self._after[TRAILER_BYTES:]

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if self._inflate.eof:
            self._after += data
            return b""
        found = self._inflate.decompress(self._inflate.unconsumed_tail + data, max(0, max_length))
        self._after = self._inflate.unused_data
        return found


_FIXED: Final = "0100000000"
_DYNAMIC: Final = "0010000000000111100000010001" + 41 * "0" + "10000011111110110101111100"
_PREFIXES: Final = {  # Python's zlib begins at a whole byte only: blocks without content, of 10 and 95 bits, fill what is missing
    bits: next(
        text
        for count in range(8)
        for text in (count * _FIXED, count * _FIXED + _DYNAMIC)
        if (len(text) + bits) % 8 == 0
    )
    for bits in range(1, 8)
}


# -- zstd ------------------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A frame of zstd: the byte at which it begins, how many bytes it holds (None: it does not say), and what it asks for: bytes
    of a window, and a dictionary (0: none)."""

    byte: int
    content: int | None
    window: int = 0
    dictionary: int = 0


def zstd_frames(file: Bytes) -> Iterator[Frame]:
    """The frames of a file by their headers, up to the first that is damaged."""
    at = 0

    def number(size: int) -> int:
        nonlocal at
        file.seek(at)
        data = file.read(size) or b""
        at += size
        if len(data) < size:
            raise EOFError
        return int.from_bytes(data, "little")

    with suppress(Exception):  # what is wrong has been found already, or will be when it is read
        while True:
            begin, mark = at, number(4)
            if mark & ~0xF == _SKIPPABLE:
                size = number(4)  # which moves on by itself
                at += size
                yield Frame(begin, 0)
                continue
            if mark != _FRAME:
                return
            flags = number(1)
            single = flags >> 5 & 1
            exponent, eighths = divmod(0 if single else number(1), 8)
            dictionary = number((0, 1, 2, 4)[flags & 3])
            width = (single, 2, 4, 8)[flags >> 6]
            content = number(width) + 256 * (width == 2) if width else None
            window = content if single and content is not None else (8 + eighths) << (exponent + 7)
            yield Frame(begin, content, window, dictionary)
            last = 0
            while not last:
                last, kind, size = (block := number(3)) & 1, block >> 1 & 3, block >> 3
                at += 1 if kind == _RLE else size
            at += 4 * (flags >> 2 & 1)


def frame_before(file: Bytes, at: int) -> Place | None:
    """The last frame of a zstd file that begins at or before a byte, so far as the frames before it say how many bytes they
    hold. None: it is the first one, or the file is damaged before it."""
    place, begin = None, 0
    for frame in zstd_frames(file):
        if frame.byte:
            place = Place(begin, frame.byte)
        if frame.content is None or begin + frame.content > at:
            break
        begin += frame.content
    return place


_FRAME: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A50
_RLE: Final = 1


@cache
def say_read_from_start() -> None:
    """Once in a process."""
    logger.info(
        "a zstd file of one frame, or of frames that do not say their size, is decompressed from its beginning at a resume; "
        "write several frames of 16 MB or so, each by a call of its own, to resume fast"
    )
