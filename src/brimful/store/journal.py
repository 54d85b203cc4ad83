"""What an unfinished store has come to: the files that are complete, and the state of the chain after them.

The file's time says when its writer last made progress.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brimful.core.errors import DataError
from brimful.core.stage import State
from brimful.core.whole import write_whole
from brimful.store.manifest import JOURNAL, StoredFile, stored_file


@dataclass
class Journal:
    """Args:
    header: of the pipeline that writes the store.
    state: before the block in which the last row of the files lies, or after it; None at the beginning.
    skip: rows that follow the state and are in the files.
    engine: what ran the chain: states are of its own kind.
    """

    folder: Path
    header: Any
    files: list[StoredFile] = field(default_factory=list)
    state: State = None
    skip: int = 0
    engine: str = "local"

    @classmethod
    def of(cls, folder: Path, header: Any) -> Journal:
        """The journal of a folder; without one, a new one.

        Raises:
            DataError: it cannot be read.
        """
        path = folder / JOURNAL
        try:
            saved = json.loads(path.read_bytes())
        except FileNotFoundError:
            return cls(folder, header)
        except ValueError as error:
            raise DataError(
                f"{path} is damaged, or of an earlier release ({error}); remove {folder} to begin anew"
            ) from error
        files = [stored_file(file) for file in saved.get("files", [])]
        return cls(
            folder, saved["header"], files, saved.get("state"), saved.get("skip", 0), saved.get("engine", "local")
        )

    def save(self) -> None:
        """Price: 7 us and 350 bytes for each file that there is; of 1 TB, in files of 128 MB, some 3 % of the writing."""
        content = {
            "header": self.header,
            "writer": f"process {os.getpid()} on {socket.gethostname()}",
            "files": [vars(file) for file in self.files],
            "state": self.state,
            "skip": self.skip,
            "engine": self.engine,
        }
        write_whole(self.folder / JOURNAL, json.dumps(content).encode() + b"\n", alone=True)

    def touch(self) -> None:
        """Tells those who wait that there is progress. Price: 2 us."""
        os.utime(self.folder / JOURNAL)


def seen_progress(folder: Path) -> int:
    """When the writer of a folder last made progress, ns; 0 where it has not begun."""
    try:
        return (folder / JOURNAL).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def writer_of(folder: Path) -> str:
    """Who writes a folder, in words."""
    try:
        return str(json.loads((folder / JOURNAL).read_bytes())["writer"])
    except (FileNotFoundError, ValueError, KeyError):
        return "another process"
