"""Shards of a real web server: one that knows ranges, and one that does not, so that a resume reads up to its place."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from tests.shards import threads_left, write

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")


class Plain(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Ranged(Plain):
    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            super().do_GET()
            return
        path = self.translate_path(self.path)
        first, last = int(asked[1]), min(int(asked[2]), os.path.getsize(path) - 1)
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read(last + 1 - first)
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{os.path.getsize(path)}")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(folder: Path, handler: type[Plain]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize(("handler", "options"), [(Ranged, {}), (Plain, {"block_size": 0})], ids=["ranges", "stream"])
def test_shards_are_read_and_resumed_over_http(
    tmp_path: Path, handler: type[Plain], options: dict[str, int], ending: str
) -> None:
    for number in range(3):
        write(tmp_path / f"{number}{ending}", [{"id": id} for id in range(number, 30_000, 3)])
    with serving(tmp_path, handler) as server:
        data = bf.from_files(f"{server}/{{0..2}}{ending}", storage_options=options)
        assert [sample["id"] for sample in data] == list(range(30_000))
        it = data.iter()
        list(islice(it, 20_000))
        state = json.loads(json.dumps(it.state_dict()))
        it.close()
        assert [sample["id"] for sample in data.iter(state)] == list(range(20_000, 30_000))
        assert threads_left() == []


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = r"^there is no file 'http://127\.0\.0\.1:\d+/none\.jsonl'$"
    with serving(tmp_path, Plain) as server, pytest.raises(FileNotFoundError, match=message):
        bf.from_files(f"{server}/none.jsonl").iter()
