"""Files that are read forward, record after record: the bytes from a place on in a buffer, and a reader that cuts records off."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import DataError, StateError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.format import Parsed, ShardReader

RECORD_BYTES: Final = 1 << 28
"""A line, or a CBOR item, is not longer: of 3 GB of zeros, which compress to 3 MB, all would be held to find its end."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Forward:
    """`data`: what has been read and not yet cut off, the first of it the byte `offset` of the file; `ended`: nothing follows it.

    What lies before a place that is looked for is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) ends the data as their end does: it is kept as `error`, for when what lies before it
    has been handed out.
    """

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self.offset: int = 0
        self.data: bytearray = bytearray()
        self.error: Exception | None = None
        self._skip = 0
        self.ended: bool = False

    def fill(self, size: int) -> None:
        """Reads on until there are so many bytes, or the end or an error comes."""
        while len(self.data) < size and not self.ended and self.error is None:
            try:
                more = self._file.read(READ_BYTES) or b""
            except Exception as error:
                self.error = error
                return
            self.ended = not more
            skipped = min(self._skip, len(more))
            self._skip -= skipped
            self.data += more[skipped:]

    def growing(self, size: int) -> Iterator[tuple[int, bool]]:
        """How many of the first bytes to look at, so many, then twice as many, and so on, and whether nothing follows them;
        nothing at the end.

        Raises:
            DataError: a line is too long.
            Exception: the read error, after all bytes before it.
        """
        while True:
            self.fill(size)
            all_read = len(self.data) <= size
            ended = all_read and self.ended
            if ended and not self.data:
                return
            yield min(size, len(self.data)), ended
            if all_read and self.error is not None:
                raise self.error
            if len(self.data) > RECORD_BYTES:
                raise DataError(
                    f"no line ends within {RECORD_BYTES:,} bytes of byte {self.offset:,}; the shard is damaged, or must be cut "
                    "into shorter lines"
                )
            size *= 2

    def first(self, size: int) -> bytes:
        """The first bytes of the data."""
        with memoryview(self.data) as held:
            return bytes(held[:size])

    def cut(self, size: int) -> bytes:
        """The first bytes of the data, which these then no longer have."""
        data = self.first(size)
        del self.data[:size]
        self.offset += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Goes on to a later byte."""
        beyond = offset - self.offset - len(self.data)
        if beyond <= 0:
            self.cut(offset - self.offset)
            return
        self.data.clear()
        self.offset = offset
        if self._file.seekable():
            self._file.seek(offset)
        else:
            self._skip = beyond

    def pass_mark(self) -> None:
        """Passes over a byte order mark, at the beginning of the file."""
        self.fill(len(_BYTE_ORDER_MARK))
        if self.data.startswith(_BYTE_ORDER_MARK):
            self.cut(len(_BYTE_ORDER_MARK))

    def pass_newline(self, offset: int, *newlines: bytes) -> None:
        """Goes on to a later byte that a line begins at, or the end.

        Raises:
            StateError: none does.
        """
        self.seek(offset - 1)
        self.fill(2)
        begins = self.data[:1] in newlines and self.data[:2] != b"\r\n"
        if begins or (len(self.data) == 1 and self.ended):
            self.cut(1)
        elif self.error is None:
            raise StateError(
                f"no line begins at byte {offset:,}, where this state goes on: the shard was edited, or "
                "another stands in its place"
            )


class RecordBuffer(Protocol):
    """Some whole records: the offset of the first, where each ends from there on, int64 (n,), and how many units (lines, rows)
    each of them is, int64 (n,)."""

    @property
    def offset(self) -> int: ...
    @property
    def ends(self) -> NDArray[np.int64]: ...
    @property
    def units(self) -> NDArray[np.int64]: ...


B = TypeVar("B", bound=RecordBuffer)


class ForwardReader(ShardReader, Generic[B]):
    """Abstract: reads a shard record after record. Position: [byte, unit]."""

    @abstractmethod
    def cut(self) -> B | None:
        """The next records; None at the end.

        Raises:
            Exception: nothing more can be read, for any reason; without the place.
        """

    @abstractmethod
    def rows(self, records: B) -> Parsed:
        """The rows of records."""

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        try:
            records = self.cut()
        except Exception as error:
            raise self.located(error) from error.__cause__ or error
        if records is None:
            return None
        positions = np.column_stack((records.offset + records.ends, self.at[-1] + np.cumsum(records.units)))
        return self.rows(records), positions
