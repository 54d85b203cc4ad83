"""The rows that a user's function reads from a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import OnError, StageError, StateError
from brimful.rows import Sample, as_sample, name_of
from brimful.sources.reader import Parsed, Position, Reader
from brimful.sources.schema import block_of, misfit

ShardFunction = Callable[[BinaryIO], Iterable[Sample | str]]
ROWS: Final = 256


class Called(Reader):
    """Holds the function's rows against the schema. A resume reads what it skips.

    Price: Python, once a row; 256 rows are read at a time.
    """

    unit = "row"

    def __init__(
        self,
        fn: ShardFunction,
        file: BinaryIO,
        schema: pa.Schema,
        closed: bool,
        name: str,
        at: Position,
        on_error: OnError,
    ) -> None:
        super().__init__(name, at, on_error)
        self._fn, self._file, self._schema, self._closed = fn, file, schema, closed
        self._rows: Iterator[Any] | None = None
        self._error: Exception | None = None

    def parse(self) -> tuple[Parsed, NDArray[np.int64]] | None:
        rows: list[Any] = []
        try:
            if self._rows is None:
                self._rows = self._begin()
            if self._error is None:
                for row in islice(self._rows, ROWS):
                    rows.append(row)
        except StateError:
            raise
        except Exception as error:
            self._error = error
        if rows:
            return _parsed(rows, self._schema, self._closed), self.at.offset + 1 + np.arange(len(rows))
        if self._error is not None:
            cause = f"{type(self._error).__name__}: {self._error}"
            raise StageError(f"format({name_of(self._fn)}) failed at {self.place()}: {cause}") from self._error
        return None

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> Iterator[Any]:
        rows = iter(self._fn(self._file))
        skipped = sum(1 for _ in islice(rows, self.at.offset))
        if skipped < self.at.offset:
            raise StateError(
                f"{self.place()}: the shard has {skipped:,} rows, but this state was saved after {self.at.offset:,}"
            )
        return rows


def _parsed(rows: Sequence[Any], schema: pa.Schema, closed: bool) -> Parsed:
    kept, records, errors = [], [], []
    for number, row in enumerate(rows):
        try:
            sample = columnar(row)
        except TypeError as error:
            errors.append((number, str(error)))
            continue
        if message := misfit(sample, schema, closed):
            errors.append((number, message))
        else:
            kept.append(sample)
            records.append(number)
    return Parsed(block_of(kept, schema), np.array(records, dtype=np.int64), errors)


def columnar(row: Any) -> Sample:
    """A row as a dict of what Arrow takes: arrays and tensors of several dimensions as lists."""
    return {name: _value(value) for name, value in as_sample(row).items()}


def _value(value: Any) -> Any:
    if not hasattr(value, "__array__") or np.isscalar(value):
        return value
    array = np.asarray(value)
    return array if array.ndim == 1 else array.tolist()
