"""A token store as an index. Opening it reads the manifest; files are opened when their rows are wanted; rows come in bulk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import LABELS, REMEDIES
from brimful.core.errors import ORIGIN, ORIGIN_TYPE, DataError, logger
from brimful.core.once import once
from brimful.encoding.encoder import Padding, StoredTokenizer
from brimful.index.index import Ask, DataIndex, RowSet, RowSpans
from brimful.store.answers import kept_answers
from brimful.store.folder import Folder
from brimful.store.folders import folder_of, is_remote
from brimful.store.manifest import Manifest
from brimful.store.prefetch import Prefetched

MAX_EXTRA_ROWS: Final = 8
"""For each wanted row at most so many others are read along."""


@dataclass(frozen=True, eq=False)
class StoreIndex(DataIndex):
    """The rows of a finished store.

    Args:
        path: a local folder, or a URL of one.
        columns: the columns to read; None: all.
        storage_options: for fsspec.
        timeout_seconds: how long a request may take.
    Price: opening reads the manifest alone (1,000 files: 10 to 20 ms). Of a local store, `lengths` maps a file, and `locate`
        copies runs of rows: .5 ns a token where all rows of a window come in runs of 64, 2 where every third of them is
        wanted; nothing where rows follow one another in one record batch; and 2.5 us to check each file that is touched. `spans`
        copies the wanted rows alone, about 100 ns a row and column.
        Memory: two or three windows, whatever the size of the store; beside that, up to RESIDENT_BYTES of the system's pages are
        mapped.
        Side files of a remote store are read into memory when they are first wanted: 4 bytes a row and list column, and for each
        record batch 24 and 32 a column. Every rank reads whole shuffle windows (131,072 rows), the next one ahead of use, and
        holds three. Where a window has more than 512 MB it reads only the wanted rows, and not ahead. Each run of rows and
        column takes a request (strings: two), about 1 ms of processor time, and up to 8 KB that are not wanted.
        Other columns (with nulls, nested, booleans) are read whole for each record batch that is touched, of which 256 MB are
        kept: leave them out by `columns`.
    """

    made_by = "from_store"
    holds_files = True

    path: str
    columns: tuple[str, ...] | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 60.0

    @classmethod
    def opened(
        cls,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> StoreIndex:
        """The index of a store. Reads the manifest.

        Raises:
            ValueError: the store lacks one of the columns.
        """
        kept = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
        index = cls(os.fspath(path), kept, dict(storage_options or {}), timeout_seconds)
        known = index.manifest.columns
        if kept is not None:
            unknown = [name for name in kept if name not in known]
            if unknown:
                raise ValueError(
                    f"there is no column {unknown[0]!r} in the store {index.path} (columns: {', '.join(known) or 'none'})"
                )
            if not kept or len(set(kept)) < len(kept):
                raise ValueError(f"columns must name at least one column of a store, each once (got {list(kept)})")
        return index

    @once
    def manifest(self) -> Manifest:
        return self._folder.manifest

    @once
    def schema(self) -> pa.Schema:
        """The columns of the rows, without the origin; see `Folder.schema`.

        Price: maps a local file; reads the first kilobyte of a remote one, and `places.npy`.
        """
        schema = self._folder.schema
        return pa.schema([schema.field(name) for name in self._columns])

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        manifest, found = self.manifest, dict[str, tuple[Any, ...]]()
        for name in {**manifest.padding, **manifest.vocabularies}:
            padding = Padding(**manifest.padding[name]) if name in manifest.padding else None
            vocabulary = manifest.vocabularies.get(name) if name in self._columns else None
            found[name] = (StoredTokenizer(padding, vocabulary, self.path),)
        return found

    def texts(self) -> tuple[str, ...]:
        return self.manifest.texts

    def newest(self) -> tuple[float, str]:
        return self.manifest.newest, f"a file of the store {self.path}"

    def __len__(self) -> int:
        return self.manifest.rows

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        """Lengths of each row, int32; memory-mapped where the store is local.

        Raises:
            DataError: there is no such list column, or it has nulls.
        """
        known = {name: side for name, side in self.manifest.lengths.items() if name in self._columns}
        if not required and not (columns and set(columns) <= known.keys()):
            return np.broadcast_to(np.int64(0), len(self))
        for column in columns:
            if column not in known:
                raise DataError(
                    f"there is no list column {column!r} in the store {self.path} (list columns: {', '.join(known) or 'none'})"
                    f"{REMEDIES.get(column, '')}"
                )
            if nulls := self.manifest.nulls[column]:
                raise DataError(
                    f"column {column!r} of the store {self.path} has {nulls:,} nulls; filter them out or fill them"
                )
        counts = [self._folder.by_row(known[column]) for column in columns]
        return counts[0] if len(counts) == 1 else np.stack(counts, axis=1)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        known = self.manifest.lengths.keys() & set(self._columns)
        if len(columns) < 2 or not (required or set(columns) <= known):
            return self.lengths(columns, required)[numbers]
        return np.stack([self.lengths((column,), required)[numbers] for column in columns], axis=1)

    def only(self, columns: Sequence[str]) -> StoreIndex:
        return replace(self, columns=tuple(columns)) if columns else self

    @property
    def list_columns(self) -> Sequence[str]:
        manifest = self.manifest
        return [name for name in manifest.lengths if name in self._columns and not manifest.nulls[name]]

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        manifest = self.manifest
        counts, firsts = manifest.num_labels, manifest.first_labels
        if counts is None or firsts is None or LABELS not in self._columns or manifest.nulls[LABELS]:
            return None
        sides = (manifest.lengths[LABELS], counts, firsts)
        return np.array([self._folder.by_row(side)[numbers] for side in sides], dtype=np.int64)

    @property
    def expects(self) -> bool:
        return self._remote

    def expect(self, sets: Sequence[RowSet]) -> None:
        self._prefetched.expect(sets)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return pa.RecordBatch.from_pylist([], self.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))), numbers
        return self._prefetched.locate(numbers) if self._remote else self._fetched(numbers)

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        return self._folder.spans(self._columns, numbers) if len(numbers) else None

    def _fetched(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all():
            return self._folder.rows(numbers[:1], numbers[-1:] + 1, self._columns), np.arange(len(numbers))
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
        return self._folder.rows(firsts, lasts, self._columns), rows

    def beside(self, name: str, count: int, ask: Ask) -> NDArray[np.bool_]:
        if self._remote:
            logger.warning("%s is kept in memory: the store %s is not on this machine", name, self.path)
            return ask(lambda: None)
        content = hashlib.sha256("".join(file.sha256 for file in self.manifest.files).encode()).hexdigest()[:16]
        return kept_answers(Path(self.path).expanduser(), f"{name}.{content}", count, ask)

    def fingerprint(self) -> dict[str, Any]:
        chosen = {} if self.columns is None else {"columns": list(self.columns)}
        return {"rows": len(self), "digest": self.manifest.digest, **chosen}

    def _step(self, steps: NDArray[np.int64]) -> int:
        """The greatest step from one wanted row to the next at which it is cheaper to read the rows between them along."""
        gap = self._folder.gap_bytes
        step = max(1, int(gap * len(self) / max(1, sum(file.bytes for file in self.manifest.files))))
        while step > 1 and int(steps[steps <= step].sum()) > MAX_EXTRA_ROWS * len(steps):
            step //= 2
        return step

    @property
    def _columns(self) -> Sequence[str]:
        return tuple(self.manifest.columns) if self.columns is None else self.columns

    @property
    def _remote(self) -> bool:
        """Whether rows come over a network, and so are fetched ahead of use."""
        return is_remote(self.path)

    @once
    def _prefetched(self) -> Prefetched:
        return Prefetched(self._fetched, sum(file.bytes for file in self.manifest.files) / max(1, len(self)))

    @once
    def _folder(self) -> Folder:
        return folder_of(self.path, self.storage_options, self.timeout_seconds)
