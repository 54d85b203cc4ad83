"""What a web server sends that knows no ranges: an object from its first byte on, each read with its time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class WebStream:
    """The body of one reply, read forward.

    Args:
        fs: fsspec's file system of HTTP.
        path: the URL.
        seconds: how long the reply may take to begin, and each read; a server that stalls is then given up.
    Raises:
        TimeoutError: it took longer.
    """

    def __init__(self, fs: Any, path: str, seconds: float) -> None:
        self._fs, self._seconds = fs, seconds
        self._reply = self._run(self._asked(path))

    def read(self, size: int) -> bytes:
        """Up to so many bytes, as they come; none: the end."""
        return bytes(self._run(self._reply.content.read(size)))

    def close(self) -> None:
        self._fs.loop.call_soon_threadsafe(self._reply.close)

    async def _asked(self, path: str) -> Any:
        headers = {**self._fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        session = await self._fs.set_session()
        reply = await session.get(self._fs.encode_url(path), **{**self._fs.kwargs, "headers": headers})
        reply.raise_for_status()
        return reply

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, self._seconds), self._fs.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
