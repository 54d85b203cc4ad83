"""A cache on disk of what comes from far away, for all processes of a machine: pieces of objects, whole ones, and indexes.

One file a piece, under a name made of the object's name, size and tag; written beside it, sealed with checksums, renamed. So a
process may be killed at any moment, and a file that is torn, damaged or foreign is never served. (fsspec's `blockcache` keeps
holes in one file and a pickle of their numbers, which two processes write over; `filecache` and huggingface_hub keep whole
files, and evict none; diskcache has a database, which is slow and unsafe on network disks.)
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final
from zlib import crc32

from brimful.plan.errors import integer, logger

if sys.platform != "win32":
    import fcntl

PIECE_BYTES: Final = 256 << 10
"""The size of a piece, but for the last one. By the 1 MB, shuffled rows of a store would bring 4 times as many bytes along; by
the 64 KB, 1 TB is 16 million files."""
LEAST_BYTES: Final = 1 << 20
"""A smaller cache holds too little to be of use."""
SHARE_OF_DISK: Final = 10
"""Without a limit of the user's, it is this part of the disk: a tenth."""
KEPT_SHARE: Final = 0.9
"""Of the limit, left after an eviction: the folder is listed once while a tenth of it is written."""
USED_SECONDS: Final = 10.0
"""A use is noted, as the time of the file, once in so many seconds."""
STALE_SECONDS: Final = 3600.0
"""A file that nobody has written to for so long was left by a process that was killed."""
LOCK_SECONDS: Final = 5.0
"""So long a process waits until another one has made room; then it goes on without keeping the piece."""
PAUSE_SECONDS: Final = 60.0
"""After an error of the disk nothing is written for so long."""

FOLDER: Final = "brimful-cache-1"
_LEDGER: Final = "ledger"
_TEXTS: Final = {
    "CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of brimful.\n",
    "README": "A cache of brimful (cache_dir=). You may delete this folder at any time, also while it is in use.\n",
}
_KEPT: Final = re.compile(r"[0-9a-f]{32}-(?:[0-9a-f]+|whole|index)")
_PART: Final = re.compile(r"[0-9a-f]{16}\.part")
_FOOTER: Final = struct.Struct("<QI8s")  # bytes of content, the checksum of its name and checksums, a mark
_MARK: Final = b"brimful1"
_HEAD: Final = struct.Struct("<QQI")  # bytes of all files, at so many bytes of the ledger; the checksum of both
_OURS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OURS
_SAID: Final[dict[str, object]] = {}
_FILE_BYTES: Final = PIECE_BYTES + 4 + _FOOTER.size


class KeptFile:
    """A whole file of the cache, which stays readable while it is held, also when it is evicted."""

    def __init__(self, descriptor: int, size: int, checksums: Sequence[int]) -> None:
        self.size: int = size
        self._descriptor, self._checksums = descriptor, checksums
        self._used = time.monotonic()
        weakref.finalize(self, os.close, descriptor)

    def read(self, first: int, last: int) -> memoryview | None:
        """Some bytes of its content; None: they are damaged."""
        if time.monotonic() - self._used > USED_SECONDS:
            self._used = time.monotonic()
            _use(self._descriptor)
        begin = first // PIECE_BYTES
        blocks = range(begin, -(-last // PIECE_BYTES))
        start, end = begin * PIECE_BYTES, min(self.size, blocks.stop * PIECE_BYTES)
        try:
            data = memoryview(os.pread(self._descriptor, end - start, start))
        except OSError:
            return None
        for number in blocks:
            at = (number - begin) * PIECE_BYTES
            if crc32(data[at : at + PIECE_BYTES]) != self._checksums[number]:
                return None
        return data[first - start : last - start] if len(data) == end - start else None


class DiskCache:
    """Files under names, of which those that were used last stay.

    The limit holds for all processes, within a piece that each of them is writing: before it writes one, it adds a byte to a
    common ledger, whose size so tells how much was written since the folder was last listed. Files of processes with a smaller
    limit go first by theirs.

    Args:
        folder: of the user's; the cache is a folder in it, and touches nothing else.
        most_bytes: of all files together; None: a tenth of the disk.
    """

    def __init__(self, folder: str, most_bytes: int | None = None) -> None:
        self.path: Final[str] = os.path.abspath(os.path.expanduser(folder))
        self.most_bytes: Final[int | None] = most_bytes
        if most_bytes is not None:
            integer("cache_bytes", most_bytes, LEAST_BYTES, "bytes")
        self._folder: _Folder | None = None
        self._quiet_until = 0.0

    def __reduce__(self) -> Any:
        return DiskCache, (self.path, self.most_bytes)

    def open(self, name: str) -> KeptFile | None:
        """A file of the cache; None: there is none that is whole."""
        try:
            at = self._opened().descriptor
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OURS, dir_fd=at)
        except OSError:
            return None
        file = _sealed(descriptor, name)
        if file is None:
            os.close(descriptor)
        return file

    def get(self, name: str, size: int) -> memoryview | None:
        """All of a file, if it has that size and is whole."""
        file = self.open(name)
        return file.read(0, size) if file is not None and file.size == size else None

    def forget(self, name: str) -> None:
        """Deletes a file whose content is damaged, if this user may."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._opened().descriptor)

    def put(self, name: str, content: memoryview) -> None:
        """Keeps something, if the disk lets it."""
        if time.monotonic() < self._quiet_until:
            return
        file = None
        try:
            file = self.begin(name)
            for first in range(0, len(content), PIECE_BYTES):
                file.add(content[first : first + PIECE_BYTES])
            file.seal()
        except BlockingIOError:  # another process makes room
            self._quiet_until = time.monotonic() + LOCK_SECONDS
        except OSError as error:
            self._quiet_until = time.monotonic() + PAUSE_SECONDS
            said = object()
            if _SAID.setdefault(self.path, said) is said:  # two threads meet an error at once
                logger.warning(
                    "the cache in %s takes nothing more, and reading goes on without it: %s", self.path, error
                )
        finally:
            if file is not None:
                file.drop()

    def begin(self, name: str) -> NewFile:
        """A new file, which is there under its name once it is sealed.

        Raises:
            OSError: there can be none now.
        """
        for again in (True, False):
            folder = self._opened()
            if folder.ledger is None:
                raise PermissionError(errno.EACCES, "this user may not write to it")
            try:
                if os.fstat(folder.ledger).st_nlink:
                    return NewFile(self, folder, name)
                raise FileNotFoundError(errno.ENOENT, "somebody took its ledger away")
            except FileNotFoundError:  # the folder is gone: a new one
                self._folder = None
                if not again:
                    raise
        raise AssertionError

    @property
    def limit(self) -> int:
        """Of all files together.

        Raises:
            OSError: there is no such folder, and there can be none.
        """
        if self.most_bytes is not None:
            return self.most_bytes
        disk = os.fstatvfs(self._opened().descriptor)
        return disk.f_blocks * disk.f_frsize // SHARE_OF_DISK

    def _opened(self) -> _Folder:
        folder = self._folder
        if folder is None:
            folder = self._folder = _Folder(self.path)
        return folder


class _Folder:
    """The cache's own folder, held open: nobody can put a link in its place."""

    def __init__(self, path: str) -> None:
        ours = os.path.join(path, FOLDER)
        with suppress(FileExistsError):
            os.makedirs(path, exist_ok=True)
            os.mkdir(ours)
        self.descriptor: Final = os.open(ours, os.O_RDONLY | os.O_DIRECTORY | _OURS)
        weakref.finalize(self, os.close, self.descriptor)
        self.ledger: int | None = None
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _OURS
            self.ledger = os.open(_LEDGER, flags, 0o666, dir_fd=self.descriptor)
            weakref.finalize(self, os.close, self.ledger)
        for name, text in _TEXTS.items():
            with suppress(OSError):
                descriptor = os.open(name, _NEW, 0o666, dir_fd=self.descriptor)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)

    def reserve(self, limit: int) -> None:
        """Room for one more piece, which is counted from now on.

        Raises:
            BlockingIOError: another process makes room, and is not ready.
            OSError: there is none.
        """
        assert self.ledger is not None
        os.write(self.ledger, b"\0")
        if self._used(self.ledger) > limit:
            self._evict(limit)

    def _used(self, ledger: int) -> float:
        """The bytes of all files, and of those that are being written; at most so many."""
        head = os.pread(ledger, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return float("inf")
        used, at, checksum = _HEAD.unpack(head)
        if checksum != crc32(head[:-4]):
            return float("inf")
        return float(used + (os.fstat(ledger).st_size - at) * _FILE_BYTES)

    def _evict(self, limit: int) -> None:
        # flock of a descriptor of our own, which leaves out threads too; filelock goes by paths, and by modes of its own.
        ledger = os.open(_LEDGER, os.O_RDWR | _OURS, dir_fd=self.descriptor)
        try:
            _lock(ledger)
            if self._used(ledger) <= limit:
                return
            at = max(_HEAD.size, os.fstat(ledger).st_size)
            used = self._evicted(limit)
            head = _HEAD.pack(used, at, 0)[:-4]
            os.pwrite(ledger, head + crc32(head).to_bytes(4, "little"), 0)
        finally:
            with suppress(OSError):  # a process that was forked meanwhile holds it, too
                fcntl.flock(ledger, fcntl.LOCK_UN)
            os.close(ledger)
        if used > limit:
            raise OSError(errno.EDQUOT, f"it may hold {limit:,} bytes, and {used:,} are in use by files that cannot go")

    def _evicted(self, limit: int) -> int:
        """Deletes what was used longest ago; the bytes that are left."""
        files: list[tuple[float, int, str]] = []
        used, now = 0, time.time()
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                is_part = _PART.fullmatch(entry.name) is not None
                if not is_part and not _KEPT.fullmatch(entry.name):
                    continue
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    size = found.st_size + (_FILE_BYTES if is_part else 0)
                    used += size
                    if not is_part or now - found.st_mtime > STALE_SECONDS:
                        files.append((found.st_mtime, size, entry.name))
        if used > limit:
            for _, size, name in sorted(files):
                if used <= limit * KEPT_SHARE - _FILE_BYTES:
                    break
                with suppress(FileNotFoundError):
                    try:
                        os.unlink(name, dir_fd=self.descriptor)
                    except PermissionError:  # of another user, in a folder where each deletes his own
                        continue
                used -= size
        logger.debug("the cache holds %d bytes of %d", used, limit)
        return used


class NewFile:
    """A file of the cache that is being written, block after block of PIECE_BYTES."""

    def __init__(self, cache: DiskCache, folder: _Folder, name: str) -> None:
        self._folder, self._name, self._limit = folder, name, cache.limit
        self._part: str | None = f"{token_hex(8)}.part"
        self._descriptor = os.open(self._part, _NEW, 0o666, dir_fd=folder.descriptor)
        self.size: int = 0
        self._checksums = b""

    def add(self, block: memoryview) -> None:
        """The next block; raises as `_Folder.reserve`, and where the disk is full."""
        self._folder.reserve(self._limit)
        _write(self._descriptor, block)
        self.size += len(block)
        self._checksums += crc32(block).to_bytes(4, "little")

    def seal(self) -> None:
        assert self._part is not None
        _write(self._descriptor, memoryview(self._checksums + _footer(self._name, self.size, self._checksums)))
        at = self._folder.descriptor
        os.replace(self._part, self._name, src_dir_fd=at, dst_dir_fd=at)
        self._part = None

    def drop(self) -> None:
        """Closes it; deletes it where it was not sealed."""
        os.close(self._descriptor)
        if self._part is not None:
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder.descriptor)


def cache_in(cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None) -> DiskCache | None:
    """The cache that the settings of a source ask for."""
    if cache_dir is None:
        if cache_bytes is not None:
            raise ValueError("cache_bytes= is the limit of a cache, which needs cache_dir=")
        return None
    if "://" in os.fspath(cache_dir):
        raise ValueError(f"cache_dir= is a folder of this machine (got {os.fspath(cache_dir)!r})")
    if sys.platform == "win32":
        raise ValueError("cache_dir= needs locks and folders of a POSIX system, which Windows has not")
    return DiskCache(os.fspath(cache_dir), cache_bytes)


def digest(*words: object) -> str:
    """The beginning of the names of what is kept of one content."""
    return hashlib.sha256("\0".join(map(str, words)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _sealed(descriptor: int, name: str) -> KeptFile | None:
    """A file, if it is one of ours, of that name and whole."""
    try:
        found = os.fstat(descriptor)
        size = found.st_size - _FOOTER.size
        if size < 0 or not stat.S_ISREG(found.st_mode):
            return None
        count = -(-size // (PIECE_BYTES + 4))
        content = size - 4 * count
        tail = os.pread(descriptor, 4 * count + _FOOTER.size, content)
    except OSError:
        return None
    checksums = tail[: 4 * count]
    if tail[4 * count :] != _footer(name, content, checksums):
        return None
    if time.time() - found.st_mtime > USED_SECONDS:
        _use(descriptor)
    return KeptFile(descriptor, content, struct.unpack(f"<{count}I", checksums))


def _footer(name: str, size: int, checksums: bytes) -> bytes:
    return _FOOTER.pack(size, crc32(checksums, crc32(f"{name}:{size}".encode())), _MARK)


def _use(descriptor: int) -> None:
    with suppress(OSError):  # of another user
        os.utime(descriptor)


def _write(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def _lock(descriptor: int) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)
