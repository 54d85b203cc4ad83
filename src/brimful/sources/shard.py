"""One open shard: blocks of its rows, each row with the position after it, read one block ahead in the background."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.background import Workers
from brimful.errors import ORIGIN, DataError, count, origins
from brimful.ragged import concat, with_column
from brimful.rows import Block, from_samples
from brimful.sources.jsonl import JsonLines, Parsed
from brimful.sources.lines import LineReader, Lines
from brimful.sources.urls import Shard, Shards

logger = logging.getLogger("brimful")

OnError = Literal["raise", "skip"]


class Position(NamedTuple):
    """A place in a shard, before a row: the byte (of the decompressed shard) and the number of lines before it."""

    offset: int
    line: int


class Rows(NamedTuple):
    """Rows of a shard, and the position after each, int64 (n,) each."""

    block: Block
    offsets: NDArray[np.int64]
    lines: NDArray[np.int64]


class Parser(Protocol):
    """Turns lines into rows; never raises for what a line holds, but says which lines gave no row."""

    def parse(self, lines: Lines) -> Parsed: ...


class Reader(Protocol):
    """Reads rows forward; None at the end."""

    def read(self) -> Rows | None: ...

    def close(self) -> None: ...


@dataclass
class ParsedLines:
    """Rows of a shard of lines, from a position on."""

    lines: LineReader
    parser: Parser
    name: str
    at: Position
    on_error: OnError
    failure: DataError | None = None

    def read(self) -> Rows | None:
        if self.failure is not None:
            raise self.failure
        try:
            lines = self.lines.read()
        except (OSError, EOFError, ValueError) as error:
            self._report(self.at.line + 1, f"cannot be read on: {error}; the shard is damaged", error)
            return None
        if lines is None:
            return None
        parsed = self.parser.parse(lines)
        rows = parsed.rows
        for number, message in parsed.errors:
            if self.on_error == "raise":
                rows = rows[rows < number]
                self.failure = self._error(self.at.line + number + 1, message)
                break
            self._report(self.at.line + number + 1, message)
        block = parsed.block.slice(0, len(rows))
        block = with_column(block, ORIGIN, origins(f"shard {self.name}", rows + self.at.line + 1))
        read = Rows(block, lines.ends[rows] + self.at.offset, rows + self.at.line + 1)
        self.at = Position(self.at.offset + len(lines.data), self.at.line + len(lines.ends))
        return read

    def close(self) -> None:
        self.lines.close()

    def _report(self, line: int, message: str, cause: Exception | None = None) -> None:
        error = self._error(line, message)
        if self.on_error == "raise":
            raise error from cause
        logger.warning("skipped: %s", error)
        count("skipped", 1)

    def _error(self, line: int, message: str) -> DataError:
        return DataError(f"shard {self.name}, line {line:,}: {message}")


@dataclass
class Called:
    """Rows of a shard that a user's function reads. A position counts rows: a resume reads what it skips."""

    rows: Iterable[dict[str, Any]]
    file: BinaryIO
    name: str
    at: Position

    def __post_init__(self) -> None:
        self._rows = iter(self.rows)
        skipped = sum(1 for _ in islice(self._rows, self.at.offset))
        assert skipped == self.at.offset, f"shard {self.name} has {skipped:,} rows, fewer than {self.at.offset:,}"

    def read(self) -> Rows | None:
        rows = list(islice(self._rows, 256))
        if not rows:
            return None
        numbers = self.at.offset + 1 + np.arange(len(rows), dtype=np.int64)
        block = with_column(from_samples(rows), ORIGIN, origins(f"shard {self.name}", numbers, "row"))
        self.at = Position(self.at.offset + len(rows), 0)
        return Rows(block, numbers, np.zeros_like(numbers))

    def close(self) -> None:
        self.file.close()


class OpenShard:
    """A shard being read: the rows not yet taken, and the next block on its way."""

    def __init__(
        self, number: int, open_reader: Callable[[], Reader], at: Position, workers: Workers, url: str, timeout: float
    ) -> None:
        self.number, self.at = number, at
        self._open, self._workers, self._url, self._timeout = open_reader, workers, url, timeout
        self._reader: Reader | None = None
        self._rows: Rows | None = None
        self._ended = False
        self._error: Exception | None = None
        self._next: Future[Rows | None] = workers.submit(self._read)

    def fill(self, rows: int, size: int) -> int:
        """Reads on until there are `rows` rows, or fewer of `size` bytes in all; returns how many of them there are.

        At least one where the shard has one; an error is raised only where no row lies before it.
        """
        while not self._ended and not self._error and not self._enough(rows, size):
            try:
                more = self._next.result(self._timeout)
            except FutureTimeoutError:
                raise TimeoutError(
                    f"nothing came from shard {self._url} within {self._timeout:g} seconds "
                    f"(at byte {self.at.offset:,}, line {self.at.line + 1:,}); raise timeout_seconds or check the store"
                ) from None
            except Exception as error:
                self._error = error
                break
            if more is None:
                self._ended = True
            else:
                self._rows = more if self._rows is None else _joined(self._rows, more)
                self._next = self._workers.submit(self._read)
        if self._rows is None or not self._rows.block.num_rows:
            if self._error is not None:
                raise self._error
            return 0
        return self._count(rows, size)

    def take(self, rows: int) -> Block:
        """The next `rows` of the rows that `fill` counted."""
        assert self._rows is not None
        block, offsets, lines = self._rows
        self.at = Position(int(offsets[rows - 1]), int(lines[rows - 1]))
        self._rows = Rows(block.slice(rows), offsets[rows:], lines[rows:])
        return block.slice(0, rows)

    def close(self) -> None:
        """Closes the file, once the read that is under way has ended; one that is stuck is left to end by itself."""
        try:
            self._next.result(0.0 if self._next.cancel() else 1.0)
        except (Exception, CancelledError):
            pass
        if self._reader is not None and self._next.done():
            self._reader.close()

    def _read(self) -> Rows | None:
        if self._reader is None:
            self._reader = self._open()
        return self._reader.read()

    def _enough(self, rows: int, size: int) -> bool:
        if self._rows is None:
            return False
        offsets = self._rows.offsets
        return len(offsets) >= rows or (len(offsets) > 0 and int(offsets[-1]) - self.at.offset >= size)

    def _count(self, rows: int, size: int) -> int:
        assert self._rows is not None
        by_size = int(np.searchsorted(self._rows.offsets, self.at.offset + size)) + 1
        return min(rows, by_size, len(self._rows.offsets))


def _joined(one: Rows, other: Rows) -> Rows:
    if not one.block.num_rows:
        return other
    return Rows(
        concat([one.block, other.block]),
        np.concatenate((one.offsets, other.offsets)),
        np.concatenate((one.lines, other.lines)),
    )


def open_lines(shards: Shards, shard: Shard, at: Position, parser: Parser, on_error: OnError) -> Reader:
    """A reader of a shard of lines."""
    file, compressed = shards.open(shard)
    return ParsedLines(LineReader(file, compressed, at.offset), parser, os.path.basename(shard.url), at, on_error)


def text_parser() -> Parser:
    """Each line a row {"text": ...}, without its newline; blank lines stay."""
    return _Text()


class _Text:
    def parse(self, lines: Lines) -> Parsed:
        kept, texts, errors = [], [], []
        for number, line in enumerate(lines.split()):
            try:
                texts.append(line.rstrip(b"\r\n").decode("utf-8"))
                kept.append(number)
            except UnicodeDecodeError as error:
                errors.append((number, f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,}"))
        block = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["text"])
        return Parsed(block, np.array(kept, dtype=np.int64), errors)


__all__ = ["Called", "JsonLines", "OpenShard", "Position", "open_lines", "text_parser"]
