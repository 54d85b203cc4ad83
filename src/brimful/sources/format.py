"""What a format is: how the bytes of a shard become rows, from any position on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import pyarrow as pa

from brimful.sources.bytes import Bytes
from brimful.sources.reader import Position, Reader, Wanted


class Format(ABC):
    """Abstract: one kind of shard. A file of its own each, and an entry in `formats.FORMATS`.

    Args:
        name: what `format=` calls it.
        extensions: of the shards that are of it where `format="auto"`.
        compressed: whether a shard may be compressed as a whole (.gz and so on): then it is read forward only.
        unit: what a record is called in messages.
        start: the position before the first row.
    """

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]] = ()
    compressed: ClassVar[bool] = True
    unit: ClassVar[str]
    start: ClassVar[Position] = (0, 0)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """That of the rows of every shard; None: it is looked for in the first shard that has rows."""

    @abstractmethod
    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        """Refuses what a user has set and does not apply.

        Raises:
            ValueError: with what does not.
        """

    @abstractmethod
    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
        """The schema of a shard, as it says itself, or judged by its first rows (`schema.SAMPLE_ROWS`) without those that are
        bad, which are errors when they are read; None where it has no row.

        Raises:
            DataError: it has not all of `columns`.
        """

    @abstractmethod
    def open(self, file: Bytes, wanted: Wanted) -> Reader:
        """The rows from a position on. Called in the thread that reads; nothing is read before the reader is asked."""
