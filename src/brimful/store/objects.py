"""Objects of a folder behind fsspec, read by ranges of bytes: many at once, tried again where that may help, checked to be
the same objects all along, and never waited for without an end."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import fsspec
import fsspec.asyn
import numpy as np
from numpy.typing import NDArray

from brimful.background import Workers
from brimful.errors import DataError, logger
from brimful.store.manifest import SideFile

T = TypeVar("T")

CONCURRENT: Final = 64
"""Requests at once. More than a file system's own pool holds (10 connections in s3fs, by default) wait in its queue."""
GAP_BYTES: Final = 8 << 10
"""What comes in the time that one more request takes: what is not wanted is read along where it is less."""
PIECE_BYTES: Final = 1 << 20
"""What is longer is asked for in pieces, at once; so that a slow line has time for all that are on their way."""
BACK_OFF_SECONDS: Final = 0.1
"""Before the second attempt, and twice as long before each further one."""
LEAST_ATTEMPTS: Final = 3
"""One attempt takes a third of the time at most: a connection that is dead is not all there is."""
CHECK_SECONDS: Final = 60.0
"""How long an object is trusted to be the same where requests cannot be made conditional on it."""

_FILE_BITS: Final = 44  # of a key: files of up to 17 TB
_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 412
_AGAIN: Final = (408, 425, 429, _PRECONDITION_FAILED)
"""The last is said of what has changed, which is looked at first; or by a second server with another tag for the same."""
_TAGS: Final = ("ETag", "etag", "generation", "Last-Modified", "LastModified", "mtime", "created")
_NETWORK: Final = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("http.client", "HTTPException"),
)


class Spans(NamedTuple):
    """Bytes from `firsts` up to before `lasts` of the objects of some numbers; int64 (n,) each."""

    files: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]


class Seen(NamedTuple):
    """What the file system last said of an object: its size in bytes, what stands for its content, and when it said so."""

    size: int | None
    tag: str
    at: float


class Objects:
    """The objects of one folder.

    Args:
        url: of the folder.
        storage_options: for fsspec.
        timeout_seconds: how long one request may take, all attempts together.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any], timeout_seconds: float) -> None:
        self.url = url.rstrip("/")
        self._fs, root = fsspec.core.url_to_fs(self.url, **storage_options)
        self._root, self._timeout = root.rstrip("/"), timeout_seconds
        protocols = (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        self._http, self._s3 = "http" in protocols, "s3" in protocols
        self._seen: dict[str, Seen] = {}
        self._own = bool(getattr(self._fs, "async_impl", False) and not self._fs.asynchronous)
        self._gate = asyncio.Semaphore(CONCURRENT if self._own else 1)  # of all threads, as all use one loop

    def whole(self, name: str) -> bytes:
        """An object of which nothing is known.

        Raises:
            FileNotFoundError: there is none.
            DataError, TimeoutError: as `read`.
        """

        async def work(workers: Workers | None) -> Any:
            return await self._tried(name, lambda: self._call(workers, "cat_file", self._path(name)))

        return bytes(self._run(work))

    def read(self, files: Sequence[SideFile], spans: Spans) -> list[memoryview]:
        """The bytes of some spans of `files`, in their order.

        Raises:
            DataError: an object is missing, or is not or no longer what the manifest says; or the store refuses to say.
            TimeoutError: it did not come in time, however often it was asked for.
        Price: a request for each span, less those that lie within GAP_BYTES of one another; about 1 ms of processor time
            a request. 64 at once on file systems that have coroutines (S3, GCS, Azure, HTTP), else one after the other.
        """
        found = [memoryview(b"")] * len(spans.files)
        wanted = np.flatnonzero(spans.lasts > spans.firsts)
        if len(wanted):
            requests, which = merged(Spans(*(array[wanted] for array in spans)))
            touched = [files[number] for number in np.unique(requests.files).tolist()]

            async def work(workers: Workers | None) -> list[memoryview]:
                await self._all(self._checked(workers, file) for file in touched)
                read = await self._all(self._request(workers, files[file], *ends) for file, *ends in _rows(requests))
                await self._all(self._checked(workers, file) for file in touched)
                return read

            read = self._run(work)
            begins = spans.firsts[wanted] - requests.firsts[which]
            ends = begins + spans.lasts[wanted] - spans.firsts[wanted]
            for place, number, begin, end in zip(wanted.tolist(), which.tolist(), begins.tolist(), ends.tolist()):
                found[place] = read[number][begin:end]
        return found

    # -- requests --------------------------------------------------------------------------------------------------------

    async def _request(self, workers: Workers | None, file: SideFile, first: int, last: int) -> memoryview:
        """A range of an object, in pieces where it is long."""
        edges = [*range(first, last, PIECE_BYTES), last]

        async def piece(begin: int, end: int) -> bytes:
            async with self._gate:
                return await self._tried(file.name, lambda: self._range(workers, file, begin, end), file, workers)

        pieces: list[bytes] = await self._all(piece(begin, end) for begin, end in pairwise(edges))
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    async def _range(self, workers: Workers | None, file: SideFile, first: int, last: int) -> bytes:
        path, tag = self._path(file.name), self._seen[file.name].tag
        strong = tag.startswith('"')  # a weak one (W/"...") stands for like content; If-Match would never hold
        if self._s3 and strong:
            bucket, key, version = self._fs.split_path(path)
            versions = {"VersionId": version} if version else {}
            wanted = f"bytes={first}-{last - 1}"
            reply = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, Range=wanted, IfMatch=tag, **versions)
            async with reply["Body"] as body:
                data = await body.read()
        elif self._http:
            headers = {**self._fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
            headers |= {"If-Match": tag} if strong else {}
            data = await self._call(workers, "cat_file", path, start=first, end=last, headers=headers)
        else:
            data = await self._call(workers, "cat_file", path, start=first, end=last)
        if len(data) > last - first:
            raise DataError(
                f"{self._name(file.name)}: {last - first:,} bytes were asked for and {len(data):,} came; the server does not "
                "know ranges; copy the store to a local folder"
            )
        if len(data) < last - first:
            raise EOFError(f"{last - first:,} bytes were asked for and {len(data):,} came")
        return bytes(data)

    async def _checked(self, workers: Workers | None, file: SideFile) -> None:
        """Looks at an object if that was long ago.

        Raises:
            DataError: it is not what it was, or what the manifest says.
        """
        before = self._seen.get(file.name)
        conditional = before is not None and before.tag.startswith('"') and (self._s3 or self._http)
        if before is None or (not conditional and time.monotonic() - before.at >= CHECK_SECONDS):
            async with self._gate:
                await self._tried(file.name, lambda: self._look(workers, file))

    async def _look(self, workers: Workers | None, file: SideFile) -> None:
        name, path = self._name(file.name), self._path(file.name)
        self._fs.invalidate_cache(path)
        try:
            info = await self._call(workers, "info", path)
        except FileNotFoundError as error:
            if not _absent(error):
                raise
            raise DataError(f"{name} is missing from its store: the manifest says {file.bytes:,} bytes") from error
        size = info.get("size")
        now = Seen(size, next((str(info[key]) for key in _TAGS if info.get(key)), ""), time.monotonic())
        before = self._seen.get(file.name, now)
        if size is not None and size != file.bytes:
            raise DataError(
                f"{name} is not what was written, or has changed: it has {size:,} bytes, and the manifest says {file.bytes:,}"
            )
        if now.tag != before.tag:
            raise DataError(
                f"{name} has changed while it was being read: its tag was {before.tag} and is {now.tag}; open the store anew"
            )
        self._seen[file.name] = now

    async def _tried(
        self,
        name: str,
        attempt: Callable[[], Awaitable[T]],
        file: SideFile | None = None,
        workers: Workers | None = None,
    ) -> T:
        """What an attempt gives, again and again until it does; `file`: to be looked at where an attempt fails."""
        until = time.monotonic() + self._timeout
        wait = BACK_OFF_SECONDS
        for number in count(1):
            try:
                async with asyncio.timeout(min(self._timeout / LEAST_ATTEMPTS, until - time.monotonic())):
                    return await attempt()
            except DataError:
                raise
            except Exception as error:
                if file is not None and _may_have_changed(error):
                    await self._tried(name, lambda: self._look(workers, file))
                if _absent(error):
                    raise
                if not transient(error):
                    raise DataError(f"{self._name(name)} cannot be read: {_said(error)}") from error
                if time.monotonic() + wait >= until:
                    raise TimeoutError(
                        f"nothing came from {self._name(name)} within {self._timeout:g} seconds (attempts: {number}; the last: "
                        f"{_said(error)}); raise timeout_seconds or check the store"
                    ) from error
                logger.info("reading %s again: %s", self._name(name), _said(error))
            await asyncio.sleep(wait)
            wait *= 2
        raise AssertionError

    # -- how it is run ---------------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[Workers | None], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in fsspec's loop; with a thread for a file system that has no coroutines."""
        with nullcontext() if self._own else Workers(1, "ranges") as workers:
            loop = self._fs.loop if self._own else fsspec.asyn.get_loop()
            future = asyncio.run_coroutine_threadsafe(work(workers), loop)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    async def _call(self, workers: Workers | None, name: str, *args: Any, **options: Any) -> Any:
        if workers is None:
            return await getattr(self._fs, f"_{name}")(*args, **options)
        return await asyncio.wrap_future(workers.submit(partial(getattr(self._fs, name), *args, **options)))

    @staticmethod
    async def _all(work: Any) -> list[Any]:
        """The results of coroutines that run at once; the first error ends the others."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{quote(name) if self._http else name}"

    def _name(self, name: str) -> str:
        return f"{self.url}/{name}"


def merged(spans: Spans) -> tuple[Spans, NDArray[np.int64]]:
    """Requests that cover some spans, none of which is empty, and the request that each of them is in.

    >>> spans = Spans(np.array([0, 1, 0]), np.array([90_000, 5, 0]), np.array([90_010, 9, 80_000]))
    >>> [array.tolist() for array in merged(spans)[0]], merged(spans)[1].tolist()
    ([[0, 0, 1], [0, 90000, 5], [80000, 90010, 9]], [1, 2, 0])
    """
    firsts, lasts = spans.firsts | spans.files << _FILE_BITS, spans.lasts | spans.files << _FILE_BITS
    order = np.argsort(firsts, kind="stable")
    firsts, reach = firsts[order], np.maximum.accumulate(lasts[order])
    new = np.concatenate(([True], firsts[1:] > reach[:-1] + GAP_BYTES))
    begins = np.flatnonzero(new)
    ends = np.concatenate((begins[1:], [len(new)])) - 1
    which = np.empty(len(new), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    mask = (1 << _FILE_BITS) - 1
    return Spans(firsts[begins] >> _FILE_BITS, firsts[begins] & mask, reach[ends] & mask), which


def transient(error: BaseException) -> bool:
    """Whether another attempt may go better."""
    status = _status(error)
    if status:
        return status >= 500 or status in _AGAIN
    if isinstance(error, TimeoutError):
        return True
    if error.__cause__ is not None:  # "not found" is what fsspec says of whatever goes wrong
        return transient(error.__cause__)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError | ValueError):
        return False
    known = tuple(getattr(sys.modules[module], name) for module, name in _NETWORK if module in sys.modules)
    return isinstance(error, (OSError, EOFError, *known))


def _status(error: BaseException) -> int:
    """The HTTP status of an error of aiohttp, gcsfs or botocore; 0 where there is none."""
    reply = getattr(error, "response", None)
    if isinstance(reply, Mapping):
        return int(reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    status = error.status if hasattr(error, "status") else getattr(error, "code", 0)
    return status if isinstance(status, int) else 0


def _absent(error: BaseException) -> bool:
    """Whether an object is not there; of other failures too fsspec says that it was not found."""
    if not isinstance(error, FileNotFoundError) or transient(error):
        return False
    return error.__cause__ is None or _status(error.__cause__) in (0, _NOT_FOUND)


def _may_have_changed(error: BaseException) -> bool:
    """Whether an error is such as comes where an object was replaced."""
    changed = isinstance(error, EOFError) or _status(error) == _PRECONDITION_FAILED or not transient(error)
    return changed or (error.__cause__ is not None and _may_have_changed(error.__cause__))


def _said(error: BaseException) -> str:
    error = error.__cause__ or error if isinstance(error, FileNotFoundError) else error
    return f"{type(error).__name__} {error}" if str(error) else type(error).__name__


def _rows(spans: Spans) -> list[tuple[int, int, int]]:
    return list(zip(*(array.tolist() for array in spans)))
