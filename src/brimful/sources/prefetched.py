"""Files that Arrow reads from anywhere; one of them has parts in memory before Arrow wants them."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from brimful.plan.errors import DataError
from brimful.sources.bytes import BLOCK_BYTES, Bytes
from brimful.sources.objects import GAP_BYTES


class RandomAccessFile(ABC):
    """Abstract: the methods that Arrow calls of a file, by `size` and `bytes` alone."""

    closed = False
    size: int
    _at = 0

    @abstractmethod
    def bytes(self, first: int, count: int) -> memoryview:
        """Bytes from `first` on; fewer only at the end."""

    def read(self, size: int) -> memoryview:
        data = self.bytes(self._at, size)
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

    def bytes(self, first: int, count: int) -> memoryview:
        run = bisect_right(self._held, first, key=lambda held: held[0]) - 1
        if run >= 0:
            start, data = self._held[run]
            if first + count <= start + len(data):
                return memoryview(data)[first - start : first - start + count]
        data = bytearray(max(0, min(count, self.size - first)))
        self._file.seek(first)
        self._fill(memoryview(data))
        return memoryview(data)
