"""Results on disk: a file a window, each whole or not there; and a journal of how far they reach.

00000.jsonl 00001.jsonl ...   the results of a window each, a line each as JSON; or 00000.parquet ..., a row each
_progress.json                settings, windows that are done and their rows, the place before the last, a digest of its samples

A window is repeated unless the journal says that it is done. On the way there are beside it _writer.lock, and files that end
in .part. (What begins with an underscore, readers of Parquet folders pass over.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from brimful.blocks.blocks import from_samples
from brimful.blocks.schema import UNFIT, fitting, misfit
from brimful.core.errors import DataError, StateError, integer
from brimful.core.stage import State, header_difference
from brimful.core.whole import part_of, settle, write_whole

JOURNAL: Final = "_progress.json"
LOCK: Final = "_writer.lock"
VERSION: Final = 2
RESULT: Final = "result"
"""The column of results that are no dicts, in Parquet."""
BARE: Final = b"brimful.bare"
"""What the schema of such a file says, as a dict may have a key of this name too."""


class Done(NamedTuple):
    """How far the results of a folder reach.

    Args:
        windows: that are done, each a file.
        before: the state before the last of them, or before the first to come where there is none.
        digest: of the samples of the last of them.
        runs: of windows of as many results each: (results, windows). As windows but the last are of one size, one or two.

    >>> Done(2, {}, 7, ((30, 2),)).after(10, {}, 9)
    Done(windows=3, before={}, digest=9, runs=((30, 2), (10, 1)))
    """

    windows: int
    before: State
    digest: int
    runs: tuple[tuple[int, int], ...] = ()

    def after(self, rows: int, before: State, digest: int) -> Done:
        """With one more window, of so many results."""
        *runs, (size, windows) = self.runs or ((rows, 0),)
        runs = [*runs, (size, windows + 1)] if size == rows else [*runs, (size, windows), (rows, 1)]
        return Done(self.windows + 1, before, digest, tuple(runs))

    def rows(self) -> Iterator[int]:
        """The results of each window."""
        return (size for size, windows in self.runs for _ in range(windows))

    @classmethod
    def from_json(cls, saved: Any) -> Done:
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
        return cls(windows, saved["before"], digest, runs)


class Results:
    """A folder of results, and the lock of it: one run writes at a time."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self._settings = path, settings
        self._suffix = "parquet" if path.suffix == ".parquet" else "jsonl"
        self._schema: pa.Schema | None = None
        self._bare: bool | None = None
        self._lock = FileLock(path / LOCK)

    def __enter__(self) -> Results:
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
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def done(self) -> Done | None:
        """How far an earlier run got; None where there was none.

        Raises:
            StateError: it had other settings; the first is named, with both values.
            DataError: its journal is damaged, or a file is gone.
        """
        path = self.path / JOURNAL
        try:
            saved = json.loads(path.read_bytes())
            version, settings = saved["version"], saved["settings"]
            if version != VERSION:
                raise StateError(f"{path} has version {version!r}, but this release of brimful reads version {VERSION}")
            found = Done.from_json(saved)
        except FileNotFoundError:
            return None
        except StateError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is damaged ({error!r}); remove {self.path} to begin anew") from error
        differs = header_difference(settings, self._settings)
        if differs is not None:
            raise StateError(
                f"the results in {self.path} are of another run: {differs.name} was {differs.saved} when they were written and "
                f"is {differs.ours} here; name another folder, or go on with what wrote them"
            )
        missing = next((number for number in range(found.windows) if not self._file(number).exists()), None)
        if missing is not None:
            raise DataError(f"{self._file(missing)} is missing; put it back, or remove {self.path} to begin anew")
        return found

    def save(self, done: Done) -> None:
        """Says how far the results reach. Price: two writes to the disk, 1 KB."""
        content = {"version": VERSION, "settings": self._settings, **done._asdict()}
        write_whole(self.path / JOURNAL, json.dumps(content).encode() + b"\n", alone=True)

    def write(self, number: int, results: Sequence[Any]) -> None:
        """The file of a window, whole or not at all.

        Raises:
            TypeError, ValueError: results that the format cannot hold, or that are unlike those before.
        """
        path = self._file(number)
        if self._suffix == "jsonl":
            write_whole(path, b"".join(map(_line, results)), alone=True)
            return
        try:
            table = pa.Table.from_batches([self._block(results)])
            pq.write_table(table, part_of(path))
        except UNFIT as error:
            raise ValueError(
                f"results cannot be written as Parquet ({error}): {results[0]!r:.80}; JSON lines (output= a folder of another "
                "name) hold lists and dicts of any form"
            ) from error
        settle(part_of(path), path)

    def read(self, number: int, rows: int) -> list[Any]:
        """The results of a window, which are so many, as a reader of its file has them.

        Raises:
            DataError: the file is damaged, or holds more or fewer.
        """
        path = self._file(number)
        try:
            found = self._read(path)
        except (ValueError, RecursionError, pa.ArrowException) as error:
            raise DataError(f"{path} is damaged ({error}); put it back, or remove {self.path} to begin anew") from error
        if len(found) != rows:
            raise DataError(
                f"{path} holds {len(found):,} results, and had {rows:,} when it was written; put it back, or remove "
                f"{self.path} to begin anew"
            )
        return found

    def _read(self, path: Path) -> list[Any]:
        if self._suffix == "jsonl":
            with path.open(encoding="utf-8", newline="\n") as lines:
                return list(map(json.loads, lines))
        table = pq.ParquetFile(path).read()
        bare = BARE in (table.schema.metadata or {})
        if self._schema is None:
            self._schema, self._bare = table.schema.remove_metadata(), bare
        rows = table.to_pylist()
        return [row[RESULT] for row in rows] if bare else rows

    def _block(self, results: Sequence[Any]) -> pa.RecordBatch:
        bare = self._bare if self._bare is not None else not isinstance(results[0], Mapping)
        if odd := [one for one in results if isinstance(one, Mapping) is bare]:
            kinds = ("others are", "others are not")
            raise ValueError(
                f"a result does not fit those before it: {odd[0]!r:.80} is {'a' if bare else 'no'} dict, and "
                f"{kinds[bare]}; return one kind for every sample"
            )
        rows = [
            {RESULT: _plain(one)} if bare else {name: _plain(value) for name, value in one.items()} for one in results
        ]
        block = self._fitted(rows)
        self._schema, self._bare = block.schema.remove_metadata(), bare
        return block.replace_schema_metadata({BARE: b""}) if bare else block

    def _fitted(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        if self._schema is None:
            block = from_samples(rows)
            if not block.num_columns:
                raise ValueError(
                    "results that are dicts without keys cannot be written as Parquet, which would hold no rows; return a "
                    "key, or write JSON lines (output= a folder of another name)"
                )
            return block
        found = fitting(rows, self._schema)
        if found is None:
            remedy = "return the same keys and types for every sample"
            words = next(filter(None, (misfit(row, self._schema, closed=True, remedy=remedy) for row in rows)), remedy)
            raise ValueError(f"a result does not fit those before it: {words}")
        return found

    def _file(self, number: int) -> Path:
        return self.path / f"{number:05d}.{self._suffix}"


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
    """What JSON does not know as what it does."""
    if isinstance(value, Mapping):
        return dict(value)
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
