"""Compressed files, read forward: all of their members, one after the other, or an error that says where they break off."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from brimful.plan.errors import DataError
from brimful.sources.bytes import READ_BYTES, Bytes, LocalFile
from brimful.sources.cache import DiskCache
from brimful.sources.restarts import (
    SKIPPED_BYTES,
    Frame,
    Place,
    ResumedMember,
    frame_before,
    point_before,
    say_read_from_start,
    zstd_frames,
)

COMPRESSIONS: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".lz4": "lz4",
    ".xz": "xz",
}
KINDS: Final = ("gzip", "zstd", "bz2", "xz", "lz4")
MAGIC_BYTES: Final = 16
"""So many bytes show how a file is compressed."""
WINDOW_BYTES: Final = 1 << 27
"""zstd reads no frame with a longer window unless it is told to."""
MOST_WINDOW_BYTES: Final = 1 << 31
"""Nor one with a longer window than this."""
_FIRST: Final = {
    "gzip": b"\x1f\x8b\x08",
    "zstd": b"\x28\xb5\x2f\xfd",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "lz4": b"\x04\x22\x4d\x18",
}
_BZ2: Final = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The beginning of a frame that zstd and lz4 pass over."""
_SAYS_NOTHING: Final = b"\xef\xbb\xbf \t\r\n"
_NO_TEXT: Final = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")


def endings(name: str) -> tuple[str, str | None]:
    """The extension of a file's name below that of its compression, in lower case, and the compression; of a URL without what
    follows its path, of a chain of file systems in the first that names a path.

    >>> endings("https://host/U.JSONL.GZ?sig=a.b"), endings("zip://a.csv::b.zip"), endings("part-?.txt.zst")
    (('.jsonl', 'gzip'), ('.csv', None), ('.txt', 'zstd'))
    """
    first, chained, rest = name.partition("::")
    path = first if not chained or "://" in first else rest
    found = _endings(re.split(r"[?#]", path, maxsplit=1)[0]) if "://" in path else ("", None)
    return found if found != ("", None) else _endings(path)  # a ? or # that belongs to the name


def _endings(path: str) -> tuple[str, str | None]:
    stem, last = os.path.splitext(path.lower())
    kind = COMPRESSIONS.get(last)
    return (last, None) if kind is None else (os.path.splitext(stem)[1], kind)


def compression_of(first: bytes, named: str | None) -> str | None:
    """The compression of a file by its first bytes, else by its name; None where it is not compressed, which text shows.

    >>> compression_of(b"(\\xb5/\\xfd...", "gzip"), compression_of(b'{"a": 1}', "gzip"), compression_of(b"(", "zstd")
    ('zstd', None, 'zstd')
    """
    while _SKIPPABLE.match(first):  # what follows says whose frame it is
        named = "lz4" if named == "lz4" else "zstd"
        first = first[8 + int.from_bytes(first[4:8], "little") :]
    found = next((kind for kind, magic in _FIRST.items() if first.startswith(magic)), None)
    if found is not None and (found != "bz2" or _BZ2.match(first)):
        return found
    breaks_off = (
        _FIRST[named].startswith(first[:3]) or (named in ("zstd", "lz4") and len(first) < 4) if named else False
    )
    return named if breaks_off or not _is_text(first) else None


def _is_text(data: bytes) -> bool:
    try:
        return not _NO_TEXT.search(codecs.getincrementaldecoder("utf-8")().decode(data))
    except UnicodeDecodeError:
        return False


# -- the first bytes -----------------------------------------------------------------------------------------------------


def begun(file: Bytes, size: int = READ_BYTES, resumed: bool = False) -> tuple[Bytes, bytes]:
    """A file, and some of its first bytes, which it gives again without reading them twice: enough to show what it is. A read
    error is kept by the file.

    Args:
        resumed: it will be read from a later place on, so that nothing else of its beginning is worth asking for.
    """
    first = b""
    file.until = size if resumed else None
    try:
        while len(first) < size and not (len(first) >= MAGIC_BYTES and first.strip(_SAYS_NOTHING)):
            if not (more := file.read(size - len(first))):
                break
            first += more
    except Exception:  # which the file keeps
        pass
    except BaseException:  # nobody wants it any more
        file.close()
        raise
    file.until = None
    if isinstance(file, LocalFile) and file.seekable():
        file.seek(0)
        return file, first
    return Begun(file, first), first


class Begun(Bytes):
    """A file whose first bytes have been read, and come again."""

    def __init__(self, file: Bytes, first: bytes) -> None:
        self._file, self._first = file, first
        self._at, self._below = 0, len(first)

    def fill(self, buffer: memoryview) -> int:
        part = self._first[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        if len(part) < len(buffer):
            try:
                if self._below != self._at:
                    self._below = self._file.seek(self._at)
                more = self._file.readinto(buffer[len(part) :]) or 0
            except Exception:  # which the file keeps
                if not part:
                    raise
                return len(part)
            self._at += more
            self._below = self._at
            return len(part) + more
        return len(part)

    @property
    def identity(self) -> str | None:
        return self._file.identity

    def compare(self) -> None:
        self._file.compare()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            offset, self._below = self._file.seek(offset, whence), -1
        self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def seekable(self) -> bool:
        return self._file.seekable()

    def close(self) -> None:
        self._file.close()
        super().close()


# -- decompressed --------------------------------------------------------------------------------------------------------


class Decompressed(Bytes):
    """The content of a compressed file. It is read in steps of READ_BYTES from its beginning, also by a resume, so that one which
    is damaged breaks off at the same byte.

    zstd and lz4 are Arrow's. Its bz2 refuses an empty member, it has no xz, and its gzip takes zeros at the end, which are
    allowed, for damage, and rows along (370 MB/s; by members 350).

    Args:
        window_bytes: of zstd, where a frame may ask for more than WINDOW_BYTES: then it is Python's.
    """

    def __init__(self, file: Bytes, kind: str, window_bytes: int | None = None, cache: DiskCache | None = None) -> None:
        self._file, self._kind, self._cache, self._at = file, kind, cache, 0
        self._most_window = 1 << (max(WINDOW_BYTES, window_bytes or 0) - 1).bit_length()
        self._by_python = kind == "zstd" and window_bytes is not None
        self._stream: Any = self._begun(Until(file))

    def _begun(self, below: Until) -> Any:
        """A stream of what follows in the file, which stands at the beginning of a member."""
        if self._by_python:
            return Members(below, _zstd_member(self._most_window), padding=b"")
        member = _MEMBERS.get(self._kind)
        if member is not None:
            return Members(below, member)
        return pa.CompressedInputStream(pa.PythonFile(below, mode="r"), self._kind)

    def fill(self, buffer: memoryview) -> int:
        try:
            data = self._stream.read(len(buffer))
        except Exception as error:
            self._check()
            if self._kind == "zstd" and (refused := self._refused(str(error))) is not None:
                raise DataError(f"cannot be read on: {refused}") from error
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
        # Arrow gives nothing of what it asked for at once and is damaged
        return self._begun(Until(self._file, -place.byte % READ_BYTES))

    def compare(self) -> None:
        self._file.compare()

    def _check(self) -> None:
        """Tells a file that could not be read on, or that has no bytes, from the end of one, or from one that is damaged."""
        if self._file.failure is not None:
            raise self._file.failure
        if not self._file.tell():
            raise DataError(f"cannot be read on: a file of 0 bytes is no {self._kind} file; the shard is damaged")

    def _refused(self, error: str) -> str | None:
        """Why zstd refuses a frame that is whole, and what to do; the first such frame of the file is looked for."""
        if "Dictionary" in error:
            frame = next((one for one in self._frames() if one.dictionary), None)
            which = f"dictionary {frame.dictionary:,}" if frame else "a dictionary"
            return f"it was compressed with {which}, which is not in the file; compress it again without a dictionary"
        if "too much memory" not in error:
            return None
        most = self._most_window
        frame = next((one for one in self._frames() if one.window > most), None)
        wanted = f"{frame.window:,} bytes" if frame else f"more than {most:,} bytes"
        if frame and frame.window > MOST_WINDOW_BYTES:
            return f"it needs a zstd window of {wanted}, and zstd has {MOST_WINDOW_BYTES:,} at most; compress it again"
        return (
            f"it needs a zstd window of {wanted}, and {most:,} are allowed; pass zstd_window_bytes="
            f"{frame.window if frame else MOST_WINDOW_BYTES}, which takes so much memory for each open shard "
            "(pip install 'brimful[zstd]')"
        )

    def _frames(self) -> Iterator[Frame]:
        return zstd_frames(self._file) if self._file.seekable() else iter(())

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

    def __init__(
        self, file: Until, begin: Callable[[], _Member], member: _Member | None = None, padding: bytes = b"\0"
    ) -> None:
        self._file, self._begin, self._padding = file, begin, padding
        self._member: _Member | None = begin() if member is None else member
        self._rest = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._member is None:
                while not (rest := self._rest.lstrip(self._padding)):
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


# -- zstd ----------------------------------------------------------------------------------------------------------------


def check_zstd() -> None:
    """Refuses `zstd_window_bytes` where Python's zstd is not there.

    Raises:
        ImportError: with what to install.
    """
    try:
        _python_zstd()
    except ImportError as error:
        raise ImportError("zstd_window_bytes= needs backports.zstd: pip install 'brimful[zstd]'") from error


def _python_zstd() -> Any:
    """The module of Python 3.14, or its twin for older ones."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _zstd_member(window_bytes: int) -> Callable[[], Any]:
    zstd = _python_zstd()
    options = {zstd.DecompressionParameter.window_log_max: window_bytes.bit_length() - 1}
    return partial(zstd.ZstdDecompressor, options=options)
