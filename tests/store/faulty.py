"""A proxy before a real server that does some requests wrong: which ones, and how, follows from a seed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from tests.store.servers import answering

FAULTS: Final = ("drop", "500", "503", "stall", "short")
"""The connection is dropped; an error of the server's; SlowDown; nothing comes; half of the body comes."""
MOST_STALLS: Final = 2
"""Of a run, so that no request has three, which are all of its time."""
_SLOW: Final = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_NOT_PASSED_ON: Final = ("connection", "date", "keep-alive", "server", "transfer-encoding", "content-length")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty
    _behind: HTTPConnection | None = None

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault(self.command)
        if fault == "drop":
            self.close_connection = True
        elif fault == "stall":
            self.server.released.wait(60)
            self.close_connection = True
        elif fault in ("500", "503"):
            self._say(int(fault), {"Content-Type": "application/xml"}, _SLOW if fault == "503" else b"")
        else:
            if fault == "other range" and "Range" in self.headers:
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                self.headers.replace_header("Range", f"bytes={first + 100}-{last + 100}")
            if not self.server.conditions:
                del self.headers["If-Match"]
            reply, content = self._asked(body)
            named = {name: value for name, value in reply.getheaders() if name.lower() not in _NOT_PASSED_ON}
            length = reply.headers.get("Content-Length")
            self._say(reply.status, named, content, length, short=fault == "short")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def _asked(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        if self._behind is None:
            self._behind = HTTPConnection(self.server.behind)
        self._behind.request(self.command, self.path, body, dict(self.headers.items()))
        reply = self._behind.getresponse()
        return reply, reply.read()

    def _say(
        self, status: int, headers: dict[str, str], content: bytes, length: str | None = None, short: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": length or str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with self.server.lock:
                self.server.bytes += len(content)
            self.wfile.write(content[: len(content) // 2] if short else content)
        self.close_connection |= short

    def finish(self) -> None:
        super().finish()
        if self._behind is not None:
            self._behind.close()


class Faulty(ThreadingHTTPServer):
    """Passes requests on to the server at `url`; of each `every` that read it does one wrong (0: none).

    Which one of them follows from `seed`; how, from `faults` in turn: of FAULTS, or "other range". `seen` counts them, `bytes`
    what was sent. Without `conditions` no request is passed on as conditional.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url: str, every: int, seed: int, faults: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = urlsplit(url).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.every, self.seed, self.faults = every, seed, faults
        self.seen: Counter[str] = Counter()
        self.conditions = True
        self.bytes = 0
        self.released = threading.Event()
        self._numbers = count()
        self.lock = threading.Lock()

    def fault(self, command: str) -> str | None:
        if command not in ("GET", "HEAD") or not self.every:
            return None
        with self.lock:
            turn, number = divmod(next(self._numbers), self.every)
            fault = self.faults[turn % len(self.faults)]
            wrong = number == random.Random(f"{self.seed} {turn}").randrange(self.every)
            if not wrong or (fault == "stall" and self.seen[fault] == MOST_STALLS):
                return None
            self.seen[fault] += 1
            return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has given up


@contextmanager
def faulty(url: str, every: int, seed: int = 0, faults: Sequence[str] = FAULTS) -> Iterator[Faulty]:
    with Faulty(url, every, seed, faults) as server, answering(server):
        yield server
