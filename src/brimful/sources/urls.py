"""Names of shards to lists of shards: braces, globs, sizes; and opening one, decompressed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, Final, NamedTuple, cast

import fsspec
import pyarrow as pa

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_BRACES: Final = re.compile(r"\{([^{}]*)\}")


class Shard(NamedTuple):
    url: str
    size: int


@dataclass(frozen=True)
class Shards:
    """A list of shards, as the user wrote it; found, and their sizes read, on first use."""

    urls: tuple[str, ...]
    storage_options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def listed(self) -> list[Shard]:
        """All shards: braces expanded in place, each glob sorted.

        Raises:
            FileNotFoundError: where a name or a glob matches nothing; it is named.
        """
        return [shard for url in self.urls for name in expand_braces(url) for shard in self._find(name)]

    def _find(self, name: str) -> list[Shard]:
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        local = "file" in _protocols(fs)
        if any(character in path for character in "*?["):
            found = fs.glob(path, detail=True)
            if not found:
                raise FileNotFoundError(f"no file matches {name!r}")
            files = [(key, info) for key, info in sorted(found.items()) if info["type"] == "file"]
            return [Shard(key if local else fs.unstrip_protocol(key), info["size"] or 0) for key, info in files]
        try:
            info = fs.info(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no file {name!r}") from error
        if info["type"] == "directory":
            raise IsADirectoryError(f"{name!r} is a folder; name its files, for example {name.rstrip('/')}/*.jsonl")
        return [Shard(path if local else name, info["size"] or 0)]

    def fingerprint(self) -> dict[str, Any]:
        """Count and digest of names and sizes; names below the folder that all share, so that a corpus may move."""
        names = [shard.url for shard in self.listed]
        shared = os.path.commonpath([os.path.dirname(name) for name in names]) if len(names) > 1 else ""
        shared = shared or os.path.dirname(names[0])
        digest = hashlib.sha256()
        for shard in self.listed:
            digest.update(f"{os.path.relpath(shard.url, shared or '.')}\0{shard.size}\n".encode())
        return {"shards": len(names), "digest": digest.hexdigest()[:16]}

    def open(self, shard: Shard) -> tuple[BinaryIO, bool]:
        """A shard's bytes, decompressed, and whether they had to be: then one can only read forward."""
        fs, path = fsspec.core.url_to_fs(shard.url, **self.storage_options)
        file = open(path, "rb") if "file" in _protocols(fs) else fs.open(path, "rb")
        compression = COMPRESSIONS.get(os.path.splitext(shard.url)[1])
        if compression is None:
            return cast(BinaryIO, file), False
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)), True


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


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
