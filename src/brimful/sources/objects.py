"""Objects behind fsspec, read by ranges of bytes: many at once, tried again where that may help, checked to be the same objects
all along, and never waited for without an end."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import fsspec.asyn
import numpy as np
from numpy.typing import NDArray

from brimful.core.threads import Workers, awaited
from brimful.plan.errors import DataError
from brimful.sources import cache as kept
from brimful.sources.cache import DiskCache, KeptFile
from brimful.sources.retry import LEAST_ATTEMPTS, OtherContentError, RefusedError, absent, may_have_changed, repeated
from brimful.tables.ragged import distinct

T = TypeVar("T")
_Numbers: TypeAlias = range  # `ObjectStore` has a method of that name

CONCURRENT: Final = 64
"""Requests at once. More than a file system's own pool holds (10 connections in s3fs, by default) wait in its queue."""
GAP_BYTES: Final = 8 << 10
"""So many bytes come in the time that one more request takes. A smaller gap between two spans is read along."""
PIECE_BYTES: Final = 1 << 20
"""A longer span is asked for in pieces, at once, so that a slow line has time for all that are on their way."""
CHECK_SECONDS: Final = 60.0
"""How long an object is trusted to be the same where requests cannot be made conditional on it."""

_RUN: Final = PIECE_BYTES // kept.PIECE_BYTES
"""So many pieces of the cache come by one request."""
_NOT_PLACES: Final = ("key", "secret", "token", "password", "username", "anon", "auth", "headers", "cookies", "profile")
"""Options of file systems that do not say where it is; beside them, others at worst keep two caches apart."""

_FILE_BITS: Final = 44  # of a key: files of up to 17 TB
_PARTIAL: Final = 206
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_TAGS: Final = (
    *("ETag", "etag", "blob_id", "generation"),
    *("Last-Modified", "LastModified", "last_modified", "mtime", "modify", "created"),
)
_REPLY_TAGS: Final = ("ETag", "Last-Modified", "LastModified")
"""Of a reply with content, the strongest first."""
_S3_OPTIONS: Final = ("RequestPayer", "SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5")
"""Options that the file system was given for all requests, and that each request of S3 must repeat."""


class Object(NamedTuple):
    """One object: its path in the file system, its name in messages, and the bytes that the manifest of its store says it has
    (None: it has no manifest)."""

    path: str
    name: str
    size: int | None = None


class Spans(NamedTuple):
    """Bytes from `firsts` up to before `lasts` of the objects of some numbers; int64 (n,) each."""

    files: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]


class Seen(NamedTuple):
    """The last answer of the file system about an object: its size in bytes, a tag of its content (and its name), and when it
    said so."""

    size: int | None
    tag: str
    at: float
    key: str


class WholeOnlyError(RefusedError):
    """The server sends no part of an object."""


class ObjectStore:
    """The objects of a file system.

    Args:
        fs: of fsspec.
        timeout_seconds: how long one request may take, all attempts together.
        cache: keeps what comes, in pieces, under the names, sizes and tags of the objects. One without a tag is not kept: a
            manifest's checksum, of the whole object, could not tell that a piece is of other content.
    """

    is_http: bool

    def __init__(self, fs: Any, timeout_seconds: float, cache: DiskCache | None = None) -> None:
        self.cache: DiskCache | None = cache
        self._fs, self._timeout = fs, timeout_seconds
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        self.is_http, self._is_s3 = "http" in protocols, "s3" in protocols
        self.at_once: bool = bool(getattr(fs, "async_impl", False) and not fs.asynchronous)
        self._seen: dict[str, Seen] = {}
        self._told: dict[str, dict[str, str]] = {}  # of each object, the tags that its replies were the first to say
        self._untold: set[str] = set()  # objects whose replies do not say which content they are of
        self._arriving: dict[tuple[int, str, int], tuple[asyncio.Task[list[memoryview]], int]] = {}
        self._whole: dict[str, KeptFile] = {}  # of a server that sends no parts
        self._asked_for: set[str] = set()  # objects of which the cache may have been asked for all
        self._gate = asyncio.Semaphore(CONCURRENT if self.at_once else 1)  # of all threads, as all use one loop

    def ask(self, name: str, method: str, *args: Any, limited: bool = True, **options: Any) -> Any:
        """The answer of a method of the file system; `limited`: one attempt takes a part of the time, as a request does.

        Raises:
            FileNotFoundError: there is no such object.
            DataError, TimeoutError: as `read`.
        """
        return self._run(
            lambda ours: self._tried(name, lambda: self._call(ours, method, *args, **options), limited=limited)
        )

    def whole(self, one: Object) -> bytes:
        """An object of which nothing is known; raises as `ask`."""
        return bytes(self.ask(one.name, "cat_file", one.path))

    def look(self, one: Object) -> Seen:
        """The answer of the file system about an object now; raises as `read`, and FileNotFoundError where no manifest has it."""
        return self._run(lambda ours: self._tried(one.name, lambda: self._look(one, ours)))

    def conditional(self, one: Object) -> bool:
        """Whether every reply says which content of an object it is of; so that a last look tells nothing new."""
        return self._strong_tag(one) is not None and one.path not in self._untold

    def check(self, one: Object, reply: Mapping[str, Any], size: int | None) -> None:
        """Holds a reply against what was seen, and against the first replies: some servers say tags with content alone.

        Args:
            reply: its headers.
            size: of the whole object, by the reply.
        Raises:
            OtherContentError: it is of another content.
        """
        seen = self._seen[one.path]
        tag = str(reply.get(seen.key, ""))
        if tag and tag.removeprefix("W/") != seen.tag.removeprefix("W/"):
            raise OtherContentError(f"the tag of {one.name} was {seen.tag}, and a reply has {tag}")
        before = one.size if seen.size is None else seen.size
        if size is not None and before is not None and size != before:
            raise OtherContentError(f"{one.name} had {before:,} bytes, and a reply says {size:,}")
        told = self._told.setdefault(one.path, {})
        now = {key: str(reply[key]).removeprefix("W/") for key in _REPLY_TAGS if reply.get(key)}
        key = next((key for key in _REPLY_TAGS if key in told and key in now), None)
        if key is not None and told[key] != now[key]:
            raise OtherContentError(
                f"{one.name} has changed while it was being read: {key} was {told[key]}, and a reply has {now[key]}; {_ANEW}"
            )
        self._told[one.path] = now | told
        if not tag:
            self._untold.add(one.path)

    def begin(self, one: Object, first: int, last: int) -> Future[memoryview]:
        """Some bytes of an object, on their way from now on; of file systems that do several things `at_once`."""
        assert self.at_once

        async def work() -> memoryview:
            await self._checked(one)
            return await self.range(one, first, last)

        return asyncio.run_coroutine_threadsafe(work(), self._fs.loop)

    def read(self, objects: Sequence[Object], spans: Spans) -> list[memoryview]:
        """The bytes of some spans of `objects`, in their order.

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
            touched = [objects[number] for number in distinct(requests.files).tolist()]

            async def work(ours: Workers | None) -> list[memoryview]:
                await self._all(self._checked(one, ours) for one in touched)
                read = await self._all(
                    self.range(objects[file], first, last, ours) for file, first, last in _rows(requests)
                )
                await self._all(self._checked(one, ours) for one in touched)
                return read

            read = self._run(work)
            begins = spans.firsts[wanted] - requests.firsts[which]
            ends = begins + spans.lasts[wanted] - spans.firsts[wanted]
            for place, number, begin, end in zip(wanted.tolist(), which.tolist(), begins.tolist(), ends.tolist()):
                found[place] = read[number][begin:end]
        return found

    # -- requests --------------------------------------------------------------------------------------------------------

    async def range(self, one: Object, first: int, last: int, ours: Workers | None = None) -> memoryview:
        """A range of an object, in pieces where it is long; out of the cache, by its tag, where there is one. All ranges of all
        objects come through here.

        Args:
            ours: the thread of a file system that has no coroutines.
        """
        key = self.identity(one)
        if self.cache is not None and key is not None:
            return await self._cached(self.cache, key, one, first, last, ours)
        edges = [*range(first, last, PIECE_BYTES), last]
        pieces = await self._all(self._asked(one, begin, end, ours) for begin, end in pairwise(edges))
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    async def _asked(self, one: Object, first: int, last: int, ours: Workers | None) -> bytes:
        async with self._gate:
            return await self._tried(one.name, lambda: self._piece(one, first, last, ours), (one, ours))

    async def _piece(self, one: Object, first: int, last: int, ours: Workers | None) -> bytes:
        tag = self._strong_tag(one)
        if self.is_http:
            data = await self._http_piece(one, first, last, tag)
        elif tag is not None:
            data = await self._s3_piece(one, first, last, tag)
        else:
            data = await self._call(ours, "cat_file", one.path, start=first, end=last)
        if len(data) > last - first:
            raise DataError(f"{one.name}: {last - first:,} bytes were asked for and {len(data):,} came")
        if len(data) < last - first:
            raise EOFError(f"{last - first:,} bytes were asked for and {len(data):,} came")
        return bytes(data)

    async def _http_piece(self, one: Object, first: int, last: int, tag: str | None) -> bytes:
        """Not by `cat_file`, which takes all that comes, be it the whole of a large file again and again."""
        async with await self._http_reply(one, {"Range": f"bytes={first}-{last - 1}"}, tag) as reply:
            reply.raise_for_status()
            size = size_of(reply)
            if reply.status == _PARTIAL and size is not None:
                self._check_range(one, first, last, reply.headers, reply.headers.get("Content-Range", ""))
            else:
                self.check(one, reply.headers, size)
                if first or size != last:
                    came = "all" if size is None else f"{size:,}"
                    raise WholeOnlyError(
                        f"{one.name}: {last - first:,} bytes were asked for and {came} came; {WHOLE_ONLY}"
                    )
            return bytes(await reply.read())

    async def _http_reply(self, one: Object, asked: dict[str, str], tag: str | None) -> Any:
        headers = {**self._fs.kwargs.get("headers", {}), "Accept-Encoding": "identity", **asked}
        headers |= {"If-Match": tag} if tag else {}
        session = await self._fs.set_session()
        return session.get(self._fs.encode_url(one.path), **{**self._fs.kwargs, "headers": headers})

    async def _s3_piece(self, one: Object, first: int, last: int, tag: str) -> bytes:
        """By the client that the file system made: its own `cat_file` takes no conditions."""
        bucket, key, version = self._fs.split_path(one.path)
        told = self._fs.s3_additional_kwargs | self._fs.req_kw
        options = {name: told[name] for name in _S3_OPTIONS if name in told}
        options |= {"VersionId": version} if version else {}
        await self._fs.set_session()
        client = await self._fs.get_s3(bucket)
        reply = await client.get_object(
            Bucket=bucket, Key=key, Range=f"bytes={first}-{last - 1}", IfMatch=tag, **options
        )
        async with reply["Body"] as body:
            self._check_range(one, first, last, reply, reply.get("ContentRange", ""))
            return bytes(await body.read())

    def _check_range(self, one: Object, first: int, last: int, reply: Mapping[str, Any], came: str) -> None:
        """Holds a reply with a part of an object against what was asked for; it may stop short of `last`.

        Raises:
            OtherContentError: it is of another content.
            RefusedError: it is of another part.
        """
        found = _RANGE.fullmatch(came)
        self.check(one, reply, int(found[3]) if found and found[3] != "*" else None)
        if found is None or int(found[1]) != first or int(found[2]) >= last:
            raise RefusedError(
                f"{one.name} cannot be read by ranges: bytes {first}-{last - 1} were asked for, and the server sent "
                f"{came or 'it does not say which'}; copy it to a local folder"
            )

    # -- through the cache -----------------------------------------------------------------------------------------------

    def identity(self, one: Object) -> str | None:
        """A word for the content of an object that was looked at; None: its file system has no tag of it."""
        seen = self._seen.get(one.path)
        if seen is None or seen.size is None or not seen.tag:
            return None
        return kept.digest(one.name, _where(self._fs.storage_options), seen.size, seen.key, seen.tag)

    async def _cached(
        self, cache: DiskCache, key: str, one: Object, first: int, last: int, ours: Workers | None
    ) -> memoryview:
        """A range of an object, by the pieces of the cache that it lies in. Those that several want at once come once."""
        if (
            one.path not in self._asked_for
            and (found := await asyncio.to_thread(cache.open, f"{key}-whole")) is not None
        ):
            self._whole[one.path] = found
        self._asked_for.add(one.path)
        if one.path not in self._whole:
            begin = first // kept.PIECE_BYTES
            numbers = range(begin, -(-last // kept.PIECE_BYTES))
            try:
                pieces = await self._all(self._arrival(cache, key, one, numbers, number, ours) for number in numbers)
            except WholeOnlyError as error:
                await self._download(cache, key, one, error)
            else:
                data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
                start = first - begin * kept.PIECE_BYTES
                part = data[start : start + last - first]
                return part if len(numbers) > 1 or len(part) > len(data) // 2 else memoryview(bytes(part))
        part = await asyncio.to_thread(self._whole[one.path].read, first, last)
        if part is None:
            del self._whole[one.path]
            await asyncio.to_thread(cache.forget, f"{key}-whole")
            return await self._cached(cache, key, one, first, last, ours)  # it comes again
        return part

    def _arrival(
        self, cache: DiskCache, key: str, one: Object, wanted: _Numbers, number: int, ours: Workers | None
    ) -> Any:
        """A piece that is on its way, with those behind it that are wanted and not yet; as many as one request brings."""
        bringer = os.getpid() if ours is None else id(ours)  # nobody brings what was on its way, once it is another one
        if (bringer, one.path, number) not in self._arriving:
            stop = number + 1
            while stop < wanted.stop and stop % _RUN and (bringer, one.path, stop) not in self._arriving:
                stop += 1
            names = [(bringer, one.path, each) for each in range(number, stop)]
            task = asyncio.ensure_future(self._arrived(cache, key, one, range(number, stop), ours))
            self._arrives(task, names)
        task, place = self._arriving[bringer, one.path, number]

        async def piece() -> memoryview:
            return (await asyncio.shield(task))[place]

        return piece()

    def _arrives(self, task: asyncio.Task[list[memoryview]], names: list[tuple[int, str, int]]) -> None:
        self._arriving |= {name: (task, place) for place, name in enumerate(names)}

        def over(task: asyncio.Task[list[memoryview]]) -> None:
            for name in names:
                del self._arriving[name]
            _ = task.cancelled() or task.exception()  # nobody may wait for it any more

        task.add_done_callback(over)

    async def _arrived(
        self, cache: DiskCache, key: str, one: Object, numbers: _Numbers, ours: Workers | None
    ) -> list[memoryview]:
        """Some pieces: of the cache, or of the store, which the cache then has."""
        size = self._seen[one.path].size
        assert size is not None
        names = [f"{key}-{number:x}" for number in numbers]
        edges = [*(number * kept.PIECE_BYTES for number in numbers), min(size, numbers.stop * kept.PIECE_BYTES)]

        def of_cache() -> dict[int, memoryview]:
            found = ((place, cache.get(name, edges[place + 1] - edges[place])) for place, name in enumerate(names))
            return {place: piece for place, piece in found if piece is not None}

        found = await asyncio.to_thread(of_cache)
        absent = [place for place in range(len(names)) if place not in found]
        if absent:
            first, last = edges[absent[0]], edges[absent[-1] + 1]
            data = memoryview(await self._asked(one, first, last, ours))
            if not self.conditional(one):  # nothing yet has said that these bytes are of this tag
                await self._tried(one.name, lambda: self._look(one, ours))
            found |= {place: data[edges[place] - first : edges[place + 1] - first] for place in absent}

            def into_cache() -> None:
                for place in absent:
                    cache.put(names[place], found[place])

            await asyncio.to_thread(into_cache)
        return [found[place] for place in range(len(names))]

    async def _download(self, cache: DiskCache, key: str, one: Object, refusal: WholeOnlyError) -> None:
        """Has all of an object in the cache, in one file, of a server that sends no parts.

        Raises:
            RefusedError: the cache does not take it.
        """
        name, arriving = f"{key}-whole", (os.getpid(), one.path, -1)
        size, limit = self._seen[one.path].size or 0, cache.limit
        if size > limit:
            raise RefusedError(
                f"{refusal}. It has {size:,} bytes and the limit of the cache is {limit:,}; raise cache_bytes"
            )

        async def come() -> list[memoryview]:
            found = await asyncio.to_thread(cache.open, name)
            if found is None:
                async with self._gate:
                    await self._tried(one.name, lambda: self._whole_reply(cache, name, one), (one, None), limited=False)
                found = await asyncio.to_thread(cache.open, name)
            if found is None or found.size != size:
                raise RefusedError(f"{refusal}. (The cache in {cache.path} did not keep it)")
            self._whole[one.path] = found
            return []

        if arriving not in self._arriving:
            self._arrives(asyncio.ensure_future(come()), [arriving])
        await asyncio.shield(self._arriving[arriving][0])

    async def _whole_reply(self, cache: DiskCache, name: str, one: Object) -> None:
        """Writes an object to the cache while it comes; each part of it in the time of a request."""
        size, held = self._seen[one.path].size, bytearray()
        try:
            file = await asyncio.to_thread(cache.begin, name)
        except OSError as error:
            raise RefusedError(f"{one.name} cannot be kept in the cache in {cache.path}: {error}") from error
        try:
            async with await self._http_reply(one, {}, self._strong_tag(one)) as reply:
                reply.raise_for_status()
                self.check(one, reply.headers, size_of(reply))
                while True:
                    async with asyncio.timeout(self._timeout / LEAST_ATTEMPTS):
                        more = await reply.content.read(kept.PIECE_BYTES)
                    held += more
                    while len(held) >= kept.PIECE_BYTES or (held and not more):
                        block = memoryview(bytes(held[: kept.PIECE_BYTES]))
                        del held[: kept.PIECE_BYTES]
                        try:
                            await asyncio.to_thread(file.add, block)
                        except OSError as error:
                            raise RefusedError(
                                f"{one.name} cannot be kept in the cache in {cache.path}: {error}"
                            ) from error
                    if not more:
                        break
            if file.size != size:
                raise EOFError(f"{size:,} bytes were promised and {file.size:,} came")
            if not self.conditional(one):
                await self._look(one, None)
            await asyncio.to_thread(file.seal)
        finally:
            file.drop()

    # --------------------------------------------------------------------------------------------------------------------

    def _strong_tag(self, one: Object) -> str | None:
        """The tag that requests are made conditional on. If-Match never holds for a weak tag (W/"...")."""
        seen = self._seen.get(one.path)
        strong = seen is not None and seen.tag.startswith('"') and (self._is_s3 or self.is_http)
        return seen.tag if seen is not None and strong else None

    async def _checked(self, one: Object, ours: Workers | None = None) -> None:
        """Looks at an object if that was long ago.

        Raises:
            DataError: it is not what it was, or what the manifest says.
        """
        before = self._seen.get(one.path)
        if before is None or (not self.conditional(one) and time.monotonic() - before.at >= CHECK_SECONDS):
            async with self._gate:
                await self._tried(one.name, lambda: self._look(one, ours))

    async def _look(self, one: Object, ours: Workers | None) -> Seen:
        self._fs.invalidate_cache(one.path)
        try:
            info = await self._call(ours, "info", one.path)
        except FileNotFoundError as error:
            if one.size is None or not absent(error):
                raise
            raise DataError(f"{one.name} is missing from its store: the manifest says {one.size:,} bytes") from error
        size = info.get("size")
        key = next((key for key in _TAGS if info.get(key)), "")
        now = Seen(size, str(info.get(key, "")), time.monotonic(), key)
        before = self._seen.get(one.path, now)
        if one.size is not None and size is not None and size != one.size:
            raise DataError(
                f"{one.name} is not what was written, or has changed: it has {size:,} bytes, and the manifest says {one.size:,}"
            )
        if now.size != before.size:
            raise DataError(
                f"{one.name} has changed while it was being read: it had {_bytes(before)} and has {_bytes(now)}; {_ANEW}"
            )
        if now.tag and before.tag and now.tag != before.tag:  # one that is not said says nothing
            raise DataError(
                f"{one.name} has changed while it was being read: its tag was {before.tag} and is {now.tag}; {_ANEW}"
            )
        self._seen[one.path] = now if now.tag else now._replace(tag=before.tag, key=before.key)
        return self._seen[one.path]

    async def _tried(
        self,
        name: str,
        attempt: Callable[[], Awaitable[T]],
        looked_at: tuple[Object, Workers | None] | None = None,
        limited: bool = True,
    ) -> T:
        """The result of an attempt, which is repeated until it has one; `looked_at`: where an attempt fails."""

        async def within(seconds: float) -> T:
            async with asyncio.timeout(seconds if limited else None):
                return await attempt()

        async def look(error: Exception) -> None:
            if looked_at is not None and may_have_changed(error):
                await self._tried(name, lambda: self._look(*looked_at))

        return await repeated(name, self._timeout, within, look, asyncio.sleep)

    # -- how it is run ---------------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[Workers | None], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in fsspec's loop; with a thread for a file system that has no coroutines."""
        if self.at_once:
            return run(work(None), self._fs.loop)
        with Workers(1, "ranges") as ours:
            return run(work(ours), fsspec.asyn.get_loop())

    async def _call(self, ours: Workers | None, name: str, *args: Any, **options: Any) -> Any:
        if ours is None:
            return await getattr(self._fs, f"_{name}")(*args, **options)
        return await asyncio.wrap_future(ours.submit(partial(getattr(self._fs, name), *args, **options)))

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


def run(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """The result of a coroutine that runs in a loop of another thread; who stops waiting cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return awaited(future)
    except BaseException:
        future.cancel()
        raise


def size_of(reply: Any) -> int | None:
    """How many bytes an HTTP reply has, None where that is not known: compressed on the way, it has others than the object."""
    return reply.content_length if reply.headers.get("Content-Encoding", "identity") == "identity" else None


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


def _where(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Of the options of a file system, those that may say where it is, and which others have too: no secrets, no objects."""
    plain = [(name, _where(value) if isinstance(value, Mapping) else value) for name, value in options.items()]
    return sorted(
        (name, value)
        for name, value in plain
        if isinstance(value, str | int | list) and value != [] and name not in _NOT_PLACES
    )


WHOLE_ONLY: Final = (
    "the web server does not send ranges of bytes, so a file could not be resumed. Download it first, to a local folder; or "
    "give cache_dir=, which then keeps it whole"
)
_ANEW: Final = "leave it as it is while it is read, and begin anew"


def _bytes(seen: Seen) -> str:
    return "no known size" if seen.size is None else f"{seen.size:,} bytes"


def _rows(spans: Spans) -> list[tuple[int, int, int]]:
    return list(zip(*(array.tolist() for array in spans)))
