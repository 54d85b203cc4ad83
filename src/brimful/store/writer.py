"""Writes a token store: one writer at a time, whole or not at all. An interrupted write goes on where it stopped.

Rows are joined to record batches of a few MB, and record batches to files. A file gets its name when it is complete and on disk.
Then the journal notes it, with the state of the chain after it. Of a slow chain it also notes each half a minute how far the file
at work is. A writer that is killed loses what came after the last note. The manifest is written last.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from brimful.core.atomic import commit_file, naming, part_of, sync
from brimful.core.counters import COUNTERS, Counters
from brimful.core.facts import facts_of
from brimful.core.header import learners
from brimful.core.repeat import awaited
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State
from brimful.core.terminal import Report
from brimful.encoding.encoder import paddings
from brimful.plan.errors import DataError, check_path
from brimful.store.journal import LOCK, AtWork, Journal, one_writer
from brimful.store.local import LocalFolder, MappedFile
from brimful.store.manifest import (
    JOURNAL,
    MANIFEST,
    Manifest,
    StoredFile,
    check_same,
    pipeline_of,
    require_version,
    say_newer,
    sha256_of,
)
from brimful.store.side import write_side_files
from brimful.tables.blocks import Block, concat, visible
from brimful.tables.origins import where
from brimful.tables.ragged import bytes_in, empty_block, is_ragged, list_array, null_in, numpy_of, offsets_of
from brimful.tables.schema import MisfitError, conform


def vocabularies(stage: Stage[Any]) -> dict[str, int]:
    """The number of token ids by column, for columns that a chain tokenizes, where the tokenizers say it."""
    found = {name: max(one.num_ids for one in made) for name, made in facts_of(stage).tokenizers().items()}
    return {name: size for name, size in found.items() if size}


def stored_schema(block: Block, num_ids: Mapping[str, int]) -> pa.Schema:
    """The columns of a store that begins with these rows.

    Integers keep their type. Lists that were all empty become lists of int64. Lists of numbers have 32-bit offsets.

    Args:
        num_ids: the number of token ids, for columns where it is known. They get the smallest type that holds all ids, unless
            these rows already hold other integers.
    """
    return pa.schema([(name, _stored(block.column(name), num_ids.get(name))) for name in block.schema.names])


def _stored(array: pa.Array, num_ids: int | None) -> pa.DataType:
    kind = array.type
    if pa.types.is_dictionary(kind):  # all record batches of a file would have to share a dictionary
        return kind.value_type
    if not is_ragged(kind):
        return kind
    values = pa.int64() if pa.types.is_null(kind.value_type) else kind.value_type
    if num_ids and pa.types.is_integer(values):
        with suppress(pa.ArrowInvalid):
            values = array.flatten().cast(_smallest(num_ids)).type
    return pa.list_(values, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(values)


def _smallest(num_ids: int) -> pa.DataType:
    """The type of so many token ids, from 0 on."""
    return next((kind for kind in (pa.uint8(), pa.uint16()) if num_ids <= 1 << kind.bit_width), pa.int32())


def _conformed(block: Block, schema: pa.Schema, num_ids: Mapping[str, int]) -> Block:
    """A block with the columns and types of a store.

    Raises:
        DataError: the block has a column that the schema lacks, or a value that the schema's type cannot hold; with the first row
            that has such a value, and both types.
    """
    try:
        rows = conform(visible(block), schema)
    except MisfitError as error:
        name, place = error.column, where(block, error.row())
        if error.wanted is None:
            raise DataError(
                f"column {name!r} is new ({place}): the rows before have {', '.join(schema.names)}; give all rows the same "
                "columns"
            ) from None
        remedy = "cast it to one type before it is stored"
        if name in num_ids:
            remedy = f"its tokenizer has {num_ids[name]:,} ids: store other integers in a column of another name"
        raise DataError(
            f"column {name!r} is {error.wanted} in the rows before and {error.found} here, which cannot be cast to it: "
            f"{error.why} ({place}); {remedy}"
        ) from error
    return pa.RecordBatch.from_arrays([*map(_without_hidden, rows.columns)], schema=schema)


def _without_hidden(array: pa.Array) -> pa.Array:
    """A column without the values that lie in lists that are null: a file depends on its rows alone."""
    if not array.null_count or not is_ragged(array.type) or pa.types.is_fixed_size_list(array.type):
        return array
    counts = pc.list_value_length(array).fill_null(0)  # which imports pandas, .4 s
    return list_array(array.flatten(), offsets_of(numpy_of(counts)), null_in(array))


BATCH_BYTES: Final = 8 << 20
"""The size of a record batch, by its rows before they are stored; stored tokens take half of that or less."""
FILE_BYTES: Final = 128 << 20
"""The size of a file: a minute or so of tokenizing."""
KEEP_SECONDS: Final = 30.0
"""Between two notes of how far the file at work is: what an interruption loses, where a file takes longer."""


def write_store(
    stage: Stage[Block],
    path: str | os.PathLike[str],
    *,
    version: str | None = None,
    timeout_seconds: float = 600.0,
    report: Report | None = None,
    run: Stage[Block] | None = None,
    executor: str = "local",
    if_empty: str | None = None,
) -> Manifest:
    """Writes the rows of the first epoch of a chain, unless that has been done. Gives the manifest of the finished store.

    Args:
        path: a local folder: new, empty, or with a store that an interrupted call has begun, which is then finished.
        version: the version of the user's functions in the chain.
        timeout_seconds: how long to wait for another writer that makes no progress.
        report: is told of the rows written.
        run: gives the rows in the place of `stage`, in blocks of any size: the files do not depend on it.
        executor: the name of what runs it; no other executor can finish a store that it has begun.
        if_empty: the words of the error if there is no row. None: a store without a row is written.
    Raises:
        StateError: another pipeline wrote the store, or began it, or another executor began it; both are named.
        TimeoutError: another writer, which is named, makes no progress.
        DataError: rows differ in their columns or types, with file and line. After an error what the journal has noted stays,
            for the next call; where that is nothing, nothing does.
        OSError: the disk is full, or the like; names the file.
        ValueError: functions without a version, or a folder of other things. Or there is no row, with `if_empty`: nothing stays.
    Price: that of the chain, and about 10 ns a token; 50 MB held.
    """
    require_version(stage, version)
    pipeline = pipeline_of(stage, version)
    folder = _folder(path)
    if not (folder / MANIFEST).exists() or (folder / LOCK).exists():  # a writer that was killed at the very end left it
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with one_writer(folder, timeout_seconds):
            if not (folder / MANIFEST).exists():
                journal = Journal.of(folder, pipeline, executor, facts_of(stage).newest()[0])
                try:
                    _Writer(journal, stage, report, if_empty).write(run or stage)
                except Exception:
                    kept = () if journal.work is None else journal.work.names
                    for part in (*folder.glob("*.part"), *folder.glob("*.held")):
                        if part.name not in kept:  # on a full disk it takes the room that the next call needs
                            part.unlink()
                    if not journal.files and journal.work is None:  # there is nothing to go on with
                        for file in folder.glob("*.arrow"):  # complete, and not noted
                            file.unlink()
                        _clear(folder)
                        if new:
                            with suppress(OSError):  # another writer has begun
                                folder.rmdir()
                    raise
            _clear(folder)
    manifest = LocalFolder(str(folder)).manifest
    check_same(folder, manifest.pipeline, pipeline)
    say_newer(folder, facts_of(stage).newest(), manifest.newest)
    return manifest


def _clear(folder: Path) -> None:
    """Removes all that is in the folder of a store while it is written, and not after."""
    for left in (*folder.glob("*.part"), *folder.glob("*.held"), folder / JOURNAL, folder / LOCK):
        left.unlink(missing_ok=True)


class _Writer:
    """Writes one store, with the lock of its folder held."""

    def __init__(self, journal: Journal, stage: Stage[Block], report: Report | None, if_empty: str | None) -> None:
        self._journal, self._folder, self._if_empty = journal, journal.folder, if_empty
        self._num_ids = vocabularies(stage)
        known = [(name, one.vocabulary) for name, made in facts_of(stage).tokenizers().items() for one in made]
        self._about: dict[str, Any] = {
            "pipeline": journal.header,
            "padding": {name: padding._asdict() for name, padding in paddings(facts_of(stage).tokenizers()).items()},
            "texts": facts_of(stage).texts(),
            "vocabularies": {name: vocabulary for name, vocabulary in known if vocabulary is not None},
        }
        self._run = Run()
        self._learners: list[Any] = []
        self._schema: pa.Schema | None = None
        self._part: PartFile | None = None
        self._known = facts_of(stage).schema
        self._seen = pa.schema([])  # of the last block without a row
        self._held: list[Block] = []  # rows that are in no record batch yet
        self._held_bytes = 0
        self._report: Report = report or (lambda rows, status: None)
        self._began = self._noted = monotonic()
        self._found = self._rows = self._tokens = 0

    def write(self, stage: Stage[Block]) -> None:
        self._go_on()
        self._journal.save()
        journal, work = self._journal, self._journal.work
        before, skip, known = (
            (journal.state, journal.skip, journal.types) if work is None else (work.state, 0, work.types)
        )
        if before is None:
            before = stage.start(0)
        self._learners, run = learners(stage), self._run
        run.types |= {learnt: types for learnt, types in zip(self._learners, known) if types is not None}
        counting = COUNTERS.set(Counters())  # so that rows that are left out are logged once
        try:
            with awaited(stage, before, run) as items:
                for block, after in items:
                    _check_columns(block)
                    done = min(skip, block.num_rows)
                    skip -= done
                    while (count := self._missing(block.slice(done))) is not None:
                        self._add(block.slice(done, count))
                        self._flush()
                        done += count
                        place = (before, done) if done < block.num_rows else (after, 0)
                        self._end_file(*place, least_bytes=FILE_BYTES)
                    self._add(block.slice(done))
                    before = after
                    if not skip and after != END and monotonic() - self._noted >= KEEP_SECONDS:
                        self._note(after)
            self._flush()
            if self._if_empty is not None and self._part is None and not self._journal.files:
                raise ValueError(self._if_empty)
            self._keep_columns()
            self._end_file(END)
        finally:
            run.close()
            COUNTERS.reset(counting)
            if self._part is not None:
                self._part.abandon()
        self._finish()

    def _go_on(self) -> None:
        """Takes up the files that an interrupted writer has finished, and removes its other files."""
        work = self._journal.work
        complete = self._folder / f"{len(self._journal.files):05d}.arrow"  # which the journal has not noted
        if work is not None and work.part and not (self._folder / work.part).exists() and complete.exists():
            complete.replace(self._folder / work.part)
        names = {file.name for file in self._journal.files}.union(() if work is None else work.names)
        for path in (path for kind in ("arrow", "part", "held") for path in self._folder.glob(f"*.{kind}")):
            if path.name not in names:
                path.unlink()
        for file in self._journal.files:
            if not (self._folder / file.name).exists():
                raise DataError(
                    f"{self._folder / file.name} is missing from a half-written store; remove {self._folder} to begin anew"
                )
            self._schema = self._schema or MappedFile(self._folder, file).schema
            self._found += file.rows
        if work is not None and not self._take_up(work):
            self._journal.work = None

    def _take_up(self, work: AtWork) -> bool:
        """Goes on with what is kept of the file at work; False where that is not there as it was noted."""
        try:
            if self._checksums(work.part, work.bytes, work.held) != work.checksums:
                return False
            batches = read_batches(self._folder / work.part, work.bytes, len(work.batches)) if work.part else []
            held = read_blocks(self._folder / work.held) if work.held else []
        except (OSError, StopIteration, pa.ArrowException):
            return False
        if [one.num_rows for one in batches] != work.batches or sum(one.num_rows for one in held) != work.rows:
            return False
        if batches:
            self._schema = batches[0].schema
            self._part = self._new_part()
            for batch in batches:
                self._part.write(batch)
        self._held, self._held_bytes = held, sum(_bytes_of(visible(block)) for block in held)
        self._found += sum(work.batches) + work.rows
        return True

    def _new_part(self) -> PartFile:
        """The next file, by a temporary name that no file has that is kept."""
        assert self._schema is not None
        work, path = self._journal.work, self._folder / f"{len(self._journal.files):05d}.arrow"
        part = part_of(path)
        again = work is not None and work.part == part.name
        return PartFile(path, self._schema, path.with_name(f"{path.name}.again.part") if again else part)

    def _note(self, after: State) -> None:
        """Notes how far the file at work is. `after`: the state of the chain after the last row."""
        part, before = self._part, self._journal.work
        if part is not None:
            part.sync()
        held = ""
        if self._held:
            turn = before is not None and before.held.endswith("-0.held")
            held = f"{len(self._journal.files):05d}-{turn:d}.held"
            write_blocks(self._folder / held, self._held)
        rows = sum(block.num_rows for block in self._held)
        name, size, batches = ("", 0, []) if part is None else (part.name, part.bytes, [*part.rows])
        sums = self._checksums(name, size, held)
        self._journal.note(work=AtWork(name, size, batches, held, rows, sums, after, self._types))
        self._remove(before, self._journal.work)
        self._noted = monotonic()

    def _checksums(self, part: str, size: int, held: str) -> list[int]:
        """Of the first bytes of the file at work, and of the rows beside it. Price: .1 s for 128 MB."""
        found = []
        for name, most in ((part, size), (held, None)):
            if name:
                with pa.memory_map(str(self._folder / name)) as file:
                    found.append(zlib.crc32(file.read_buffer(most)))
        return found

    @property
    def _types(self) -> list[Any]:
        """Those that the stages of the chain have learnt by now."""
        return [*map(self._run.types.get, self._learners)]

    def _remove(self, before: AtWork | None, now: AtWork | None) -> None:
        """Removes the files of a note that the next one does not name."""
        kept = () if now is None else now.names
        for name in () if before is None else before.names:
            if name not in kept:
                (self._folder / name).unlink(missing_ok=True)

    def _add(self, block: Block) -> None:
        self._journal.touch()
        rows = visible(block)
        if block.num_rows:
            self._held.append(block)
            self._held_bytes += _bytes_of(rows)
            self._rows += block.num_rows
            self._tokens += next((len(array.flatten()) for array in rows.columns if is_ragged(array.type)), 0)
        else:
            self._seen = rows.schema
        self._report(block.num_rows, self._status)  # a chain that leaves out rows is seen to run

    def _missing(self, block: Block) -> int | None:
        """How many rows of a block complete the record batch at work; None where the whole block does not. Files depend on the
        rows alone, not on the blocks in which they come."""
        rows, room = visible(block), BATCH_BYTES - self._held_bytes
        if not rows.num_rows or _bytes_of(rows) < room:
            return None
        return bisect_left(range(1, rows.num_rows), room, key=lambda count: _bytes_of(rows.slice(0, count))) + 1

    def _flush(self) -> None:
        """Writes the rows at hand."""
        if not self._held:
            return
        if self._schema is None:
            self._schema = stored_schema(visible(concat(self._held)), self._num_ids)
        rows = concat([_conformed(block, self._schema, self._num_ids) for block in self._held])
        if len(self._held) == 1:
            rows = pa.concat_batches([rows])  # a copy: Arrow would write the memory beside a slice as its padding
        self._held, self._held_bytes = [], 0
        if self._part is None:
            self._part = self._new_part()
        step = -(-rows.num_rows // max(1, _bytes_of(rows) // BATCH_BYTES))
        for first in range(0, rows.num_rows, step):
            self._part.write(rows.slice(first, step))

    def _keep_columns(self) -> None:
        """Begins a file without a row where there is none, as far as the chain says which columns it would have."""
        if self._part is not None or self._journal.files:
            return
        schema = self._seen if self._seen.names else self._known()
        if schema:
            self._schema = stored_schema(empty_block(schema), self._num_ids)
            self._part = self._new_part()

    def _end_file(self, after: State, skip: int = 0, *, least_bytes: int = 0) -> None:
        """Ends the file at work if it is long enough. `after`: a state of the chain, `skip` rows before the end of the file."""
        if self._part is not None and self._part.bytes >= least_bytes:
            before, files = self._journal.work, [*self._journal.files, self._part.close()]
            self._part = None
            self._journal.note(files=files, state=after, skip=skip, types=self._types, work=None)
            self._remove(before, None)
            self._noted = monotonic()

    def _finish(self) -> None:
        """Writes the side files, and then the manifest."""
        schema, files = self._schema or pa.schema([]), tuple(self._journal.files)
        columns = {field.name: str(field.type) for field in schema}
        sides = write_side_files(self._folder, schema, files, self._journal.touch)
        about = self._about | sides
        Manifest(columns=columns, files=files, newest=self._journal.newest, **about).save(self._folder)

    def _status(self) -> str:
        """Rows and tokens so far. Rows of an interrupted writer count, but not as speed."""
        speed = self._tokens / max(monotonic() - self._began, 1e-9)
        gone_on = f", {self._found:,} of them found" if self._found else ""
        rows = self._found + self._rows
        return f"{rows:,} rows written{gone_on}; {self._tokens:,} tokens, {speed:,.0f} a second"


class PartFile:
    """An Arrow IPC file of a store while it is written, under the temporary name `part`."""

    def __init__(self, path: Path, schema: pa.Schema, part: Path) -> None:
        self._path, self._part = path, part
        with naming(path):
            self._out = pa.OSFile(str(part), "wb")
            self._writer = pa.ipc.new_file(self._out, schema)
        self.rows: list[int] = []
        self._tokens = {field.name: 0 for field in schema if is_ragged(field.type)}

    @property
    def bytes(self) -> int:
        return int(self._out.tell())

    @property
    def name(self) -> str:
        return self._part.name

    def sync(self) -> None:
        """What was written so far outlives the machine."""
        with naming(self._path):
            sync(self._part)

    def write(self, block: Block) -> None:
        with naming(self._path):
            self._writer.write_batch(block)
        self.rows.append(block.num_rows)
        for name in self._tokens:
            self._tokens[name] += len(block.column(name).flatten())

    def close(self) -> StoredFile:
        """Ends the file and gives it its name. Gives its entry in the manifest."""
        with naming(self._path):
            self._writer.close()
            size = self.bytes
            self._out.close()
            commit_file(self._part, self._path)
        return StoredFile(self._path.name, size, sha256_of(self._path), tuple(self.rows), self._tokens)

    def abandon(self) -> None:
        self._out.close()


_MAGIC: Final = 8
"""An Arrow file is a stream behind so many bytes, and a footer."""


def read_batches(path: Path, size: int, count: int) -> list[Block]:
    """The first record batches of an Arrow file that is not complete, in its first `size` bytes."""
    with pa.memory_map(str(path)) as file:
        found = file.read_buffer(size)
    if len(found) < size:
        raise pa.ArrowInvalid(f"{path} has {len(found):,} bytes, not {size:,}")
    reader = pa.ipc.open_stream(found.slice(_MAGIC))
    return [reader.read_next_batch() for _ in range(count)]


def write_blocks(path: Path, blocks: list[Block]) -> None:
    """Blocks of any columns, each as a stream of Arrow."""
    with naming(path):
        with pa.OSFile(str(path), "wb") as file:
            for block in blocks:
                with pa.ipc.new_stream(file, block.schema) as writer:
                    writer.write_batch(block)
        sync(path)


def read_blocks(path: Path) -> list[Block]:
    """What `write_blocks` has written."""
    blocks = []
    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            with pa.ipc.open_stream(file) as reader:
                blocks += [*reader]
    return blocks


def _check_columns(block: Block) -> None:
    """Refuses rows that cannot be stored: without a column, or with two columns of one name."""
    if not block.num_rows:
        return
    twice = [name for name, count in Counter(block.schema.names).items() if count > 1]
    if twice:
        raise DataError(f"there are two columns {twice[0]!r} ({where(block, 0)}); give one of them another name")
    if not visible(block).num_columns:
        raise DataError(f"there is nothing to store in a row without columns ({where(block, 0)})")


def _bytes_of(rows: Block) -> int:
    return sum(bytes_in(column, lambda kind: -(-kind.bit_width // 8)) for column in rows.columns)


def _folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a store to be written.

    Raises:
        ValueError: it is not local, or holds other things.
    """
    check_path("path", path)
    if "://" in str(path):
        raise ValueError(
            f"a store is written to a local folder (got {path}); upload it from there: from_store reads it"
        )
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a store is a folder")
    ours = (MANIFEST, JOURNAL, LOCK)
    if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
        raise ValueError(f"the folder {folder} is not empty, and holds no store; name a new one")
    return folder
