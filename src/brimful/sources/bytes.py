"""The one reader of bytes: all of a file, here or far away, or the parts of it that Arrow wants; those of one and the same file,
asked for again where that may help."""

from __future__ import annotations

import io
import os
import stat
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, BinaryIO, Final
from weakref import WeakSet

from brimful.core.threads import awaited, pause
from brimful.plan.errors import DataError
from brimful.sources.cache import PIECE_BYTES, DiskCache, digest
from brimful.sources.objects import GAP_BYTES, WHOLE_ONLY, Object, ObjectStore
from brimful.sources.retry import RefusedError, repeated, without_loop

READ_BYTES: Final = 1 << 16
"""A read's size."""
BLOCK_BYTES: Final = 2 << 20
"""So many bytes of a remote file come at once: a whole number of reads, so that no read is cut where nothing is wrong."""
WHOLE_BLOCKS: Final = 64
"""So many open files have blocks of that size; more share the bytes of so many, for 64 streams of 12 shards would hold 3 GB."""


class Bytes(io.RawIOBase):
    """Abstract: an open file. What a read raised is kept, for what lies between (Arrow, a user's function) may hide it; each
    further read raises it again.

    `until`: what lies from there on will not be read next, so that it need not be asked for ahead.
    """

    failure: Exception | None = None
    until: int | None = None

    @property
    def identity(self) -> str | None:
        """A word for this content of this file; None: nothing tells it from another one."""
        return None

    def skip(self, count: int) -> int:
        """Passes over some of the next `count` bytes, as many as it need not read; how many."""
        return 0

    @abstractmethod
    def fill(self, buffer: memoryview) -> int:
        """Reads into a buffer that is not empty; fewer bytes than it holds come only before the end, or an error; none: the end.

        Raises:
            DataError: the file is not what it was when it was opened.
        """

    @abstractmethod
    def compare(self) -> None:
        """Looks whether the file is what it was when it was opened.

        Raises:
            DataError: it is not.
        """

    def readinto(self, buffer: Any) -> int:
        if self.failure is not None:
            raise self.failure
        try:
            return self.fill(memoryview(buffer).cast("B")) if len(buffer) else 0
        except Exception as error:
            self.failure = error
            raise

    def readable(self) -> bool:
        return True


class LocalFile(Bytes):
    """A file of this machine, up to the size that it had when it was opened: what is written to it, or taken away, while it
    is read is an error at its end. (One that takes its name leaves it whole.)"""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)
        self.name = path
        self._was = os.fstat(self._file.fileno())
        self._is_regular = stat.S_ISREG(self._was.st_mode)

    def fill(self, buffer: memoryview) -> int:
        if not self._is_regular:
            return self._file.readinto(buffer) or 0
        left = max(0, self._was.st_size - self._file.tell())
        count = self._file.readinto(buffer[:left]) if left else 0
        if not count:
            self.compare()
        return count or 0

    def compare(self) -> None:
        if not self._is_regular:
            return
        was, now = self._was, os.fstat(self._file.fileno())
        if was.st_size != now.st_size:
            raise DataError(f"it had {was.st_size:,} bytes when it was opened and has {now.st_size:,} now; {_REMEDY}")
        if was.st_mtime_ns != now.st_mtime_ns:
            raise DataError(f"its {was.st_size:,} bytes were written to after it had been opened; {_REMEDY}")

    @property
    def identity(self) -> str | None:
        was = self._was
        if not self._is_regular:
            return None
        path = os.path.realpath(self.name)
        return digest(path, was.st_dev, was.st_ino, was.st_size, was.st_mtime_ns, was.st_ctime_ns)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def seekable(self) -> bool:
        return self._file.seekable()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()


class RemoteFile(Bytes):
    """An object of a file system of fsspec.

    Where the file system does several things at once (S3, GCS, Azure, HTTP) it comes in blocks, the next one while this one is
    used. Else it is a file that is opened and read on, and after an error opened again: then all before the place is read once
    more where it cannot be passed over. (A file system without coroutines that stalls is not given up: it has a timeout of its
    own, or ends in ours.)

    Price: 2 blocks of 2 MB, of more than 64 open files 256 MB in all (at least 2 of 64 KB each); and one request more than
    blocks (two where the server has no strong tags). Connections are those of the file system's pool, which all of its files
    share: 10 of s3fs by default, 100 of HTTP.
    """

    def __init__(self, fs: Any, path: str, url: str, timeout_seconds: float, cache: DiskCache | None = None) -> None:
        self._fs, self._timeout, self._object = fs, timeout_seconds, Object(path, url)
        self._objects = ObjectStore(fs, timeout_seconds, cache)
        self._size = self._objects.look(self._object).size
        self._ranges = self._objects.at_once and self._size is not None
        if self._objects.is_http and not self._ranges:
            raise OSError(f"the server does not say how many bytes {url} has; {WHOLE_ONLY}")
        self._at = 0
        self._block, self._first = memoryview(b""), 0
        self._ahead: tuple[int, Future[memoryview]] | None = None
        self._file: BinaryIO | None = None
        self._place = 0
        _OPEN.add(self)

    @property
    def identity(self) -> str | None:
        return self._objects.identity(self._object)

    def fill(self, buffer: memoryview) -> int:
        wanted = len(buffer) if self._size is None else max(0, min(len(buffer), self._size - self._at))
        filled = 0
        while filled < wanted:
            part = self._part(wanted - filled)
            if not part:
                break
            buffer[filled : filled + len(part)] = part
            filled += len(part)
            self._at += len(part)
        if not filled:
            self.compare()
        return filled

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END and self._size is None:
            raise io.UnsupportedOperation("the size is not known")
        self._at = offset + (0, self._at, self._size or 0)[whence]
        return self._at

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead[1].cancel()
        if self._file is not None:
            self._file.close()
        self._block = memoryview(b"")
        _OPEN.discard(self)
        super().close()

    def compare(self) -> None:
        """By a request, where not every one so far said which content it wanted."""
        if not (self._ranges and self._objects.conditional(self._object)):
            try:
                self._objects.look(self._object)
            except RefusedError as error:
                raise OSError(str(error)) from error

    def _part(self, most: int) -> memoryview | bytes:
        try:
            if self._ranges:
                return self._ranged(most)
            cache, key = self._objects.cache, self.identity
            return self._streamed(self._at, most) if cache is None or key is None else self._kept(cache, key, most)
        except RefusedError as error:  # a fault of the store, not of the data
            raise OSError(str(error)) from error

    # -- in blocks -------------------------------------------------------------------------------------------------------

    def _ranged(self, most: int) -> memoryview:
        if not self._first <= self._at < self._first + len(self._block):
            aligned_with = bool(self._block) and self._at == self._first + len(self._block)
            if self._ahead is not None and self._ahead[0] != self._at:
                self._ahead[1].cancel()
                self._ahead = None
            self._ahead = self._ahead or self._begun(self._at)
            self._block, self._first = awaited(self._ahead[1]), self._at
            self._ahead = None
            after = self._at + len(self._block)
            if aligned_with and after not in (self.until, self._size):
                self._ahead = self._begun(after)
        start = self._at - self._first
        return self._block[start : start + most]

    def _begun(self, first: int) -> tuple[int, Future[memoryview]]:
        assert self._size is not None
        last = min(self._size, first + _block_bytes())
        if self.until is not None and first < self.until:
            last = min(last, self.until)
        return first, self._objects.begin(self._object, first, last)

    # -- as a stream -----------------------------------------------------------------------------------------------------

    def _streamed(self, at: int, most: int) -> bytes:
        async def attempt(_: float) -> bytes:
            if self._file is None or self._place != at:
                self._open(at)
            assert self._file is not None
            data = self._file.read(most)
            if not data and self._size is not None:
                raise EOFError(f"it ended at byte {at:,} of {self._size:,}")
            self._place += len(data)
            return data

        async def look(_: Exception) -> None:
            self._place = -1
            self._objects.look(self._object)

        async def sleep(seconds: float) -> None:
            pause(seconds)

        return without_loop(repeated(self._object.name, self._timeout, attempt, look, sleep))

    def _open(self, at: int) -> None:
        """At the place, or where that is not to be had, by reading up to it."""
        if self._file is not None:
            self._file.close()
        self._place = 0
        file = self._file = self._fs.open(self._object.path, "rb")
        with suppress(OSError, ValueError):  # a stream
            if at:
                file.seek(at)
                self._place = at
        while self._place < at and (data := file.read(min(READ_BYTES, at - self._place))):
            self._place += len(data)

    def _kept(self, cache: DiskCache, key: str, most: int) -> memoryview:
        """Of the piece of the cache that holds the place; or of the stream, whose next bytes the cache then has, once a look
        has shown that they are of the same content."""
        assert self._size is not None
        if not self._first <= self._at < self._first + len(self._block):
            number = self._at // PIECE_BYTES
            first, last = number * PIECE_BYTES, min(self._size, (number + 1) * PIECE_BYTES)
            found = cache.get(f"{key}-{number:x}", last - first)
            if found is None:
                last = min(self._size, first + max(1, BLOCK_BYTES // PIECE_BYTES) * PIECE_BYTES)
                data = bytearray()
                while len(data) < last - first:
                    data += self._streamed(first + len(data), last - first - len(data))
                self._objects.look(self._object)
                found = memoryview(data)
                for start in range(0, len(data), PIECE_BYTES):
                    cache.put(f"{key}-{number + start // PIECE_BYTES:x}", found[start : start + PIECE_BYTES])
            self._block, self._first = found, first
        start = self._at - self._first
        return self._block[start : start + most]


_OPEN: Final[WeakSet[RemoteFile]] = WeakSet()


def _block_bytes() -> int:
    reads = BLOCK_BYTES * WHOLE_BLOCKS // max(WHOLE_BLOCKS, len(_OPEN)) // READ_BYTES
    return max(1, reads) * READ_BYTES


_REMEDY: Final = "leave it as it is while it is read (new data go to new files), and begin anew"


def opened(fs: Any, path: str, url: str, timeout_seconds: float, cache: DiskCache | None = None) -> Bytes:
    """A file, here or far away; `cache`: keeps what comes from there."""
    return LocalFile(path) if is_local(fs) else RemoteFile(fs, path, url, timeout_seconds, cache)


def is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


# -- as Arrow reads --------------------------------------------------------------------------------------------------------


class RandomAccessFile(ABC):
    """Abstract: the methods that Arrow calls of a file, by `size` and `bytes_at` alone."""

    closed = False
    size: int
    _at = 0

    @abstractmethod
    def bytes_at(self, first: int, count: int) -> memoryview:
        """Bytes from `first` on; fewer only at the end."""

    def read(self, size: int) -> memoryview:
        data = self.bytes_at(self._at, size)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:  # noqa: B027  # Arrow calls it
        """Whoever opened the file closes it."""


class PrefetchedFile(RandomAccessFile):
    """A file whose parts are read before Arrow decodes them: 2 MB at a time, so that no step takes long and a slow store is
    seen to go on; and in runs, so that a store far away is asked for nothing else (less than GAP_BYTES between two runs comes
    along). Other parts are read when Arrow asks for them."""

    def __init__(self, file: Bytes) -> None:
        self._file = file
        try:
            self.size: int = file.seek(0, io.SEEK_END)
        except Exception as error:  # one that cannot be read from anywhere
            file.failure = error
            raise
        self._held: list[tuple[int, bytearray]] = []

    def hold(self, spans: Iterable[tuple[int, int]], ahead: bool = False) -> Iterator[None]:
        """Forgets what it held, and reads some (first, last), which it holds from now on; gives None between two steps.
        `ahead`: what follows them is wanted next.

        Raises:
            DataError: one lies outside of the file.
        """
        runs: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            if not 0 <= first <= last <= self.size:
                raise DataError(
                    f"bytes {first:,} to {last:,} are wanted of a file of {self.size:,}; the shard is damaged"
                )
            if runs and first <= runs[-1][1] + GAP_BYTES:
                before, end = runs.pop()
                first, last = before, max(last, end)
            runs.append((first, last))
        self._held = [(first, bytearray(last - first)) for first, last in runs]
        steps = [(first, start, data) for first, data in self._held for start in range(0, len(data), BLOCK_BYTES)]
        for number, (first, start, data) in enumerate(steps):
            if number:
                yield None
            self._file.until = None if ahead else first + len(data)
            self._file.seek(first + start)
            self._fill(memoryview(data)[start : start + BLOCK_BYTES])
            self._file.until = None

    def _fill(self, wanted: memoryview) -> None:
        done = 0
        while done < len(wanted):
            count = self._file.readinto(wanted[done:])
            if not count:
                raise DataError(f"the shard ends before byte {self._file.tell() + len(wanted) - done:,}")
            done += count

    def bytes_at(self, first: int, count: int) -> memoryview:
        run = bisect_right(self._held, first, key=lambda held: held[0]) - 1
        if run >= 0:
            start, data = self._held[run]
            if first + count <= start + len(data):
                return memoryview(data)[first - start : first - start + count]
        data = bytearray(max(0, min(count, self.size - first)))
        self._file.seek(first)
        self._fill(memoryview(data))
        return memoryview(data)
