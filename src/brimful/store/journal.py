"""What an unfinished store has come to, a line at a time: files that are complete, and how far the next one is.

Each line ends with the state of the chain after the rows that it speaks of: there the work goes on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from brimful.store.manifest import JOURNAL, StoredFile, stored_file, write_whole
from brimful.stream import State


class Partial(NamedTuple):
    """The first `bytes` of a file that is not ended, their checksum, and the chain's state after their rows."""

    name: str
    bytes: int
    sha256: str
    state: State


class Journal:
    """The journal of a folder; without one, a new one that begins with `header`."""

    def __init__(self, folder: Path, header: Any) -> None:
        self._path = folder / JOURNAL
        self.header = header
        self.files: dict[str, StoredFile] = {}
        self.state: State = None
        self.partial: Partial | None = None
        if self._path.exists():
            self._read()
        else:
            write_whole(self._path, (json.dumps({"header": header}) + "\n").encode())
        self._file = self._path.open("a", encoding="utf-8")

    def done(self, file: StoredFile, state: State) -> None:
        """Notes a file that is complete and on disk; it may take its name only after this."""
        self.files[file.name] = file
        self._append({"file": dataclasses.asdict(file), "state": state})
        os.fsync(self._file.fileno())

    def reached(self, partial: Partial) -> None:
        """Notes how far the file at work is. A crash of the machine may lose this, kill -9 does not."""
        self._append(partial._asdict())

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.close()
        self._path.unlink()

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> None:
        whole: list[str] = []
        for text in self._path.read_text("utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # the machine crashed in the middle of this line
                write_whole(self._path, "".join(f"{text}\n" for text in whole).encode())
                break
            whole.append(text)
            if "header" in line:
                self.header = line["header"]
            elif "file" in line:
                file = stored_file(line["file"])
                self.files[file.name] = file
                self.state, self.partial = line["state"], None
            else:
                self.partial = Partial(**line)
