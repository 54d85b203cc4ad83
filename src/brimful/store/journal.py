"""An unfinished store: its journal, and the lock that lets one writer at a time go on with it.

The journal names the files that are complete, the state of the chain after them, and what is kept of the file at work. The time
of its file is that of the last progress: other writers wait as long as there is some.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from filelock import FileLock, Timeout

from brimful.core.atomic import write_atomically
from brimful.core.stage import State
from brimful.plan.errors import DataError, StateError, logger
from brimful.store.manifest import JOURNAL, StoredFile, check_same, stored_file

LOCK: Final = "writer.lock"
POLL_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 1.0
"""Between two looks at the progress of the writer."""
SAID_AFTER_SECONDS: Final = 3.0
"""A shorter wait for another writer is not logged."""


class AtWork(NamedTuple):
    """What is kept of the file at work.

    Args:
        part: the file of its record batches, "" where there is none yet; only so many bytes of it count.
        batches: the rows of each of them.
        held: the file of the rows after them, which are in no record batch yet; "" where there are none.
        rows: how many these are.
        checksums: of what counts of both files, crc32.
        state: of the chain after all of these rows.
        types: as in the journal, then.
    """

    part: str
    bytes: int
    batches: list[int]
    held: str
    rows: int
    checksums: list[int]
    state: State
    types: list[Any]

    @property
    def names(self) -> list[str]:
        """Of its files."""
        return [name for name in (self.part, self.held) if name]


@dataclass
class Journal:
    """Args:
    header: of the pipeline that writes the store.
    executor: what runs the chain; each executor has its own kind of states.
    newest: when the newest of its files was written, as the first writer saw it.
    state: before or after the block with the last row of the files; None at the beginning.
    skip: rows that follow the state and are in the files.
    types: those that the stages of the chain have learnt: see `core.states.sealed`.
    work: what is kept of the file after them.
    """

    folder: Path
    header: Any
    executor: str
    newest: float
    files: list[StoredFile] = field(default_factory=list)
    state: State = None
    skip: int = 0
    types: list[Any] = field(default_factory=list)
    work: AtWork | None = None

    @classmethod
    def of(cls, folder: Path, header: Any, executor: str, newest: float) -> Journal:
        """The journal of a folder; a new one where no file is complete.

        Raises:
            DataError: it cannot be read.
            StateError: another pipeline began the store, or another executor; both are named.
        """
        path, new = folder / JOURNAL, cls(folder, header, executor, newest)
        try:
            saved = json.loads(path.read_bytes())
            before, files = saved["header"], [stored_file(file) for file in saved["files"]]
            known = {name: saved[name] for name in ("executor", "state", "skip", "types")}
            work = None if saved.get("work") is None else AtWork(**saved["work"])
        except FileNotFoundError:
            return new
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged, or of an earlier release ({error!r}); remove {folder} to begin anew"
            ) from error
        if not files and (work is None or (before, known["executor"]) != (header, executor)):
            return new
        check_same(folder, before, header)
        if known["executor"] != executor:
            raise StateError(
                f"the store {folder} was begun with executor={known['executor']!r}, but executor={executor!r} counts places in "
                "another way. Go on with the first, or remove the folder to begin anew"
            )
        return cls(folder, header, files=files, newest=saved.get("newest", 0.0), work=work, **known)

    def note(self, **changes: Any) -> None:
        """Saves it with other values of some fields; if that fails, as on a full disk, it has those before, as the folder has."""
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        try:
            self.save()
        except OSError:
            vars(self).update(before)
            raise

    def save(self) -> None:
        """Writes the journal. Price: 7 us and 350 bytes a file; for 1 TB in files of 128 MB some 3 % of the writing."""
        content = vars(self) | this_writer() | {"files": [vars(file) for file in self.files]}
        content["work"] = None if self.work is None else self.work._asdict()
        del content["folder"]
        write_atomically(self.folder / JOURNAL, json.dumps(content).encode() + b"\n", alone=True)

    def touch(self) -> None:
        """Shows progress to writers that wait. Price: 2 us."""
        os.utime(self.folder / JOURNAL)


@contextmanager
def one_writer(folder: Path, timeout_seconds: float, lock_name: str = LOCK, note: str = JOURNAL) -> Iterator[None]:
    """Holds the lock of a folder. The operating system gives it back when its holder ends, even by kill -9.

    Args:
        note: the file that names the holder, and whose time is that of its last progress.
    Raises:
        TimeoutError: the holder, which is named, has made no progress for `timeout_seconds`.
    """
    lock = FileLock(folder / lock_name)
    began = since = monotonic()
    seen, said = _seen_progress(folder / note), False
    while True:
        try:
            lock.acquire(timeout=min(LOOK_SECONDS, timeout_seconds), poll_interval=POLL_SECONDS)
            break
        except Timeout:
            now = _seen_progress(folder / note)
            if now != seen:
                seen, since = now, monotonic()
            if monotonic() - since >= timeout_seconds:
                raise TimeoutError(
                    f"{folder} is being written by {_writer_of(folder / note)}, which has made no progress for "
                    f"{timeout_seconds:g} s; end it, or wait longer: timeout_seconds="
                ) from None
            if not said and monotonic() - began >= SAID_AFTER_SECONDS:
                said = True
                logger.warning("waiting for %s, which writes %s", _writer_of(folder / note), folder)
    try:
        yield
    finally:
        lock.release()


def _seen_progress(note: Path) -> int:
    """When the writer of a folder last made progress, ns; 0 where it has not begun."""
    try:
        return note.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def this_writer() -> dict[str, str]:
    """What a note says of this process, for those who wait."""
    return {"writer": f"process {os.getpid()} on {socket.gethostname()}"}


def _writer_of(note: Path) -> str:
    """Who writes a folder, in words."""
    try:
        return str(json.loads(note.read_bytes())["writer"])
    except (FileNotFoundError, ValueError, KeyError):
        return "another process"
