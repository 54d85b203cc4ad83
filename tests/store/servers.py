"""Real servers on this machine that stores are read from: of HTTP, with ranges and tags, and of S3."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from tests.forks import free_port


class Handler(SimpleHTTPRequestHandler):
    """Ranges, ETag, If-Match; what its server is told to do wrong, it does."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        server, path = self.server, Path(self.translate_path(self.path))
        server.requests[path.name] += 1
        fault = server.fault(path.name, self.command)
        if fault == "hang":
            server.released.wait(60)
            self.close_connection = True
            return
        if fault == "hang up":
            self.close_connection = True
            return
        if fault == "reset":
            return self._reset(path)
        if fault == "stall" and self.command == "GET":
            return self._stall(path)
        if fault is not None and fault not in ("short", "stall", "other range", "no range"):
            return self._say(int(fault), b"")
        if not path.is_file():
            return self._say(404, b"")
        content = path.read_bytes()
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        if server.tags and server.conditions and self.headers.get("If-Match", tag) != tag:
            return self._say(412, b"")
        tags = {"ETag": tag} if server.tags and not (server.tags == "HEAD" and body) else {}
        if server.tags in ("GET", "GET time"):
            time_of = {"Last-Modified": self.date_time_string(int(path.stat().st_mtime))}
            tags = {} if not body else tags if server.tags == "GET" else time_of
        if server.packed and body:
            return self._say(206, gzip.compress(content), body, {"Content-Encoding": "gzip", **tags})
        asked = self._asked()
        if asked is None or not server.ranges:
            return self._say(200, content, body, tags)
        first, last = asked[0], min(asked[1], len(content) - 1)
        if first > last:
            return self._say(416, b"")
        if fault == "other range" and first >= 100:
            first, last = first - 100, last - 100
        place = {} if fault == "no range" else {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        last = (first + last) // 2 if fault == "short" else last + 1
        return self._say(206, content[first:last], body, {**place, **tags})

    def _stall(self, path: Path) -> None:
        """Sends a part of what was promised, and then nothing."""
        self._begin(path)
        self.server.released.wait(60)
        self.close_connection = True

    def _begin(self, path: Path) -> None:
        """The first bytes of what was asked for, under headers that promise all of it."""
        content = path.read_bytes()
        asked = self._asked() if self.server.ranges else None
        first, last = asked or (0, len(content) - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first : min(last, first + 1_000)])
        self.wfile.flush()

    def _asked(self) -> tuple[int, int] | None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(asked[1]), int(asked[2])) if asked else None

    def _reset(self, path: Path) -> None:
        """Breaks off in the middle of what was promised."""
        if self.command == "GET":
            self._begin(path)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _say(self, status: int, content: bytes, body: bool = True, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            with self.server.lock:
                self.server.bytes += len(content)
            self.wfile.write(content)


class Server(ThreadingHTTPServer):
    """Serves a folder; counts what it was asked for and what it sent.

    It knows `ranges`; `tags` (those of "HEAD" or of "GET" alone, or the "GET time"), and the `conditions` that name them; or
    sends all compressed (`packed`).
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bytes = 0
        self.requests: Counter[str] = Counter()
        self.ranges = self.conditions = True
        self.packed = False
        self.tags: bool | str = True
        self.faults: dict[str, list[str]] = {}
        self.each_fifth: Iterator[str] = iter(())
        self._asked = count(1)
        self.released = threading.Event()
        self.lock = threading.Lock()

    def fault(self, name: str, command: str) -> str | None:
        """The next thing to do wrong with a file: an HTTP status, "hang", "stall", "hang up", "reset", "short", "other range" or
        "no range"; "GET 503" of that method alone; and with each fifth request, whatever for."""
        with self.lock:
            if next(self._asked) % 5 == 0 and (fault := next(self.each_fifth, None)):
                return fault
            left = self.faults.get(name, [])
            if not left or (" " in left[0] and left[0] != "hang up" and not left[0].startswith(command)):
                return None
            fault = left.pop(0).removeprefix(f"{command} ")
            return None if fault == "nothing" else fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has given up


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server, answering(server):
        yield server


@contextmanager
def answering(server: Any) -> Iterator[None]:
    """A server in a thread, until it is no longer wanted; then what hangs is `released`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.released.set()
        server.shutdown()
        thread.join()


@contextmanager
def s3() -> Iterator[dict[str, Any]]:
    """An S3 server in a process of its own; the storage options to reach it."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    with process_of("moto.server", "-H", "127.0.0.1", "-p", "{port}", **keys) as url:
        yield {"key": "test", "secret": "test", "endpoint_url": url}


@contextmanager
def process_of(module: str, *arguments: str, **environment: str) -> Iterator[str]:
    """A server in a process of its own, on a free port; its URL, once it answers."""
    port = free_port()
    command = [sys.executable, "-m", module, *(word.format(port=port) for word in arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    ) as process:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None, f"{module} does not start"
                    assert time.monotonic() < until, f"{module} does not answer"
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
