"""Writes a token store: one writer, whole or not at all, and what was interrupted goes on where it stopped.

Rows are gathered into record batches of a few MB, and those into files. After each record batch the journal says how far
the file is and what the state of the chain was, so that a writer that is killed loses at most the record batch at hand.
Files get their names when they are complete and on disk; the manifest is written last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from brimful.errors import TALLY, DataError, Tally, where
from brimful.ragged import concat
from brimful.rows import Block, visible
from brimful.store.journal import Journal, Partial
from brimful.store.lock import LOCK, locked
from brimful.store.manifest import JOURNAL, MANIFEST, Manifest, settle
from brimful.store.mapped import MappedFile
from brimful.store.narrow import conform, plain, settled, vocabularies, widened
from brimful.store.part import PartFile, sha256_of, written
from brimful.store.pipeline import check_same, pipeline_of, require_version
from brimful.store.places import write_places
from brimful.store.progress import Report, Status
from brimful.store.side import write_side_files
from brimful.stream import END, Stage, State, running

BATCH_BYTES: Final = 8 << 20
"""Of rows as they come; as they are stored, tokens take half of that or less."""
FILE_BYTES: Final = 256 << 20


def write_store(
    stage: Stage[Block],
    path: str | Path,
    *,
    version: str | None = None,
    timeout_seconds: float = 600.0,
    report: Report | None = None,
) -> Manifest:
    """Writes the rows of the first epoch of a chain, unless that has been done: the manifest of the finished store.

    Args:
        path: a local folder: new, empty, or with what an interrupted call has left, which is gone on with.
        version: of the functions of the user's in the chain.
        timeout_seconds: how long to wait for another writer that makes no progress.
        report: is told of the rows written.
    Raises:
        StateError: another pipeline wrote the store, or began it; the setting and both its values are named.
        TimeoutError: another writer, which is named, makes no progress.
        ValueError: functions without a version, or a folder of other things.
    Price: what the chain costs, and about 10 ns a token; 50 MB held.
    """
    require_version(stage, version)
    pipeline = pipeline_of(stage, version)
    folder = _folder(path)
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, timeout_seconds) as beat:
            if not (folder / MANIFEST).exists():
                StoreWriter(folder, pipeline, vocabularies(stage), Status(beat, report)).write(stage)
    manifest = Manifest.load(folder)
    check_same(folder, manifest.pipeline, pipeline)
    return manifest


class StoreWriter:
    """Writes one store, with the lock of its folder held."""

    def __init__(self, folder: Path, pipeline: dict[str, Any], num_ids: Mapping[str, int], status: Status) -> None:
        self._folder, self._pipeline, self._num_ids, self._status = folder, pipeline, num_ids, status
        self._journal = Journal(folder, pipeline)
        self._schema = pa.schema([])
        self._part: PartFile | None = None
        self._state: State = None  # after the last row that was written
        self._held: list[Block] = []  # rows that no record batch has yet
        self._held_bytes = 0
        self._place = ""  # that the first of them came from

    def write(self, stage: Stage[Block]) -> None:
        counting = TALLY.set(Tally())  # so that what is left out is said once
        try:
            check_same(self._folder, self._journal.header, self._pipeline)
            begin = self._go_on()
            with running(stage, stage.start(0) if begin is None else begin) as items:
                for block, after in items:
                    self._add(block, after)
            self._flush(END)
            self._end_file()
            self._finish()
        finally:
            TALLY.reset(counting)
            self._journal.close()
            if self._part is not None:
                self._part.abandon()

    # -- rows ------------------------------------------------------------------------------------------------------------

    def _add(self, block: Block, after: State) -> None:
        if block.num_rows:
            twice = [name for name, count in Counter(block.schema.names).items() if count > 1]
            if twice:
                raise DataError(
                    f"there are two columns {twice[0]!r} ({where(block, 0)}); give one of them another name"
                )
            rows = visible(block)
            if not rows.num_columns:
                raise DataError(f"there is nothing to store in a row without columns ({where(block, 0)})")
            self._place = self._place if self._held else where(block, 0)
            self._held.append(rows)
            self._held_bytes += rows.nbytes
        self._status.working()
        if self._held_bytes >= BATCH_BYTES:
            self._flush(after)

    def _flush(self, after: State) -> None:
        """Writes the rows at hand; `after` is the state of the chain after the last of them."""
        if self._held:
            block = plain(concat(self._held))
            schema = widened(self._schema, block, self._num_ids, self._place)
            if not schema.equals(self._schema):
                self._end_file()
                self._schema = schema
            if self._part is None:
                self._part = PartFile(self._part_path(self._next_name), schema)
            for piece in pieces(conform(block, schema)):
                self._part.write(piece)
            self._held, self._held_bytes = [], 0
            self._state = after
            self._journal.reached(Partial(self._next_name, self._part.bytes, self._part.sha256, after))
            self._status.wrote(block)
            self._end_file(FILE_BYTES)

    def _end_file(self, least_bytes: int = 0) -> None:
        if self._part is not None and self._part.bytes >= least_bytes:
            self._settle(self._part, self._next_name)
            self._part = None

    def _settle(self, part: PartFile, name: str) -> None:
        """Ends a file, notes it, and gives it its name, in this order."""
        self._journal.done(part.close(name), self._state)
        settle(self._part_path(name), self._folder / name)

    @property
    def _next_name(self) -> str:
        return f"{len(self._journal.files):05d}.arrow"

    def _part_path(self, name: str) -> Path:
        return self._folder / f"{name}.part"

    # -- after an interruption -------------------------------------------------------------------------------------------

    def _go_on(self) -> State:
        """Takes up what an interrupted writer left; the chain's state after it, None where there is nothing."""
        for file in self._journal.files.values():
            self._status.found(file.rows)
            part = self._part_path(file.name)
            if part.exists() and sha256_of(part) == file.sha256:  # it was noted, and not yet named
                settle(part, self._folder / file.name)
            if not (self._folder / file.name).exists():
                raise DataError(
                    f"{self._folder / file.name} is missing from a half-written store; remove {self._folder} to begin anew"
                )
            self._schema = MappedFile(self._folder / file.name).schema
        self._state = self._journal.state
        partial = self._journal.partial
        if partial is not None:
            self._copy(partial)
        for path in self._folder.glob("*.part"):
            if self._part is None or path != self._part_path(self._next_name):
                path.unlink()
        self._end_file(FILE_BYTES)
        return self._state

    def _copy(self, partial: Partial) -> None:
        """Takes up a file that was not ended, if its bytes are what the journal says."""
        path = self._part_path(partial.name)
        if not path.exists() or path.stat().st_size < partial.bytes or sha256_of(path, partial.bytes) != partial.sha256:
            return
        again = path.with_suffix(".again.part")
        self._schema, blocks = written(path, partial.bytes)
        self._part = PartFile(again, self._schema)
        for block in blocks:
            self._part.write(block)
            self._status.found(block.num_rows)
        again.replace(path)
        self._state = partial.state

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Makes all files alike, writes what stands beside them, and then the manifest."""
        schema = settled(self._schema, self._num_ids)
        for name in self._journal.files:
            file = MappedFile(self._folder / name)
            if not file.schema.equals(schema):
                part = PartFile(self._part_path(name), schema)
                for number in range(len(file)):
                    part.write(conform(file.batch(number), schema))
                self._settle(part, name)
            self._status.working()
        files = tuple(self._journal.files.values())
        lengths, nulls, num_labels, first_labels = write_side_files(self._folder, schema, files)
        columns = {field.name: str(field.type) for field in schema}
        places = write_places(self._folder, schema, files)
        made = Manifest(self._pipeline, columns, files, lengths, nulls, num_labels, places, first_labels)
        made.save(self._folder)
        self._journal.remove()


def pieces(block: Block) -> Iterator[Block]:
    """A block in record batches of a few MB."""
    rows = max(1, block.num_rows * BATCH_BYTES // max(block.nbytes, 1))
    for first in range(0, block.num_rows, rows):
        yield block.slice(first, rows)


def _folder(path: str | Path) -> Path:
    """The folder of a store to be written.

    Raises:
        ValueError: it is not local, or holds other things.
    """
    if "://" in str(path):
        raise ValueError(
            f"a store is written to a local folder (got {path}); upload it from there: from_store reads it"
        )
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a store is a folder")
    ours = (MANIFEST, JOURNAL, LOCK, f"{JOURNAL}.part")
    if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
        raise ValueError(f"the folder {folder} is not empty, and holds no store; name a new one")
    return folder
