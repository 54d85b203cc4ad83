"""The manifest of a token store, one file of JSON. It is written last, and opening a store reads nothing else.

manifest.json               this: version, pipeline, files, checksums
00000.arrow 00001.arrow     rows as Arrow record batches, uncompressed, so that a memory map is all it takes to read
lengths.input_ids.npy       how many values each row has, int32, one file a list column
num_labels.npy              labels of each row that are trained on (not -100), int32, where there are labels
first_labels.npy            whether the first of them is, uint8: packing leaves it out
places.npy                  the place of each column of each record batch in its file, int64: see side.py

While a store is written its folder also has journal.jsonl, writer.lock, and files that end in .part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from brimful.core.atomic import write_atomically
from brimful.core.facts import facts_of
from brimful.core.header import header_difference, header_of
from brimful.core.stage import Stage
from brimful.plan.errors import DataError, StateError, check_version, logger
from brimful.plan.once import once

MANIFEST: Final = "manifest.json"
JOURNAL: Final = "journal.jsonl"
FORMAT: Final = "brimful token store"
VERSION: Final = 1

_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""File systems know later times, and `datetime` does not."""


@dataclass(frozen=True)
class SidecarFile:
    """A file of a store, with the size and checksum that it must have."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.name in ("", "..") or "\\" in self.name or self.name != PurePosixPath(self.name).name:
            raise DataError(
                f"{MANIFEST} names the file {self.name!r}, which does not lie in the folder of the store; the store is damaged"
            )

    def check(self, folder: str, found: str) -> None:
        """Refuses a file in a folder that has another checksum, `found`.

        Raises:
            DataError: with both.
        """
        if found != self.sha256:
            raise DataError(
                f"{folder}/{self.name} is damaged: its sha256 is {found[:16]}..., and the manifest says {self.sha256[:16]}..."
            )


@dataclass(frozen=True)
class StoredFile(SidecarFile):
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
    pipeline: the chain that made the rows: its header, and the version that the user gave its functions.
    columns: names and Arrow types.
    files: of rows, in order.
    lengths: the side file of each list column.
    nulls: of each column, the rows that are null, or lists with a null inside; stores before 1.0 have list columns alone.
    num_labels: the side file of label counts; None without labels.
    places: the side file that says where in the files the columns lie; None in stores before 1.0.
    first_labels: the side file that says where the first label is trained on; None without labels, and in stores before 1.0.
    padding: by column, where the tokenizer says it: {"id": the token that pads, "side": "left" or "right"}.
    texts: the columns of text that was tokenized; none in stores before 1.0.
    newest: when the newest of the files that were read was written, in seconds; 0 where nobody said.
    vocabularies: by column, the vocabulary of its tokenizer (`Encoder.vocabulary`); none in stores of 1.0.0rc1.
    checksums: of all values, by column; none in stores of 1.0.0rc1.
    """

    pipeline: dict[str, Any]
    columns: dict[str, str]
    files: tuple[StoredFile, ...]
    lengths: dict[str, SidecarFile]
    nulls: dict[str, int]
    num_labels: SidecarFile | None
    places: SidecarFile | None = None
    first_labels: SidecarFile | None = None
    padding: dict[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    newest: float = 0.0
    vocabularies: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)

    @once
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def side_files(self) -> list[SidecarFile]:
        return [*self.lengths.values(), *filter(None, (self.num_labels, self.first_labels, self.places))]

    @property
    def digest(self) -> str:
        """A hash of the pipeline and the lengths of the rows. It does not depend on the path of the store, nor on the record
        batches, which an interruption may change."""
        return _digest([self.pipeline, self.rows, {name: side.sha256 for name, side in self.lengths.items()}])[:16]

    def save(self, folder: Path) -> None:
        """Writes the manifest, which finishes the store."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.rows,
            "tokens": {name: sum(file.tokens.get(name, 0) for file in self.files) for name in self.lengths},
            **dataclasses.asdict(self),
        }
        text = json.dumps(content | {"sha256": _digest(content)}, indent=1)
        write_atomically(folder / MANIFEST, text.encode() + b"\n", alone=True)

    @classmethod
    def parse(cls, text: bytes, folder: str) -> Manifest:
        """The manifest that `save` wrote.

        Raises:
            StateError: another release of brimful wrote it.
            DataError: it is damaged.
        """
        path = f"{folder}/{MANIFEST}"
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is damaged: it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path} is no manifest of a token store")
        saved, found = content.pop("sha256", None), _digest(content)
        if saved != found:
            raise DataError(f"{path} is damaged: its checksum is {found[:16]}, not {str(saved)[:16]}")
        if content["version"] != VERSION:
            raise StateError(
                f"the store {folder} has version {content['version']!r}, but this release of brimful reads version {VERSION}"
            )
        known = {one.name: content[one.name] for one in dataclasses.fields(cls) if one.name in content}
        known["files"] = tuple(stored_file(file) for file in known["files"])
        known["lengths"] = {name: SidecarFile(**file) for name, file in known["lengths"].items()}
        known |= {
            name: SidecarFile(**known[name]) for name in ("num_labels", "first_labels", "places") if known.get(name)
        }
        known["texts"] = tuple(known.get("texts", ()))
        return cls(**known)


def stored_file(file: Mapping[str, Any]) -> StoredFile:
    return StoredFile(**{**file, "batches": tuple(file["batches"])})


def sha256_of(path: Path) -> str:
    """The checksum of a file. Price: about .7 ns a byte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- the pipeline that made a store --------------------------------------------------------------------------------------


def pipeline_of(stage: Stage[Any], version: str | None) -> dict[str, Any]:
    """The chain that makes the rows as plain JSON, for a manifest. Tokenizers stand by the columns that they make."""
    made = {
        name: " and ".join(filter(None, (one.fingerprint() for one in found)))
        for name, found in facts_of(stage).tokenizers().items()
    }
    known = {name: words for name, words in made.items() if words}
    return {"version": version, "tokenizers": known, "chain": header_of(stage)}


def require_version(stage: Stage[Any], version: str | None) -> None:
    """Refuses a chain with functions of the user's and no version: nothing would tell when they change.

    Raises:
        ValueError: naming the stages and the functions.
        TypeError: a version that is no text.
    """
    check_version(version)
    functions = sorted(set(facts_of(stage).functions))
    if functions and version is None:
        raise ValueError(
            f"a store cannot see when {', '.join(functions)} changes. Give a version, and a new one after each change: "
            'to_store(path, version="1")'
        )


def say_newer(folder: Path, newest: tuple[float, str], known: float) -> None:
    """Warns of a file that was written after a store was made of it. It is no error: a copy has a new time, too."""
    when, url = newest
    if 0 < known < when:
        logger.warning(
            "the store %s may be out of date: %s was written at %s, and the newest file at %s when the store was begun. "
            "If its text has changed, remove the folder and write the store anew. If it is a copy, open the store by from_store",
            folder,
            url,
            *(datetime.fromtimestamp(min(one, _LAST), UTC).isoformat(" ", "milliseconds") for one in (when, known)),
        )


def check_same(folder: Path, saved: Any, ours: Any) -> None:
    """Refuses a store that another pipeline wrote or began.

    Raises:
        StateError: naming the first setting that differs, and both its values.
    """
    found = header_difference(saved, ours)
    if found is not None:
        raise StateError(
            f"the store {folder} belongs to another pipeline: {found.name.removeprefix('chain.')} was {found.saved} when it "
            f"was written and is {found.ours} here. Use the pipeline that wrote it, or another path, or remove the folder to "
            "begin anew"
        )
