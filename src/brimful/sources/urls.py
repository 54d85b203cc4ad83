"""Names of shards to lists of shards: paths, braces, globs, sizes; and opening one, decompressed."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product, takewhile
from math import prod
from typing import Any, Final, NamedTuple

import fsspec

from brimful.plan.errors import timeout
from brimful.plan.once import once, settings_of
from brimful.sources.bytes import Bytes, is_local, opened
from brimful.sources.cache import DiskCache
from brimful.sources.compressed import COMPRESSIONS, Decompressed
from brimful.sources.formats import format_of
from brimful.sources.objects import ObjectStore

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
MOST_NAMES: Final = 1_000_000
"""For which the braces of one pattern stand."""
_MAGIC: Final = frozenset("*?[{")


class Shard(NamedTuple):
    """One file: its full name, its file system and its path there, its size in bytes and when it was written (0: not known)."""

    url: str
    fs: Any
    path: str
    size: int
    written: float


@dataclass(frozen=True)
class Shards:
    """A list of shards, as the user wrote it; found, and their sizes read, on first use.

    A path (`os.PathLike`) is one file, whatever characters it has; so is a string that is the name of a file.
    """

    urls: tuple[str | os.PathLike[str], ...]
    storage_options: dict[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 60.0
    cache: DiskCache | None = None

    def __post_init__(self) -> None:
        timeout(self.timeout_seconds)

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def listed(self) -> list[Shard]:
        """All shards: braces expanded in place, each glob sorted. A file that several patterns name is there once, at the place
        of the first; one that is named in full is there as often as that, and left out of patterns.

        Raises:
            FileNotFoundError: where a name or a glob matches nothing, or a link that leads nowhere; it is named.
            IsADirectoryError: where a name is that of a folder.
            TimeoutError: the store does not answer.
        """
        found = [one for url in self.urls for one in self._found(url)]
        seen = {_identity(shard) for is_pattern, shard in found if not is_pattern}
        listed = []
        for is_pattern, shard in found:
            if not is_pattern or _identity(shard) not in seen:
                listed.append(shard)
                seen.add(_identity(shard))
        return listed

    def _found(self, url: str | os.PathLike[str]) -> Iterator[tuple[bool, Shard]]:
        """The files of a name, each with whether it is a pattern."""
        if not isinstance(url, str) or not self._is_pattern(url):
            yield False, self._file(os.fspath(url))
            return
        for name in expand_braces(url):
            for shard in self._matches(name) if self._is_pattern(name) else (self._file(name),):
                yield True, shard

    def _is_pattern(self, name: str) -> bool:
        return not _MAGIC.isdisjoint(name) and not self._is_file(name)

    def _file(self, name: str) -> Shard:
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        try:
            info = self._ask(fs, name, "info", path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no file {name!r}") from error
        if info["type"] == "directory":
            if self._ask(fs, name, "exists", f"{path.rstrip('/')}/manifest.json"):
                raise IsADirectoryError(f"{name!r} is a folder with a manifest; a token store is read by bf.from_store")
            raise IsADirectoryError(f"{name!r} is a folder; {self._inside(fs, path, name.rstrip('/'))}")
        return Shard(path if is_local(fs) else name, fs, path, info["size"] or 0, _written(info))

    def _inside(self, fs: Any, path: str, name: str) -> str:
        """How to name the files of a folder: by the extension that most of them have, of those that can be read."""
        found = self._ask(fs, name, "ls", path, detail=True)
        files = [info["name"] for info in found if info["type"] != "directory" and _is_shown(info["name"], path)]
        if not files:
            below = any(info["type"] == "directory" for info in found)
            return f"name the files in its folders, for example {name}/*/*.jsonl" if below else "it holds no file"
        known = [file for file in files if format_of(file) is not None]
        ((extension, _),) = Counter(map(_extension, sorted(known or files))).most_common(1)
        return f"name its files, for example {name}/*{extension}"

    def _is_file(self, name: str) -> bool:
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        try:
            return bool(self._ask(fs, name, "info", path)["type"] == "file")
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False

    def _matches(self, name: str) -> Iterator[Shard]:
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        found = sorted(self._ask(fs, name, "glob", path, detail=True, limited=False).items())
        files = [(key, info) for key, info in found if _is_shown(key, path) and self._is_shard(fs, key, info, name)]
        if not files:
            dotted = any(not _is_shown(key, path) for key, _ in found)
            hidden = "; globs leave out names that begin with a dot, so write the dot" if dotted else ""
            raise FileNotFoundError(f"no file matches {name!r}{hidden}")
        for key, info in files:
            yield Shard(_full_name(fs, name, key), fs, key, info["size"] or 0, _written(info))

    def _is_shard(self, fs: Any, path: str, info: dict[str, Any], glob: str) -> bool:
        """Whether a match of a glob is a file; folders, pipes and sockets are passed over.

        A link that leads nowhere is not: it stands for a shard, and to do without one silently would be worse than an error.
        """
        if not is_local(fs):  # whose listings call a link neither file nor folder
            kind = info["type"] if info["type"] in ("file", "directory") else self._ask(fs, path, "info", path)["type"]
            return bool(kind != "directory")
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            raise FileNotFoundError(
                f"{path} matches {glob!r} but is a link that leads nowhere ({error.strerror}); mend it or remove it"
            ) from error

    def _ask(self, fs: Any, name: str, method: str, *args: Any, limited: bool = True, **options: Any) -> Any:
        if is_local(fs):
            return getattr(fs, method)(*args, **options)
        return ObjectStore(fs, self.timeout_seconds).ask(name, method, *args, limited=limited, **options)

    def name(self, shard: Shard) -> str:
        """A shard's path below the folder that all share."""
        return "/".join(shard.path.split("/")[self._shared_folders :])

    @once
    def _shared_folders(self) -> int:
        levels = zip(*(shard.path.split("/")[:-1] for shard in self.listed))
        return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))

    def fingerprint(self) -> dict[str, Any]:
        """Count and digest of names and sizes; names below the folder that all share, so that a corpus may move."""
        digest = hashlib.sha256()
        for shard in self.listed:
            digest.update(f"{self.name(shard)}\0{shard.size}\n".encode())
        return {"shards": len(self.listed), "digest": digest.hexdigest()[:16]}

    def open(self, shard: Shard) -> Bytes:
        """A shard's bytes, decompressed: then one can only read forward."""
        file = opened(shard.fs, shard.path, shard.url, self.timeout_seconds, self.cache)
        kind = COMPRESSIONS.get(os.path.splitext(shard.path)[1])
        return file if kind is None else Decompressed(file, kind, self.cache)


def _extension(path: str) -> str:
    """That of a file, with that of its compression.

    >>> _extension("a/b.c.jsonl.gz"), _extension("a/b.parquet")
    ('.jsonl.gz', '.parquet')
    """
    stem, last = os.path.splitext(path)
    return os.path.splitext(stem)[1] + last if last in COMPRESSIONS else last


def _written(info: dict[str, Any]) -> float:
    """When a file was written, in seconds, by what its file system says of it; 0 where it does not say.

    >>> _written({"mtime": 2.5}), _written({"LastModified": datetime.fromtimestamp(7)}), _written({"size": 1})
    (2.5, 7.0, 0.0)
    """
    when = next((info[name] for name in ("mtime", "LastModified", "last_modified") if name in info), None)
    if isinstance(when, datetime):
        return when.timestamp()
    return float(when) if isinstance(when, int | float) else 0.0


def _identity(shard: Shard) -> str:
    """One name for all names of a file."""
    return _full_name(shard.fs, shard.url, shard.path)


def _is_shown(path: str, glob: str) -> bool:
    """Whether a match of a glob has no name that begins with a dot, in its own part of the path; or the glob says the dot."""
    fixed = sum(1 for _ in takewhile(_MAGIC.isdisjoint, glob.split("/")))
    hidden = [any(name.startswith(".") for name in one.split("/")[fixed:]) for one in (path, glob)]
    return not hidden[0] or hidden[1]


def _full_name(fs: Any, glob: str, path: str) -> str:
    """The name by which to open a match of a glob: a.jsonl in zip://*.jsonl::b.zip is zip://a.jsonl::b.zip."""
    first, chained, rest = glob.partition("::")
    if chained and "://" in first:
        return f"{first.partition('://')[0]}://{path}::{rest}"
    if chained:
        return f"{first}::{rest.partition('://')[0]}://{path}"
    return path if is_local(fs) else str(fs.unstrip_protocol(path))


def expand_braces(name: str) -> Iterator[str]:
    """Braces expanded as a shell does: ranges of numbers, zero-padded, and alternatives.

    Raises:
        ValueError: they stand for more than a million names.

    >>> list(expand_braces("s3://bucket/{00..02}.{a,b}"))[:3]
    ['s3://bucket/00.a', 's3://bucket/00.b', 's3://bucket/01.a']
    """
    parts = [
        _alternatives(part) if number % 2 else ([part], "{}") for number, part in enumerate(_BRACES.split(name))
    ]  # by turns what stands outside of braces, and inside
    count = prod(len(values) for values, _ in parts)
    if count > MOST_NAMES:
        raise ValueError(
            f"the braces of {name!r} stand for {count:,} names, but the most is {MOST_NAMES:,}. Correct them, or use * "
            "instead"
        )
    for chosen in product(*([form.format(value) for value in values] for values, form in parts)):
        yield "".join(chosen)


def _alternatives(inside: str) -> tuple[Sequence[Any], str]:
    """The values between braces, and how each is written; what is no list and no range stands for itself."""
    first, dots, last = inside.partition("..")
    if dots and first.isdigit() and last.isdigit():
        step = 1 if int(last) >= int(first) else -1
        width = len(first) if first.startswith("0") else 0
        return range(int(first), int(last) + step, step), f"{{:0{width}}}" if width else "{}"
    return inside.split(",") if "," in inside else [f"{{{inside}}}"], "{}"
