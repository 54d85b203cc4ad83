"""Results on disk as samples: a file is read when one of its rows is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block, visible
from brimful.blocks.ragged import EMPTY, concat, offsets_of, ragged, with_column
from brimful.blocks.schema import UNFIT
from brimful.core.distinct import distinct
from brimful.core.errors import ORIGIN, DataError, origins
from brimful.core.once import once
from brimful.index.index import DataIndex, taken
from brimful.inference.results import ResultFiles, typed

KEPT_FILES: Final = 16


@dataclass(frozen=True, eq=False)
class ResultIndex(DataIndex):
    """The results of a finished run of `map_batches_in_order`.

    Args:
        folder: of the results.
        runs: of files of as many results each: (results, files).
        crc32: of what made them.
    Price: a file is read when a row of it is wanted, and 16 are kept. Lengths of a list column: all files are read once, and 4
        bytes a row kept.
    """

    made_by = "map_batches_in_order"

    folder: Path
    runs: tuple[tuple[int, int], ...]
    crc32: int

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        if not len(numbers) or (not required and not (columns and set(columns) <= set(self.schema.names))):
            return np.zeros(len(numbers), dtype=np.int64)
        found = []
        for column in columns:
            if column not in self._lengths:
                files = range(len(self._starts) - 1)
                counts = [ragged(self._rows(file), column).lengths for file in files]
                self._lengths[column] = np.concatenate(counts).astype(np.int32)
            found.append(self._lengths[column][numbers])
        return found[0] if len(found) == 1 else np.stack(found, axis=1)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return EMPTY, numbers
        file_of = np.searchsorted(self._starts, numbers, side="right") - 1
        files = distinct(file_of)
        if len(files) == 1:
            return self._rows(int(files[0])), numbers - self._starts[files[0]]
        order = np.argsort(file_of, kind="stable")
        ascending, edges = numbers[order], np.searchsorted(file_of[order], files).tolist()
        parts = [
            taken(self._rows(file), ascending[first:last] - self._starts[file])
            for file, first, last in zip(files.tolist(), edges, [*edges[1:], len(numbers)])
        ]
        places = np.empty(len(numbers), dtype=np.int64)
        places[order] = np.arange(len(numbers))
        return concat(parts), places

    @once
    def schema(self) -> pa.Schema:
        return visible(self._rows(0)).schema if len(self) else pa.schema([])

    def fingerprint(self) -> dict[str, int]:
        return {"rows": len(self), "crc32": self.crc32}

    @once
    def _starts(self) -> NDArray[np.int64]:
        sizes, counts = np.array(self.runs, dtype=np.int64).reshape(-1, 2).T
        return offsets_of(np.repeat(sizes, counts))

    @once
    def _lengths(self) -> dict[str, NDArray[np.int32]]:
        return {}

    @once
    def _rows(self) -> Callable[[int], Block]:
        """The rows of a file."""
        return lru_cache(KEPT_FILES)(self._read)

    def _read(self, file: int) -> Block:
        files, rows = ResultFiles(self.folder), int(self._starts[file + 1] - self._starts[file])
        if files.are_parquet:
            block = concat(files.table(file, rows).to_batches())
        else:
            lines = files.lines(file, rows)
            try:
                block = typed(lines, self._first_schema if file else None)
            except (ValueError, TypeError, *UNFIT) as error:
                raise DataError(
                    f"{files.path_of(file)} holds results that are no rows of one table ({error}); read its lines as JSON"
                ) from error
        name = f"results {self.folder.name}/{files.path_of(file).name}"
        origin = origins(name, np.arange(rows), "row" if files.are_parquet else "line")
        return with_column(block.replace_schema_metadata(None), ORIGIN, origin)

    @once
    def _first_schema(self) -> pa.Schema:
        """The types of the first results, and whether they are dicts."""
        return typed(ResultFiles(self.folder).lines(0, int(self._starts[1])), None).schema
