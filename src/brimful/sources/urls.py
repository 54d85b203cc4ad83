"""Names of shards to lists of shards: paths, braces, globs, sizes; and opening one, decompressed."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, product, takewhile
from math import prod
from pathlib import PurePath
from typing import Any, Final, NamedTuple, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from brimful.core.threads import Workers, awaited
from brimful.plan.errors import check_count, one_of, timeout
from brimful.plan.once import once, settings_of
from brimful.sources.bytes import READ_BYTES, Bytes, is_local, opened
from brimful.sources.cache import DiskCache
from brimful.sources.compressed import (
    COMPRESSIONS,
    KINDS,
    MAGIC_BYTES,
    MOST_WINDOW_BYTES,
    Decompressed,
    begun,
    check_zstd,
    compression_of,
    endings,
)
from brimful.sources.formats import format_of
from brimful.sources.objects import ObjectStore

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
MOST_NAMES: Final = 1_000_000
"""For which the braces of one pattern stand."""
LOOKUPS: Final = 32
"""So many names are looked up at once, on file systems that can."""
_MAGIC: Final = frozenset("*?[{")

T = TypeVar("T")
R = TypeVar("R")


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

    A path (`os.PathLike`) is one file, whatever characters it has; so is a string that is the name of a file. Names that are no
    UTF-8 are those that Python gives (`os.fsdecode`).

    Args:
        compression: of all shards; None: as their first bytes say, or else their names.
        zstd_window_bytes: the longest window that a frame may have; None: Arrow's.
        cache: keeps what remote files send.
    """

    urls: tuple[str | os.PathLike[str], ...]
    storage_options: dict[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 60.0
    compression: str | None = None
    zstd_window_bytes: int | None = None
    cache: DiskCache | None = None

    def __post_init__(self) -> None:
        timeout(self.timeout_seconds)
        if self.compression is not None:
            one_of("compression", self.compression, *KINDS, "none")
        if self.zstd_window_bytes is not None:
            check_count(self, "zstd_window_bytes", 1, "byte", MOST_WINDOW_BYTES)
            check_zstd()

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @property
    def is_one_file(self) -> bool:
        """Whether one file is named, as far as that is seen without looking for files."""
        one = self.urls[0] if len(self.urls) == 1 else "*"
        return not isinstance(one, str) or not set("*?[{") & set(one)

    @once
    def listed(self) -> list[Shard]:
        """All shards: braces expanded in place, each glob sorted. A file that several patterns name is there once, at the place
        of the first; one that is named in full is there as often as that, and left out of patterns.

        Raises:
            FileNotFoundError: where a name or a glob matches nothing, or a link that leads nowhere; it is named.
            IsADirectoryError: where a name is that of a folder.
            TimeoutError: the store does not answer.
        """
        found = list(self._found())
        seen = {_identity(shard) for is_pattern, shard in found if not is_pattern}
        listed = []
        for is_pattern, shard in found:
            if not is_pattern or _identity(shard) not in seen:
                listed.append(shard)
                seen.add(_identity(shard))
        return listed

    def _found(self) -> Iterator[tuple[bool, Shard]]:
        """The files of all names, each with whether a pattern names it."""
        exact = list(self._each(self._exact, self.urls))
        patterns = [str(url) for url, shard in zip(self.urls, exact) if shard is None]
        known = frozenset(patterns)

        def matching(fs: Any, path: str, name: str) -> list[Shard]:
            shard = None if name in known else self._exact(fs, path, name)
            return [shard] if shard is not None else list(self._matches(fs, path, name))

        with closing(self._each(matching, chain.from_iterable(map(expand_braces, patterns)))) as matches:
            for url, shard in zip(self.urls, exact):
                if shard is not None:
                    yield False, shard
                else:
                    for _, found in zip(expand_braces(str(url)), matches):
                        yield from ((True, one) for one in found)

    def _each(self, look: Callable[[Any, str, T], R], names: Iterable[T]) -> Generator[R, None, None]:
        """What `look` finds by file system, path and name, in the order of the names; LOOKUPS at once where they are far away."""
        with Workers(LOOKUPS, "names") as workers:
            ahead: deque[Callable[[], R]] = deque()
            for name in names:
                fs, path = self._place(name)
                found = partial(look, fs, path, name)
                if ObjectStore(fs, self.timeout_seconds).at_once:
                    found = partial(awaited, workers.submit(found))
                ahead.append(found)
                if len(ahead) > 2 * LOOKUPS:
                    yield ahead.popleft()()
            while ahead:
                yield ahead.popleft()()

    def _place(self, url: Any) -> tuple[Any, str]:
        """The file system of a name, and its path there. Neither :: nor what looks like a protocol means anything in a path, or
        in a string that names a local file."""
        name = os.fsdecode(url)
        if os.path.exists(name):
            here = name if os.path.isabs(name) else f"./{name.removeprefix('./')}"
            return LocalFileSystem(), LocalFileSystem._strip_protocol(here)
        if isinstance(url, PurePath) or _is_no_chain(name):
            return LocalFileSystem(), LocalFileSystem._strip_protocol(name)
        fs, path = fsspec.core.url_to_fs(name, **self.storage_options)
        return self._file_systems.setdefault(fs, fs) if fs.cachable else fs, path

    @once
    def _file_systems(self) -> dict[Any, Any]:
        """Those that are in use, each by itself: where fsspec shares none (`skip_instance_cache`), all names of a list share one,
        with its connections. Each has some that the garbage collector closes: hundreds at once stop whoever they meet."""
        return {}

    def _exact(self, fs: Any, path: str, url: str | os.PathLike[str]) -> Shard | None:
        """The file of a name; None where that is a pattern."""
        name = os.fsdecode(url)
        may_be_pattern = isinstance(url, str) and not _MAGIC.isdisjoint(url)
        try:
            info = self._ask(fs, name, "info", path)
        except FileNotFoundError as error:
            if may_be_pattern:
                return None
            raise FileNotFoundError(f"there is no file {name!r}") from error
        except OSError as error:
            if may_be_pattern and error.errno == errno.ENAMETOOLONG:
                return None
            raise
        if may_be_pattern and info["type"] != "file":
            return None
        if info["type"] == "directory":
            if self._ask(fs, name, "exists", f"{path.rstrip('/')}/manifest.json"):
                raise IsADirectoryError(f"{name!r} is a folder with a manifest; a token store is read by bf.from_store")
            raise IsADirectoryError(f"{name!r} is a folder; {self._inside(fs, path, name.rstrip('/'))}")
        return Shard(_printable(path) if is_local(fs) else name, fs, path, info["size"] or 0, _written(info))

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

    def _matches(self, fs: Any, path: str, name: str) -> Iterator[Shard]:
        found = sorted(self._ask(fs, name, "glob", path, detail=True, limited=False).items())
        files = [(key, info) for key, info in found if _is_shown(key, path) and self._is_shard(fs, key, info, name)]
        if not files:
            dotted = any(not _is_shown(key, path) for key, _ in found)
            hidden = "; globs leave out names that begin with a dot, so write the dot" if dotted else ""
            raise FileNotFoundError(f"no file matches {name!r}{hidden}")
        for key, info in files:
            yield Shard(_printable(_full_name(fs, name, key)), fs, key, info["size"] or 0, _written(info))

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
        """A shard's path below the folder that all share, as messages show it."""
        return _printable(self._below(shard))

    def _below(self, shard: Shard) -> str:
        return "/".join(shard.path.split("/")[self._shared_folders :])

    @once
    def _shared_folders(self) -> int:
        levels = zip(*(shard.path.split("/")[:-1] for shard in self.listed))
        return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))

    def fingerprint(self) -> dict[str, Any]:
        """Count and digest of names and sizes; names below the folder that all share, so that a corpus may move."""
        digest = hashlib.sha256()
        for shard in self.listed:
            digest.update(f"{self._below(shard)}\0{shard.size}\n".encode("utf-8", "surrogateescape"))
        return {"shards": len(self.listed), "digest": digest.hexdigest()[:16]}

    def open(self, shard: Shard, may_be_compressed: bool = True, resumed: bool = False) -> Bytes:
        """A shard's bytes, decompressed: then one can only read forward. What its first bytes say is seen in the request for
        them that comes first in any case.

        Args:
            may_be_compressed: whether its format may be compressed as a whole.
            resumed: it will be read from a later byte on, unless it is compressed. Then a look at the first ones is a request
                of its own.
        """
        file = opened(shard.fs, shard.path, shard.url, self.timeout_seconds, self.cache)
        kind = self.compression if may_be_compressed else "none"
        if kind is None:
            _, named = endings(shard.url)
            resumed = resumed and named is None
            file, first = begun(file, MAGIC_BYTES if resumed else READ_BYTES, resumed)
            kind = compression_of(first, named) or "none"
        return file if kind == "none" else Decompressed(file, kind, self.zstd_window_bytes, self.cache)


def _printable(name: str) -> str:
    """A name as it can be shown and written, if it is not in UTF-8.

    >>> _printable(os.fsdecode(b"caf\\xe9.jsonl"))
    'caf\\\\xe9.jsonl'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_no_chain(name: str) -> bool:
    """Whether a :: in a name belongs to a path: nothing before it names a file system."""
    first, chained, _ = name.partition("::")
    return bool(chained) and "://" not in first and first not in fsspec.available_protocols()


def _extension(path: str) -> str:
    """That of a file, with that of its compression.

    >>> _extension("a/b.c.jsonl.gz"), _extension("a/b.parquet")
    ('.jsonl.gz', '.parquet')
    """
    stem, last = os.path.splitext(path)
    return os.path.splitext(stem)[1] + last if last.lower() in COMPRESSIONS else last


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
    if is_local(fs):
        return path
    first, chained, rest = glob.partition("::")
    if chained and "://" in first:
        return f"{first.partition('://')[0]}://{path}::{rest}"
    if chained:
        return f"{first}::{rest.partition('://')[0]}://{path}"
    return str(fs.unstrip_protocol(path))


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
