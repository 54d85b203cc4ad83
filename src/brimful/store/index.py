"""A token store as an index. Opening it reads the manifest; files are opened when their rows are wanted; rows come in bulk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.atomic import write_atomically
from brimful.core.header import CHECKSUMS
from brimful.encoding.encoder import Padding, StoredTokenizer
from brimful.index.index import Ask, DataIndex, RowSet, RowSpans
from brimful.plan.errors import DataError, check_path, logger
from brimful.plan.once import once
from brimful.sources.cache import DiskCache
from brimful.store.folder import Folder
from brimful.store.journal import one_writer, this_writer
from brimful.store.local import LocalFolder
from brimful.store.manifest import Manifest
from brimful.store.remote import Prefetched, RemoteFolder
from brimful.tables.blocks import Block
from brimful.tables.origins import ORIGIN, ORIGIN_TYPE
from brimful.tables.ragged import LABELS, REMEDIES, SIZES, empty_block

MAX_EXTRA_ROWS: Final = 8
"""For each wanted row at most so many others are read along."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL for fsspec.

    >>> is_remote("s3://bucket/store"), is_remote("simplecache::memory://store"), is_remote("/data/store")
    (True, True, False)
    """
    return "://" in os.fspath(path) or "::" in os.fspath(path)


def folder_of(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
    cache: DiskCache | None = None,
) -> Folder:
    """The folder of a store, local or remote; `cache`: keeps what comes from there."""
    check_path("path", path)
    name = os.fspath(path)
    if is_remote(name):
        return RemoteFolder(name, storage_options or {}, timeout_seconds, cache)
    return LocalFolder(os.path.expanduser(name))


def verify_store(path: str | os.PathLike[str], report: Callable[[int], None] = lambda bytes: None) -> list[str]:
    """Reads every byte of a finished store again. Gives a sentence for each file that is missing or damaged, none if it is whole.

    Args:
        path: a local folder, or one behind fsspec.
        report: is told how many bytes were read since the last call.
    Raises:
        FileNotFoundError: there is no store, or one that is not finished.
        StateError: another release of brimful wrote it.
        TimeoutError: a remote file does not come.
    Price: about .7 ns a byte; of a remote store, 64 MB held.
    """
    folder = folder_of(path)
    try:
        manifest = folder.manifest
    except DataError as error:
        return [str(error)]
    problems = []
    for file in [*manifest.files, *manifest.side_files]:
        try:
            file.check(folder.path, folder.sha256(file))
        except DataError as error:
            problems.append(str(error))
        report(file.bytes)
    return problems


@dataclass(frozen=True, eq=False)
class StoreIndex(DataIndex):
    """The rows of a finished store.

    Args:
        path: a local folder, or a URL of one.
        columns: the columns to read; None: all.
        storage_options: for fsspec.
        timeout_seconds: how long a request may take.
        cache: on disk, of a remote store.
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
    cache: DiskCache | None = None

    @classmethod
    def opened(
        cls,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
        cache: DiskCache | None = None,
    ) -> StoreIndex:
        """The index of a store. Reads the manifest.

        Raises:
            ValueError: the store lacks one of the columns.
        """
        check_path("path", path)
        kept = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
        index = cls(os.fspath(path), kept, dict(storage_options or {}), timeout_seconds, cache)
        known = index.manifest.columns
        if kept is not None:
            if unknown := [name for name in kept if name not in known]:
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
        """Lengths of each row, int32; memory-mapped where the store is local."""
        return self._lengths(columns, required, slice(None))

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self._lengths(columns, required, numbers)

    def _lengths(self, columns: Sequence[str], required: bool, rows: NDArray[np.int64] | slice) -> NDArray[Any]:
        """Lengths of some rows.

        Raises:
            DataError: there is no such list column, or it has nulls.
        """
        known = {name: side for name, side in self.manifest.lengths.items() if name in self._columns}
        if not required and not (columns and set(columns) <= known.keys()):
            return np.broadcast_to(np.int64(0), len(self))[rows]
        for column in columns:
            if column not in known:
                raise DataError(
                    f"there is no list column {column!r} in the store {self.path} (list columns: {', '.join(known) or 'none'})"
                    f"{REMEDIES.get(column, SIZES)}"
                )
            if nulls := self.manifest.nulls[column]:
                raise DataError(
                    f"column {column!r} of the store {self.path} has {nulls:,} nulls; filter them out or fill them"
                )
        found = [self._folder.by_row(known[column]) for column in columns]
        counts = [each[rows] if isinstance(rows, slice) else each.take(rows) for each in found]
        return counts[0] if len(counts) == 1 else np.stack(counts, axis=1)

    def only(self, columns: Sequence[str]) -> StoreIndex:
        return replace(self, columns=tuple(columns)) if columns else self

    @property
    def list_columns(self) -> Sequence[str]:
        manifest = self.manifest
        return [name for name in manifest.lengths if name in self._columns and not manifest.nulls[name]]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        manifest = self.manifest
        counts, firsts = manifest.num_labels, manifest.first_labels
        if (
            column != LABELS
            or counts is None
            or firsts is None
            or LABELS not in self._columns
            or manifest.nulls[LABELS]
        ):
            return None
        sides = (manifest.lengths[LABELS], counts, firsts)
        return np.array([self._folder.by_row(side)[numbers] for side in sides], dtype=np.int64)

    @property
    def prefetches(self) -> bool:
        return is_remote(self.path)

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        self._prefetched.prefetch_hint(sets)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not len(numbers):
            return empty_block(self.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))), numbers
        return self._prefetched.locate(numbers) if self.prefetches else self._fetched(numbers)

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

    def cached_mask(self, name: str, count: int, ask: Ask) -> NDArray[np.bool_]:
        return self._beside(f"{name}.{self._content}.bits", count, ask, _BITS)

    def kept_sizes(self, name: str, ask: Callable[[Callable[[], None]], NDArray[np.int64]]) -> NDArray[np.int64]:
        return self._beside(f"{name}.{self._content}.sizes", len(self), ask, _SIZES)

    def _beside(self, name: str, count: int, ask: Any, form: _Form) -> NDArray[Any]:
        if is_remote(self.path):
            logger.warning("%s is kept in memory: the store %s is not on this machine", name, self.path)
            found: NDArray[Any] = ask(lambda: None)
            return found
        return _kept_answers(Path(self.path).expanduser() / name, count, ask, form)

    @property
    def _content(self) -> str:
        return hashlib.sha256("".join(file.sha256 for file in self.manifest.files).encode()).hexdigest()[:16]

    def fingerprint(self) -> dict[str, Any]:
        chosen = {} if self.columns is None else {"columns": list(self.columns)}
        known = {name: crc for name, crc in self.manifest.checksums.items() if name in self._columns}
        return {"rows": len(self), "digest": self.manifest.digest, **chosen, **({CHECKSUMS: known} if known else {})}

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

    @once
    def _prefetched(self) -> Prefetched:
        return Prefetched(self._fetched, sum(file.bytes for file in self.manifest.files) / max(1, len(self)))

    @once
    def _folder(self) -> Folder:
        return folder_of(self.path, self.storage_options, self.timeout_seconds, self.cache)


# -- answers about the rows, in a file beside them: a bit or a number a row, and a checksum -----------------------------

TIMEOUT_SECONDS: Final = 3600.0
"""How long others wait for one who asks and shows no progress."""
CHECKSUM_BYTES: Final = 4


class _Form(NamedTuple):
    """How answers lie in a file: as bytes, and back from those of so many rows; how many bytes that are."""

    written: Callable[[NDArray[Any]], bytes]
    read: Callable[[bytes, int], NDArray[Any]]
    num_bytes: Callable[[int], int]


_BITS: Final = _Form(
    lambda found: np.packbits(found).tobytes(),
    lambda content, count: np.unpackbits(np.frombuffer(content, np.uint8), count=count).astype(bool),
    lambda count: -(-count // 8),
)
_SIZES: Final = _Form(
    lambda found: found.astype("<i8").tobytes(),
    lambda content, count: np.frombuffer(content, "<i8", count).astype(np.int64),
    lambda count: 8 * count,
)


def _kept_answers(path: Path, count: int, ask: Ask, form: _Form) -> NDArray[Any]:
    """The answers in a file of a store; where there is none, those of `ask`, which are written to it.

    One process of this machine asks, others wait for its file. Where the folder cannot be written, or
    the disk is full, they stay in memory, which is logged.

    Args:
        path: of the file: other data, another function or version has another one.
        count: how many answers there are.
        ask: is given a function to be called now and then, which shows those who wait that there is progress.
    Raises:
        TimeoutError: another process, which is named, asks, and has made no progress for an hour.
    """
    folder, name = path.parent, path.stem
    if (found := _read(path, count, form)) is not None:
        return found
    note = path.with_suffix(".asking")
    try:
        note.touch()
    except OSError as error:
        logger.warning("%s is kept in memory, not beside the store: %s", name, error)
        return ask(lambda: None)
    lock = path.with_suffix(".lock")
    with one_writer(folder, TIMEOUT_SECONDS, lock.name, note.name):
        try:
            if (found := _read(path, count, form, again=True)) is None:
                with suppress(OSError):
                    note.write_text(json.dumps(this_writer()), "utf-8")
                found = ask(lambda: os.utime(note))
                content = form.written(found)
                try:
                    write_atomically(path, content + crc32(content).to_bytes(CHECKSUM_BYTES, "little"))
                except OSError as error:
                    logger.warning("%s is kept in memory, not beside the store: %s", name, error)
        finally:
            for left in (note, lock):
                left.unlink(missing_ok=True)
    return found


def _read(path: Path, count: int, form: _Form, again: bool = False) -> NDArray[Any] | None:
    """The answers in a file; None where it is not there, or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    answers, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(answers) != form.num_bytes(count) or crc32(answers).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        if not again:
            logger.warning("%s is damaged: all rows are read again for it", path)
        return None
    logger.info("%s has the answers for %s samples", path, f"{count:,}")
    return form.read(answers, count)
