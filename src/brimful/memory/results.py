"""Results on disk: a file a window, each whole or not there; and a journal of how far they reach.

00000.jsonl 00001.jsonl ...   the results of a window each, a line each as JSON; or 00000.parquet ..., a row each
_progress.json                settings, windows that are done, the place before the last of them, a digest of its samples

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

from brimful.core.errors import DataError, StateError
from brimful.core.stream import State, header_difference
from brimful.rows.blocks import from_samples
from brimful.rows.schema import fitting, misfit
from brimful.store.manifest import part_of, settle, write_whole

JOURNAL: Final = "_progress.json"
LOCK: Final = "_writer.lock"
VERSION: Final = 1
RESULT: Final = "result"
"""The column of results that are no dicts, in Parquet."""


class Done(NamedTuple):
    """How far the results of a folder reach.

    Args:
        windows: that are done, each a file.
        before: the state before the last of them, or before the first to come where there is none.
        digest: of the samples of the last of them.
    """

    windows: int
    before: State
    digest: int


class Results:
    """A folder of results, and the lock of it: one run writes at a time."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self._settings = path, settings
        self._suffix = "parquet" if path.suffix == ".parquet" else "jsonl"
        self._schema: pa.Schema | None = None
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
            found = Done(saved["windows"], saved["before"], saved["digest"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error!r}); remove {self.path} to begin anew") from error
        if version != VERSION:
            raise StateError(f"{path} has version {version!r}, but this release of brimful reads version {VERSION}")
        difference = header_difference(settings, self._settings)
        if difference is not None:
            name, then, now = difference
            raise StateError(
                f"the results in {self.path} are of another run: {name} was {then} when they were written and is {now} "
                "here; name another folder, or go on with what wrote them"
            )
        missing = next((number for number in range(found.windows) if not self._file(number).exists()), None)
        if missing is not None:
            raise DataError(f"{self._file(missing)} is missing; put it back, or remove {self.path} to begin anew")
        return found

    def save(self, done: Done) -> None:
        """Says how far the results reach. Price: two writes to the disk, 1 KB."""
        content = {"version": VERSION, "settings": self._settings, **done._asdict()}
        write_whole(self.path / JOURNAL, json.dumps(content).encode() + b"\n")

    def write(self, number: int, results: Sequence[Any]) -> None:
        """The file of a window, whole or not at all.

        Raises:
            TypeError, ValueError: results that the format cannot hold, or that are unlike those before.
        """
        path = self._file(number)
        if self._suffix == "jsonl":
            write_whole(path, "".join(map(_line, results)).encode())
            return
        table = pa.Table.from_batches([self._block(results)])
        pq.write_table(table, part_of(path))
        settle(part_of(path), path)

    def read(self, number: int) -> Iterator[Any]:
        """The results of a window, as a reader of its file has them."""
        path = self._file(number)
        if self._suffix == "jsonl":
            with path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)
            return
        table = pq.read_table(path)
        self._schema = self._schema or table.schema.remove_metadata()
        bare = table.schema.names == [RESULT]
        yield from (row[RESULT] if bare else row for row in table.to_pylist())

    def _block(self, results: Sequence[Any]) -> pa.RecordBatch:
        rows = [dict(one) if isinstance(one, Mapping) else {RESULT: _plain(one)} for one in results]
        rows = [{name: _plain(value) for name, value in row.items()} for row in rows]
        if self._schema is None:
            block = from_samples(rows)
            self._schema = block.schema
            return block
        found = fitting(rows, self._schema)
        if found is None:
            remedy = "return the same keys and types for every sample"
            words = next(filter(None, (misfit(row, self._schema, closed=True, remedy=remedy) for row in rows)), remedy)
            raise ValueError(f"a result does not fit those before it: {words}")
        return found

    def _file(self, number: int) -> Path:
        return self.path / f"{number:05d}.{self._suffix}"


def _line(result: Any) -> str:
    """A result as a line of JSON.

    >>> _line({"ids": (1, 2), "text": "naïve"})
    '{"ids": [1, 2], "text": "naïve"}\\n'
    """
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"
    except ValueError as error:
        raise ValueError(
            f"a result cannot be written as JSON ({error}): {result!r:.80}; Parquet (output='...parquet') takes nan"
        ) from error


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists and numbers.

    Raises:
        TypeError: for anything else that is not plain.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping | list | tuple | str | bytes | int | float | bool) or value is None:
        return value
    raise TypeError(
        f"a result of type {type(value).__name__} cannot be written; return dicts, lists, texts, numbers or tensors"
    )
