"""Names of shards to lists of shards: braces, globs, sizes; and opening one, decompressed."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, BinaryIO, Final, NamedTuple, cast

import fsspec
import pyarrow as pa

from brimful.once import settings_of

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".xz": "xz"}
_BRACES: Final = re.compile(r"\{([^{}]*)\}")


class Shard(NamedTuple):
    """One file: its full name, its file system and its path there, its size in bytes (0: not known)."""

    url: str
    fs: Any
    path: str
    size: int


@dataclass(frozen=True)
class Shards:
    """A list of shards, as the user wrote it; found, and their sizes read, on first use."""

    urls: tuple[str, ...]
    storage_options: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @cached_property
    def listed(self) -> list[Shard]:
        """All shards: braces expanded in place, each glob sorted.

        Raises:
            FileNotFoundError: where a name or a glob matches nothing; it is named.
            IsADirectoryError: where a name is that of a folder.
        """
        return [shard for url in self.urls for name in expand_braces(url) for shard in self._find(name)]

    def _find(self, name: str) -> Iterator[Shard]:
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        if any(character in path for character in "*?["):
            found = sorted(fs.glob(path, detail=True).items())
            files = [(key, info) for key, info in found if not _is_folder(fs, key, info)]
            if not files:
                raise FileNotFoundError(f"no file matches {name!r}")
            for key, info in files:
                yield Shard(_full_name(fs, name, key), fs, key, info["size"] or 0)
            return
        try:
            info = fs.info(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no file {name!r}") from error
        if info["type"] == "directory":
            if fs.exists(f"{path.rstrip('/')}/manifest.json"):
                raise IsADirectoryError(f"{name!r} is a folder with a manifest; a token store is read by bf.from_store")
            raise IsADirectoryError(f"{name!r} is a folder; name its files, for example {name.rstrip('/')}/*.jsonl")
        yield Shard(path if _is_local(fs) else name, fs, path, info["size"] or 0)

    def name(self, shard: Shard) -> str:
        """A shard's path below the folder that all share."""
        return "/".join(shard.path.split("/")[self._shared_folders :])

    @cached_property
    def _shared_folders(self) -> int:
        levels = zip(*(shard.path.split("/")[:-1] for shard in self.listed))
        return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))

    def fingerprint(self) -> dict[str, Any]:
        """Count and digest of names and sizes; names below the folder that all share, so that a corpus may move."""
        digest = hashlib.sha256()
        for shard in self.listed:
            digest.update(f"{self.name(shard)}\0{shard.size}\n".encode())
        return {"shards": len(self.listed), "digest": digest.hexdigest()[:16]}

    def open(self, shard: Shard) -> tuple[BinaryIO, bool]:
        """A shard's bytes, decompressed, and whether they had to be: then one can only read forward."""
        file = open(shard.path, "rb") if _is_local(shard.fs) else shard.fs.open(shard.path, "rb")
        compression = COMPRESSIONS.get(os.path.splitext(shard.path)[1])
        if compression is None:
            return cast(BinaryIO, file), False
        if compression == "xz":
            return cast(BinaryIO, _Xz(file)), True
        stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)
        return io.BufferedReader(cast(io.RawIOBase, stream)), True  # which knows lines, as a user's function may need


class _Xz(lzma.LZMAFile):
    """Also closes the file that it reads from."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _is_folder(fs: Any, path: str, info: dict[str, Any]) -> bool:
    """A listing calls a link neither file nor folder: then what it points to decides."""
    kind = info["type"] if info["type"] in ("file", "directory") else fs.info(path)["type"]
    return bool(kind == "directory")


def _full_name(fs: Any, glob: str, path: str) -> str:
    """What to open a match of a glob by: a.jsonl in zip://*.jsonl::b.zip is zip://a.jsonl::b.zip."""
    first, chained, rest = glob.partition("::")
    if chained and "://" in first:
        return f"{first.partition('://')[0]}://{path}::{rest}"
    if chained:
        return f"{first}::{rest.partition('://')[0]}://{path}"
    return path if _is_local(fs) else str(fs.unstrip_protocol(path))


def expand_braces(name: str) -> Iterator[str]:
    """Braces expanded as a shell does: ranges of numbers, zero-padded, and alternatives.

    >>> list(expand_braces("s3://bucket/{00..02}.{a,b}"))[:3]
    ['s3://bucket/00.a', 's3://bucket/00.b', 's3://bucket/01.a']
    """
    for match in _BRACES.finditer(name):
        first, dots, last = match[1].partition("..")
        if dots and first.isdigit() and last.isdigit():
            width = len(first) if first.startswith("0") else 0
            step = 1 if int(last) >= int(first) else -1
            parts = [str(number).zfill(width) for number in range(int(first), int(last) + step, step)]
        elif "," in match[1]:
            parts = match[1].split(",")
        else:
            continue
        for part in parts:
            for tail in expand_braces(name[match.end() :]):
                yield name[: match.start()] + part + tail
        return
    yield name
