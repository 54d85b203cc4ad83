"""The bytes of a file from a place on, read forward into a buffer that its reader cuts records from."""

from __future__ import annotations

from typing import Final

from brimful.core.errors import DataError, StateError
from brimful.sources.bytes import READ_BYTES, Bytes

LINE_BYTES: Final = 1 << 28
"""A line is not longer: of 3 GB of zeros, which compress to 3 MB, all would be held to find its end."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Forward:
    """`data`: what has been read and not yet cut off, the first of it the byte `offset` of the file; `ended`: nothing follows it.

    What lies before a place that is looked for is skipped (decompressed, where it must be) without a look at what it says.

    A read error (a truncated archive) ends the data as their end does: it is kept as `error`, for when what lies before it
    has been handed out.
    """

    def __init__(self, file: Bytes) -> None:
        self._file = file
        self.offset = 0
        self.data = bytearray()
        self.error: Exception | None = None
        self._skip = 0
        self.ended = False

    def fill(self, size: int) -> None:
        """Reads on until there are so many bytes, or the end or an error comes."""
        while len(self.data) < size and self.grow():
            pass

    def grow(self) -> bool:
        """Reads on; False at the end, and at an error."""
        while not self.ended and self.error is None:
            try:
                more = self._file.read(READ_BYTES) or b""
            except Exception as error:
                self.error = error
                break
            self.ended = not more
            skipped = min(self._skip, len(more))
            self._skip -= skipped
            if skipped < len(more):
                self.data += more[skipped:]
                return True
        return False

    @property
    def too_long(self) -> bool:
        """Whether more is held than a line may have."""
        return len(self.data) > LINE_BYTES

    def refuse_line(self) -> None:
        """Refuses a line that has gone on for too long.

        Raises:
            DataError: with the byte where it begins.
        """
        if self.too_long:
            raise DataError(
                f"no line ends within {LINE_BYTES:,} bytes of byte {self.offset:,}; the shard is damaged, or must be cut into "
                "shorter lines"
            )

    def cut(self, size: int) -> bytes:
        """The first bytes of the data, which these then no longer have."""
        with memoryview(self.data) as held:
            data = bytes(held[:size])
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
            raise StateError(f"no line begins at byte {offset:,}, where this state goes on: the shard was edited")

    def close(self) -> None:
        self._file.close()
