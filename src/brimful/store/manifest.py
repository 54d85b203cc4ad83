"""What a token store holds, in one file of JSON: it is written last, and opening a store reads nothing else.

manifest.json               this: version, pipeline, files, checksums
00000.arrow 00001.arrow     rows as Arrow record batches, uncompressed, so that a memory map is all it takes to read
lengths.input_ids.npy       how many values each row has, int32, one file a list column
num_labels.npy              labels of each row that are trained on (not -100), int32, where there are labels
first_labels.npy            whether the first of them is, uint8: packing leaves it out
places.npy                  where in its file each column of each record batch lies, int64: see places.py

While it is written there are beside it journal.jsonl, writer.lock, and files that end in .part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from brimful.core.errors import DataError, StateError
from brimful.core.once import once
from brimful.core.whole import write_whole

MANIFEST: Final = "manifest.json"
JOURNAL: Final = "journal.jsonl"
FORMAT: Final = "brimful token store"
VERSION: Final = 1


@dataclass(frozen=True)
class SideFile:
    """A file beside the rows, and what it must be."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.name in ("", "..") or "\\" in self.name or self.name != PurePosixPath(self.name).name:
            raise DataError(
                f"{MANIFEST} names the file {self.name!r}, which does not lie in the folder of the store; the store is damaged"
            )


@dataclass(frozen=True)
class StoredFile(SideFile):
    """A file of rows.

    Args:
        batches: rows of each record batch.
        tokens: values of each list column.
    """

    batches: tuple[int, ...]
    tokens: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(self.batches)


@dataclass(frozen=True)
class Manifest:
    """Args:
    pipeline: what the rows were made by: the chain's header, and the version that the user gave its functions.
    columns: names and Arrow types.
    files: of rows, in order.
    lengths: the side file of each list column.
    nulls: rows of each column that are null, or lists with a null in it; of earlier releases, of list columns alone.
    num_labels: the side file of label counts.
    places: the side file that says where in the files the columns lie; None in stores of earlier releases.
    first_labels: the side file that says where the first label is trained on; None in stores of earlier releases.
    padding: of the columns for which the tokenizer says it: {"id": the token that fills up, "side": "left" or "right"}.
    """

    pipeline: dict[str, Any]
    columns: dict[str, str]
    files: tuple[StoredFile, ...]
    lengths: dict[str, SideFile]
    nulls: dict[str, int]
    num_labels: SideFile | None
    places: SideFile | None = None
    first_labels: SideFile | None = None
    padding: dict[str, Any] = field(default_factory=dict)

    @once
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def side_files(self) -> list[SideFile]:
        return [*self.lengths.values(), *filter(None, (self.num_labels, self.first_labels, self.places))]

    @property
    def digest(self) -> str:
        """Of what the rows were made by and of their lengths: the same wherever the store lies, and however its rows are
        cut into record batches, which an interruption may change."""
        return _digest([self.pipeline, self.rows, {name: side.sha256 for name, side in self.lengths.items()}])[:16]

    def save(self, folder: Path) -> None:
        """Writes the manifest: with it the store is finished."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.rows,
            "tokens": {name: sum(file.tokens.get(name, 0) for file in self.files) for name in self.lengths},
            **dataclasses.asdict(self),
        }
        text = json.dumps(content | {"sha256": _digest(content)}, indent=1)
        write_whole(folder / MANIFEST, text.encode() + b"\n", alone=True)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest of a finished store.

        Raises:
            FileNotFoundError: there is no store here, or one that is not finished.
            StateError: another release of brimful wrote it.
            DataError: it is damaged.
        """
        try:
            text = (folder / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(missing(str(folder), (folder / JOURNAL).exists())) from error
        return cls.parse(text, str(folder))

    @classmethod
    def parse(cls, text: bytes, folder: str) -> Manifest:
        """The manifest that `save` wrote.

        Raises:
            StateError, DataError: as `load`.
        """
        path = f"{folder}/{MANIFEST}"
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is damaged: it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path} is no manifest of a token store")
        if content.get("version") != VERSION:
            raise StateError(
                f"the store {folder} has version {content.get('version')!r}, but this release of brimful reads version {VERSION}"
            )
        saved = content.pop("sha256", None)
        if saved != _digest(content):
            raise DataError(f"{path} is damaged: its checksum is {_digest(content)[:16]}, not {str(saved)[:16]}")
        return cls(
            content["pipeline"],
            content["columns"],
            tuple(stored_file(file) for file in content["files"]),
            {name: SideFile(**file) for name, file in content["lengths"].items()},
            content["nulls"],
            SideFile(**content["num_labels"]) if content["num_labels"] else None,
            SideFile(**content["places"]) if content.get("places") else None,
            SideFile(**content["first_labels"]) if content.get("first_labels") else None,
            content.get("padding", {}),
        )


def stored_file(file: Mapping[str, Any]) -> StoredFile:
    return StoredFile(**{**file, "batches": tuple(file["batches"])})


def described(path: Path) -> SideFile:
    return SideFile(path.name, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    """Price: about .7 ns a byte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def missing(folder: str, begun: bool) -> str:
    """Why there is no manifest in a folder; `begun`: there is a journal."""
    if begun:
        return (
            f"the token store {folder} is half-written: its writer is still at work, or was interrupted; the cache(path) or "
            "`brimful tokenize` that began it goes on where it stopped"
        )
    return f"there is no token store at {folder}; cache(path) and `brimful tokenize` make one"
