"""A token store as an index: opened from its manifest, files touched when their rows are wanted, rows fetched in bulk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import LABELS, REMEDIES
from brimful.core.errors import ORIGIN, ORIGIN_TYPE, DataError
from brimful.core.once import once
from brimful.core.stage import Stage
from brimful.encoding.encoder import Padding, StoredTokenizer, paddings
from brimful.index.index import Index, RowSet
from brimful.store.folder import Folder
from brimful.store.folders import folder_of, is_remote
from brimful.store.manifest import Manifest
from brimful.store.pipeline import require_version
from brimful.store.prefetch import Prefetched
from brimful.store.progress import shown
from brimful.store.writer import write_store

MAX_EXTRA_ROWS: Final = 8
"""For each row wanted: more between them are not fetched along."""


@dataclass(frozen=True, eq=False)
class StoreIndex(Index):
    """The rows of a finished store.

    Args:
        path: a local folder, or a URL of one.
        columns: these alone; all where None.
        storage_options: for fsspec.
        timeout_seconds: how long a request may take.
        write: makes the store, if need be, before it is opened; it takes a `report`.
        made_of: the chain that it is made of then.
    Price: opening reads the manifest alone (1,000 files: 10 to 20 ms). Of a local store, `lengths` maps a file, and `locate`
        copies runs of rows: .5 ns a token where all rows of a window come in runs of 64, 2 where every third of them is
        wanted; nothing where rows follow one another in one record batch; and 2.5 us for each file that is touched, which is
        held against what was opened. Memory: two or three windows, whatever the size
        of the store; beside that, up to RESIDENT_BYTES of the system's pages are mapped.
        Of a remote one, side files come to memory when they are first wanted: 4 bytes a row and list column, and for each
        record batch 24 and 32 a column. Rows come by a shuffle window, the next one ahead of use, on every rank all of it
        (131,072 rows, three of them held; where that is more than 512 MB, by what is wanted, not ahead): a request for
        each run of rows and column (strings: two), about 1 ms of processor time, and up to 8 KB more than is wanted.
        Columns of other types (with nulls, nested, booleans) cost the whole column of each record batch they touch, of
        which 256 MB are kept: leave them out by `columns`.
    """

    made_by = "from_store"

    path: str
    columns: tuple[str, ...] | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 60.0
    write: Callable[..., Any] | None = None
    made_of: Stage[Block] | None = None

    @classmethod
    def opened(
        cls,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> StoreIndex:
        """The index of a store of which the manifest has been read.

        Raises:
            ValueError: it has not all of the columns.
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
        """The columns that are taken, as rows have them beside where they came from; of a store without a row, none.

        Price: a local file is mapped; of a remote one the first kilobyte is read, and `places.npy`.
        """
        schema = self._folder.schema
        return pa.schema([schema.field(name) for name in self._columns])

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        made = {name: Padding(**of) for name, of in self.manifest.padding.items()} if self.made_of is None else None
        found = paddings(self.made_of.tokenizers()) if made is None and self.made_of is not None else made or {}
        return {name: (StoredTokenizer(padding),) for name, padding in found.items()}

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

    @property
    def knows_labels(self) -> bool:
        manifest = self.manifest
        known = manifest.num_labels is not None and manifest.first_labels is not None
        return known and LABELS in self._columns and not manifest.nulls[LABELS]

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        manifest = self.manifest
        assert manifest.num_labels is not None
        assert manifest.first_labels is not None
        sides = (manifest.lengths[LABELS], manifest.num_labels, manifest.first_labels)
        out = np.empty((len(sides), len(numbers)), dtype=np.int64)
        for place, side in enumerate(sides):
            out[place] = self._folder.by_row(side)[numbers]
        return out

    @property
    def expects(self) -> bool:
        return self._remote

    def expect(self, sets: Sequence[RowSet]) -> None:
        self._prefetched.expect(sets)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return pa.RecordBatch.from_pylist([], self.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))), numbers
        return self._prefetched.locate(numbers) if self._remote else self._fetched(numbers)

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

    def fingerprint(self) -> dict[str, Any]:
        chosen = {} if self.columns is None else {"columns": list(self.columns)}
        return {"rows": len(self), "digest": self.manifest.digest, **chosen}

    def _step(self, steps: NDArray[np.int64]) -> int:
        """The greatest step from one row wanted to the next over which it is cheaper to fetch what lies between."""
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
        """Whether rows come over a network: then they are worth to be fetched ahead of use."""
        return is_remote(self.path)

    @once
    def _prefetched(self) -> Prefetched:
        return Prefetched(self._fetched, sum(file.bytes for file in self.manifest.files) / max(1, len(self)))

    @once
    def _folder(self) -> Folder:
        if self.write is not None:
            with shown() as report:
                self.write(report=report)
        return folder_of(self.path, self.storage_options, self.timeout_seconds)


def stored(
    stage: Stage[Block],
    path: str | os.PathLike[str],
    version: str | None,
    timeout_seconds: float,
    run: Stage[Block] | None = None,
    engine: str = "local",
) -> StoreIndex:
    """The rows of a chain by way of a store, which is written when they are first wanted, and complete before the first of
    them is handed out; see `write_store`."""
    require_version(stage, version)
    write = partial(
        write_store,
        stage,
        path,
        version=version,
        timeout_seconds=timeout_seconds,
        run=run,
        engine=engine,
    )
    return StoreIndex(os.fspath(path), write=write, made_of=stage)
