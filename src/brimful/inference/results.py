"""Results on disk: a file a window, each whole or not there, and a journal of the windows that are done.

00000.jsonl 00001.jsonl ...   the results of a window each, a line each as JSON; or 00000.parquet ..., a row each
_checksums                    a line for each of these files: its checksum, its bytes, its name
_progress.json                settings, windows that are done and their rows, the place before the last, a digest of its samples,
                              a checksum of the lines of _checksums

A window is repeated unless the journal says that it is done, but for batches that are in _open_window (open_window.py). On the
way there are beside it _writer.lock, and files that end in .part. (What begins with an underscore, readers of Parquet folders
pass over.)
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from brimful.core.atomic import naming, write_atomically
from brimful.core.header import header_difference
from brimful.core.stage import State
from brimful.index.index import DataIndex, taken
from brimful.plan.errors import DataError, StateError, integer
from brimful.plan.once import once
from brimful.tables.blocks import Block, concat, from_samples, visible
from brimful.tables.objects import values_in
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import EMPTY, distinct, offsets_of, ragged, with_column
from brimful.tables.schema import UNFIT, MisfitError, conform_rows

JOURNAL: Final = "_progress.json"
CHECKSUMS: Final = "_checksums"
LOCK: Final = "_writer.lock"
VERSION: Final = 3
KEPT_FILES: Final = 16
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What a lock fails with in a folder that nobody here may write to: results that are all there are read without one."""
RESULT: Final = "result"
"""The column of results that are no dicts, in Parquet."""
BARE: Final = b"brimful.bare"
"""The mark in the schema of such a file, as a dict may have a key of this name too."""


class WindowsDone(NamedTuple):
    """The windows of a folder whose results are written.

    Args:
        windows: that are done, each a file.
        before: the state before the last of them, or before the first to come where there is none.
        digest: of the samples of the last of them.
        runs: of windows of as many results each: (results, windows). As windows but the last are of one size, one or two.
        checksums: of the lines that say the checksums of their files.

    >>> WindowsDone(2, {}, 7, ((30, 2),), 5).after(10, {}, 9, 6)
    WindowsDone(windows=3, before={}, digest=9, runs=((30, 2), (10, 1)), checksums=6)
    """

    windows: int
    before: State
    digest: int
    runs: tuple[tuple[int, int], ...] = ()
    checksums: int = 0

    def after(self, rows: int, before: State, digest: int, checksums: int) -> WindowsDone:
        """With one more window, of so many results."""
        *runs, (size, windows) = self.runs or ((rows, 0),)
        runs = [*runs, (size, windows + 1)] if size == rows else [*runs, (size, windows), (rows, 1)]
        return WindowsDone(self.windows + 1, before, digest, tuple(runs), checksums)

    def rows(self) -> Iterator[int]:
        """The results of each window."""
        return (size for size, windows in self.runs for _ in range(windows))

    @classmethod
    def from_json(cls, saved: Any) -> WindowsDone:
        """As a journal has it.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        windows, digest = integer("windows", saved["windows"]), integer("digest", saved["digest"])
        runs = tuple((integer("rows", size, 1), integer("windows", number, 1)) for size, number in saved["runs"])
        if sum(number for _, number in runs) != windows:
            raise ValueError(f"{windows:,} windows, of which {sum(number for _, number in runs):,} have rows")
        if not isinstance(saved["before"], dict):
            raise TypeError(f"before must be a dict (got {saved['before']!r:.40})")
        return cls(windows, saved["before"], digest, runs, integer("checksums", saved["checksums"]))


class ResultFolder:
    """A folder of results, and the lock of it: one run writes at a time."""

    path: Path

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self._settings = path, settings
        self.files: ResultFiles = ResultFiles(path)
        self._schema: pa.Schema | None = None
        self._lock = FileLock(path / LOCK)

    def __enter__(self) -> ResultFolder:
        """Takes the folder.

        Raises:
            ValueError: it holds other things, or is a file.
            RuntimeError: another run writes it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; results are written to a folder, a file a window")
        known = (JOURNAL, LOCK, f"{JOURNAL}.part")
        if self.path.exists() and not any((self.path / name).exists() for name in known) and any(self.path.iterdir()):
            raise ValueError(f"the folder {self.path} is not empty, and holds no results of a run; name a new one")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RuntimeError(
                f"{self.path} is being written by another run; wait for its end, or name another folder"
            ) from None
        except OSError as error:
            if error.errno not in _READ_ONLY or not (self.path / JOURNAL).exists():
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def done(self) -> WindowsDone | None:
        """The windows that an earlier run wrote; None where there was none.

        Raises:
            StateError: it had other settings; the first is named, with both values.
            DataError: its journal is damaged, or a file is gone or changed.
        Price: all files are read, 1 ns a byte and the time of the disk.
        """
        path = self.path / JOURNAL
        try:
            saved = json.loads(path.read_bytes())
            version, settings = saved["version"], saved["settings"]
            if version != VERSION:
                raise StateError(
                    f"{path} has version {version!r}, but this release of brimful reads version {VERSION}. Its files can be read "
                    f"as they are; remove {self.path} to begin anew"
                )
            found = WindowsDone.from_json(saved)
        except FileNotFoundError:
            return None
        except StateError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is damaged ({error!r}); remove {self.path} to begin anew") from error
        self.check(settings, self._settings)
        self.files = ResultFiles(self.path, checksums_in(self.path, found.windows, found.checksums))
        for number in range(found.windows):
            content = self.files.read(number)
            if not number and self.files.are_parquet:
                self._schema = pq.read_schema(pa.BufferReader(content))
        return found

    def check(self, saved: Any, ours: Any) -> None:
        """Refuses results that were written with other settings.

        Raises:
            StateError: the first that differs is named, with both values.
        """
        differs = header_difference(saved, ours)
        if differs is not None:
            raise StateError(
                f"the results in {self.path} are of another run: {differs.name} was {differs.saved} when they were written and "
                f"is {differs.ours} here; name another folder, or go on with what wrote them"
            )

    def save(self, done: WindowsDone) -> None:
        """Writes the journal. Price: two writes to the disk, 1 KB."""
        content = {"version": VERSION, "settings": self._settings, **done._asdict()}
        write_atomically(self.path / JOURNAL, json.dumps(content).encode() + b"\n", alone=True)

    def write(self, number: int, results: Sequence[Any]) -> int:
        """The file of a window, whole or not at all. Gives the checksum of all lines of checksums.

        Raises:
            TypeError, ValueError: results that the format cannot hold, or that are unlike those before.
            OSError: the disk is full, or the like; names the file.
        """
        path, sums = self.files.path_of(number), self.path / CHECKSUMS
        content, self._schema = self.files.encoded(results, self._schema)
        write_atomically(path, content, alone=True)
        own = FileChecksum(crc32(content), len(content), path.name)
        before = [line.to_bytes() for line in self.files.checksums]
        with naming(sums), sums.open("r+b" if before else "wb") as file:
            file.seek(sum(map(len, before)))
            file.truncate()  # what a run that was killed had not noted in its journal
            file.write(own.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        self.files.checksums.append(own)
        return crc32(own.to_bytes(), crc32(b"".join(before)))


class FileChecksum(NamedTuple):
    """The checksum of a file of results, its bytes, and its name."""

    crc32: int
    size: int
    name: str

    def to_bytes(self) -> bytes:
        """As a line.

        >>> FileChecksum(7, 12, "00000.jsonl").to_bytes()
        b'00000007 12 00000.jsonl\\n'
        """
        return f"{self.crc32:08x} {self.size} {self.name}\n".encode()


def checksums_in(folder: Path, windows: int, crc: int) -> list[FileChecksum]:
    """The checksums of the files of so many windows.

    Args:
        crc: of their lines.
    Raises:
        DataError: they are missing, or changed.
    """
    path = folder / CHECKSUMS
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)[:windows]
    if len(lines) < windows or crc32(b"".join(lines)) != crc:
        raise DataError(
            f"{path} is missing or damaged: it has {len(lines):,} lines with the checksum {crc32(b''.join(lines)):08x}, and had "
            f"{windows:,} with {crc:08x}; put it back, or remove {folder} to begin anew"
        )
    fields = (line.decode().rstrip("\n").split(" ", 2) for line in lines)
    return [FileChecksum(int(number, 16), int(size), name) for number, size, name in fields]


@dataclass(frozen=True)
class ResultFiles:
    """The files of a folder of results, one a window.

    Args:
        checksums: of those that are written.
    """

    folder: Path
    checksums: list[FileChecksum] = field(default_factory=list)

    @property
    def are_parquet(self) -> bool:
        return self.folder.suffix == ".parquet"

    def path_of(self, number: int) -> Path:
        return self.folder / f"{number:05d}.{'parquet' if self.are_parquet else 'jsonl'}"

    def read(self, number: int) -> bytes:
        """What was written for a window.

        Raises:
            DataError: the file is missing, or not what was written.
        Price: that of reading it, and 1 ns a byte.
        """
        path, was = self.path_of(number), self.checksums[number]
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing; put it back, or remove {self.folder} to begin anew") from error
        if (crc32(content), len(content)) != (was.crc32, was.size):
            raise DataError(
                f"{path} is not as it was written: it has {len(content):,} bytes with the checksum {crc32(content):08x}, and had "
                f"{was.size:,} with {was.crc32:08x}; put it back, or remove {self.folder} to begin anew"
            )
        return content

    def encoded(self, results: Sequence[Any], schema: pa.Schema | None) -> tuple[bytes, pa.Schema | None]:
        """Results as a file holds them, and their types.

        Args:
            schema: of the results before; None where these are the first.
        Raises:
            TypeError, ValueError: results that the format cannot hold, or that are unlike those before.
        """
        if not self.are_parquet:
            return b"".join(map(_line, results)), None
        try:
            block = typed(results, schema)
            if not block.num_columns:
                raise ValueError(
                    "results that are dicts without keys cannot be written as Parquet, which would hold no rows; return a "
                    "key, or write JSON lines (output= a folder of another name)"
                )
            out = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_batches([block]), out)
        except UNFIT as error:
            raise ValueError(
                f"results cannot be written as Parquet ({error}): {results[0]!r:.80}; JSON lines (output= a folder of another "
                "name) hold lists and dicts of any form"
            ) from error
        return out.getvalue().to_pybytes(), block.schema

    def decoded(self, content: bytes) -> list[Any]:
        """The results that `encoded` gave."""
        if not self.are_parquet:
            return list(map(json.loads, content.split(b"\n")[:-1]))
        table = pq.ParquetFile(pa.BufferReader(content)).read()
        rows = [dict(zip(table.column_names, row)) for row in zip(*map(values_in, table.columns))]
        return [row[RESULT] for row in rows] if is_bare(table.schema) else rows


def typed(results: Sequence[Any], schema: pa.Schema | None) -> pa.RecordBatch:
    """Results as rows, of the types of those before them: dicts by their keys, others in the column `result`.

    Args:
        schema: of the results before; None where these are the first.
    Raises:
        ValueError: a result is unlike those before it.
    """
    bare = not isinstance(results[0], Mapping) if schema is None else is_bare(schema)
    if odd := [one for one in results if isinstance(one, Mapping) is bare]:
        kinds = ("others are", "others are not")
        raise ValueError(
            f"a result does not fit those before it: {odd[0]!r:.80} is {'a' if bare else 'no'} dict, and "
            f"{kinds[bare]}; return one kind for every sample"
        )
    rows = [{RESULT: _plain(one)} if bare else {name: _plain(value) for name, value in one.items()} for one in results]
    return _fitted(rows, schema).replace_schema_metadata({BARE: b""} if bare else None)


def _fitted(rows: list[dict[str, Any]], schema: pa.Schema | None) -> pa.RecordBatch:
    if schema is None:
        return from_samples(rows)
    try:
        return conform_rows(rows, schema)
    except MisfitError as error:
        words = error.told("return the same keys and types for every sample")
        raise ValueError(f"a result does not fit those before it: {words}") from None


def is_bare(schema: pa.Schema) -> bool:
    """Whether a file holds results that are no dicts."""
    return BARE in (schema.metadata or {})


def _line(result: Any) -> bytes:
    """A result as a line of JSON.

    >>> _line({"ids": (1, 2), "text": "naïve"}).decode()
    '{"ids": [1, 2], "text": "naïve"}\\n'
    """
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, default=_jsonable).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a result holds half a character, a lone surrogate, which is no text ({error}): {result!r:.80}; decode "
            "with errors='replace'"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"a result cannot be written as JSON ({error}): {result!r:.80}; Parquet (output='...parquet') takes nan"
        ) from error


def _jsonable(value: Any) -> Any:
    """A value that JSON does not know, as one that it knows."""
    if isinstance(value, bytes):
        raise TypeError(
            f"a result of type bytes cannot be written as JSON: {value!r:.80}; decode it, or write Parquet "
            "(output='...parquet')"
        )
    return _plain(value)


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists and numbers.

    Raises:
        TypeError: for anything else that is not plain.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | str | bytes | int | float | bool) or value is None:
        return value
    raise TypeError(
        f"a result of type {type(value).__name__} cannot be written; return dicts, lists, texts, numbers or tensors"
    )


@dataclass(frozen=True, eq=False)
class ResultIndex(DataIndex):
    """The results of a finished run of `map_batches_in_order`.

    Args:
        folder: of the results.
        runs: of files of as many results each: (results, files).
        checksums: of the lines that say the checksums of the files.
        crc32: of what made them.
    Price: a file is read when a row of it is wanted, and 16 are kept. Lengths of a list column: all files are read once, and 4
        bytes a row kept.
    """

    made_by = "map_batches_in_order"

    folder: Path
    runs: tuple[tuple[int, int], ...]
    checksums: int
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
        files = self._files
        if files.are_parquet:
            block = concat(pq.ParquetFile(pa.BufferReader(files.read(file))).read().to_batches())
        else:
            block = self._typed(file, self._first_schema if file else None)
        name = f"results {self.folder.name}/{files.path_of(file).name}"
        origin = origins(name, np.arange(block.num_rows), "row" if files.are_parquet else "line")
        return with_column(block.replace_schema_metadata(None), ORIGIN, origin)

    @once
    def _files(self) -> ResultFiles:
        return ResultFiles(self.folder, checksums_in(self.folder, len(self._starts) - 1, self.checksums))

    def _typed(self, file: int, schema: pa.Schema | None) -> pa.RecordBatch:
        """The rows of a file of JSON lines."""
        lines = self._files.decoded(self._files.read(file))
        try:
            return typed(lines, schema)
        except (ValueError, TypeError, *UNFIT) as error:
            raise DataError(
                f"{self._files.path_of(file)} holds results that are no rows of one table ({error}); read its lines as JSON"
            ) from error

    @once
    def _first_schema(self) -> pa.Schema:
        """The types of the first results, and whether they are dicts."""
        return self._typed(0, None).schema
