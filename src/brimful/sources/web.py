"""What a web server sends that knows no ranges: an object from its first byte on, each read with its time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from brimful.sources.objects import Object, Objects, size_of


class WebStream:
    """The body of one reply, read forward.

    Args:
        fs: fsspec's file system of HTTP.
        objects: holds the reply against what was seen of the object.
        one: the object.
        seconds: how long the reply may take to begin, and each read; a server that stalls is then given up.
    Raises:
        TimeoutError: it took longer.
        OtherContentError: the object is not what it was.
    """

    def __init__(self, fs: Any, objects: Objects, one: Object, seconds: float) -> None:
        self._fs, self._objects, self._seconds = fs, objects, seconds
        self._reply = self._run(self._asked(one))

    def read(self, size: int) -> bytes:
        """Up to so many bytes, as they come; none: the end."""
        return bytes(self._run(self._reply.content.read(size)))

    def close(self) -> None:
        self._fs.loop.call_soon_threadsafe(self._reply.close)

    async def _asked(self, one: Object) -> Any:
        headers = {**self._fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        session = await self._fs.set_session()
        reply = await session.get(self._fs.encode_url(one.path), **{**self._fs.kwargs, "headers": headers})
        reply.raise_for_status()
        self._objects.check(one, reply.headers, size_of(reply))
        return reply

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, self._seconds), self._fs.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
