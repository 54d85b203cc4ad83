"""The rows that a user's function reads from a shard."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Final, final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError
from brimful.plan.errors import StageError, StateError, name_of
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.format import Format, Piece, ReadRequest, SampleParser, ShardReader
from brimful.tables.blocks import Sample, as_sample, rows_at
from brimful.tables.schema import first_rows, infer

ShardFunction = Callable[[BinaryIO], Iterable[Sample | str]]
ROWS: Final = 256


@final
@dataclass(frozen=True)
class FunctionFormat(Format):
    """A function of the open file, which yields rows."""

    fn: ShardFunction

    name = "function"
    unit = "row"
    places: tuple[str, ...] = ("done", "row")

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        rows = first_rows(self._good_rows(file))
        return infer(rows, columns, where) if rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        return FunctionReader(self.fn, file, request)

    def _good_rows(self, file: Bytes) -> Iterator[Sample]:
        try:
            for row in self.fn(io.BufferedReader(file, READ_BYTES)):
                with suppress(TypeError):
                    yield as_sample(row)
        except Exception:
            if isinstance(file.failure, TimeoutError):  # fewer rows might have another schema
                raise file.failure from None


class FunctionReader(ShardReader):
    """Holds the function's rows against the schema. A resume reads what it skips. Position: [row, row].

    Price: Python, once a row; up to 256 rows are read at a time.
    """

    def __init__(self, fn: ShardFunction, file: Bytes, request: ReadRequest) -> None:
        super().__init__(file, request)
        self._fn = fn

    def pieces(self) -> Iterator[Piece]:
        rows = self._rows_after(self.at[-1])
        parser = SampleParser(self._request.schema, self._request.closed, self._request.on_error)
        failure: Exception | None = None
        while failure is None:
            some: list[Any] = []
            try:
                for row in islice(rows, min(rows_at(self.at[-1]), ROWS)):
                    some.append(row)
            except StateError:
                raise
            except Exception as error:
                failure = error
            if some:
                numbers = self.at[-1] + 1 + np.arange(len(some))
                yield parser.rows(dict(enumerate(map(_sample, some)))), np.column_stack((numbers, numbers))
            elif failure is None:
                break
        if self._file.failure is not None:  # whatever the function made of it
            raise self.located(self._file.failure) from self._file.failure
        if failure is not None:
            cause = f"{type(failure).__name__}: {failure}"
            raise StageError(f"format({name_of(self._fn)}) failed at {self.place()}: {cause}") from failure

    def _rows_after(self, before: int) -> Iterator[Any]:
        rows = iter(self._fn(io.BufferedReader(self._file, READ_BYTES)))
        skipped = sum(1 for _ in islice(rows, before))
        if skipped < before:
            raise StateError(
                f"{self.place()}: the shard has {skipped:,} rows, but this state was saved after {before:,}"
            )
        yield from rows


def _sample(row: Any) -> Sample | str:
    """A row as a sample, or why it is none."""
    try:
        return as_sample(row)
    except TypeError as error:
        return str(error)
