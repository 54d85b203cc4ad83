"""A token store as an index: opened from its manifest, files mapped when they are first touched, rows fetched in bulk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brimful.errors import DataError
from brimful.ragged import EMPTY
from brimful.rows import Block
from brimful.sources.index import Index
from brimful.store.fetch import Fetcher
from brimful.store.manifest import Manifest, SideFile, check_size
from brimful.store.pipeline import require_version
from brimful.store.progress import shown
from brimful.store.writer import write_store
from brimful.stream import Stage

GAP_BYTES: Final = 4096
"""What is copied in the time that one more slice takes: rows that are not wanted are fetched along where they are less."""
MOST_ALONG: Final = 8
"""Times the rows wanted: more are not fetched along."""


@dataclass(frozen=True, eq=False)
class StoreIndex(Index):
    """The rows of a finished store.

    Price: opening reads the manifest alone (1,000 files: 10 to 20 ms); `lengths` maps a file. `locate` copies runs of rows:
        .5 ns a token where all rows of a window come in runs of 64, 2 where every third of them is wanted; nothing where
        rows follow one another in one record batch. Memory: two or three windows, whatever the size of the store; beside
        that, up to 1 GB of the system's pages is mapped.
    """

    path: str

    @classmethod
    def opened(cls, path: str | os.PathLike[str]) -> StoreIndex:
        """The index of a store of which the manifest has been read."""
        if "://" in os.fspath(path):
            raise ValueError(f"a store is read from a local folder (got {path}); copy it there")
        index = cls(os.fspath(path))
        assert index.manifest
        return index

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.load(Path(self.path))

    def __len__(self) -> int:
        return self.manifest.rows

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        """Lengths of each row, int32, memory-mapped.

        Raises:
            DataError: there is no such list column, or it has nulls.
        """
        known = self.manifest.lengths
        if not required and not (columns and set(columns) <= known.keys()):
            return np.broadcast_to(np.int64(0), len(self))
        for column in columns:
            if column not in known:
                raise DataError(
                    f"there is no list column {column!r} in the store {self.path} (list columns: {', '.join(known) or 'none'})"
                )
            if nulls := self.manifest.nulls[column]:
                raise DataError(
                    f"column {column!r} of the store {self.path} has {nulls:,} nulls; filter them out or fill them"
                )
        counts = [self._numbers(known[column]) for column in columns]
        return counts[0] if len(counts) == 1 else np.stack(counts, axis=1)

    def num_labels(self) -> NDArray[np.int32] | None:
        """Labels of each row that are trained on, int32 (n,), memory-mapped; None where the rows have no labels."""
        side = self.manifest.num_labels
        return None if side is None else self._numbers(side)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return EMPTY, numbers
        if numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all():
            return self._fetcher.fetch(numbers[:1], numbers[-1:] + 1), np.arange(len(numbers))
        order = np.argsort(numbers)
        ascending = numbers[order]
        steps = np.diff(ascending)
        breaks = np.flatnonzero(steps > self._step(steps))
        firsts = ascending[np.concatenate(([0], breaks + 1))]
        lasts = ascending[np.concatenate((breaks, [len(numbers) - 1]))] + 1
        sizes = np.diff(breaks, prepend=-1, append=len(numbers) - 1)
        shifts = firsts - (np.cumsum(lasts - firsts) - (lasts - firsts))  # from row of the store to row of the block
        rows = np.empty(len(numbers), dtype=np.int64)
        rows[order] = ascending - np.repeat(shifts, sizes)
        return self._fetcher.fetch(firsts, lasts), rows

    def fingerprint(self) -> dict[str, Any]:
        return {"rows": len(self), "digest": self.manifest.digest}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # a copy in another process maps the files anew

    def _step(self, steps: NDArray[np.int64]) -> int:
        """The greatest step from one row wanted to the next over which it is cheaper to fetch what lies between."""
        step = max(1, int(GAP_BYTES * len(self) / max(1, sum(file.bytes for file in self.manifest.files))))
        while step > 1 and int(steps[steps <= step].sum()) > MOST_ALONG * len(steps):
            step //= 2
        return step

    @cached_property
    def _fetcher(self) -> Fetcher:
        return Fetcher(Path(self.path), self.manifest, lambda name: self._numbers(self.manifest.lengths[name]))

    def _numbers(self, side: SideFile) -> NDArray[np.int32]:
        if side.name not in self._mapped:
            path = check_size(Path(self.path), side)
            self._mapped[side.name] = np.asarray(np.load(path, mmap_mode="r" if len(self) else None))
        return self._mapped[side.name]

    @cached_property
    def _mapped(self) -> dict[str, NDArray[np.int32]]:
        return {}


@dataclass(frozen=True, eq=False)
class WrittenIndex(Index):
    """The rows of the first epoch of a chain, in a store that is complete before the first of them is handed out."""

    upstream: Stage[Block]
    path: str
    version: str | None
    timeout_seconds: float

    @cached_property
    def store(self) -> StoreIndex:
        with shown() as report:
            write_store(
                self.upstream, self.path, version=self.version, timeout_seconds=self.timeout_seconds, report=report
            )
        return StoreIndex(self.path)

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.store.lengths(columns, required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.store.locate(numbers)

    def fingerprint(self) -> dict[str, Any]:
        return self.store.fingerprint()


def stored(
    stage: Stage[Block], path: str | os.PathLike[str], version: str | None, timeout_seconds: float
) -> WrittenIndex:
    """The rows of a chain by way of a store, which is written when they are first wanted."""
    require_version(stage, version)
    return WrittenIndex(stage, os.fspath(path), version, timeout_seconds)
