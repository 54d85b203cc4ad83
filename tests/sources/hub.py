"""The part of the Hugging Face hub that its file system asks for: revisions, lists of files, and files by ranges."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from urllib.parse import unquote, urlsplit

from tests.store.servers import answering

Files = dict[str, bytes]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        found = re.fullmatch(r"(/api)?/datasets/(\w+/\w+)/(revision|tree|resolve)/([^/]+)/?(.*)", path)
        found = found or re.fullmatch(r"(/api)?/datasets/(\w+/\w+)()()()", path)
        if found is None or found[2] not in self.server.repos:
            return self._say(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        _, repo, what, revision, name = map(unquote, found.groups(""))
        what, revision = what or "revision", revision or "main"
        self.server.requests[what] += 1
        if revision not in self.server.repos[repo]:
            return self._say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = self.server.repos[repo][revision]
        if what == "revision":
            return self._say(200, json.dumps({"id": repo, "sha": revision, "siblings": []}).encode())
        if what == "tree":
            return self._say(200, json.dumps(list(self._listed(files, name))).encode())
        if name not in files:
            return self._say(404, b"", {"X-Error-Code": "EntryNotFound"})
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        content = files[name]
        if asked is None:
            return self._say(200, content)
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        return self._say(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    @staticmethod
    def _listed(files: Files, folder: str) -> Iterator[dict[str, object]]:
        below = f"{folder}/" if folder else ""
        inside = [name.removeprefix(below) for name in files if name.startswith(below)]
        for name in sorted({name.split("/")[0] for name in inside if "/" in name}):
            yield {"type": "directory", "path": below + name, "size": 0, "oid": "0"}
        for name in inside:
            if "/" not in name:
                yield {"type": "file", "path": below + name, "size": len(files[below + name]), "oid": "0"}

    def _say(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


class Hub(ThreadingHTTPServer):
    """Data sets by their names: the files of each revision. Counts requests by what they are for."""

    daemon_threads = True

    def __init__(self, repos: dict[str, dict[str, Files]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos = repos
        self.requests: Counter[str] = Counter()
        self.released = Event()


@contextmanager
def hub(repos: dict[str, dict[str, Files]]) -> Iterator[Hub]:
    with Hub(repos) as server, answering(server):
        yield server
