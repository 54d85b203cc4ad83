"""What shards on standby hide: rows a second from a server that takes 200 ms to open a file, and from one that does not.

    python benchmarks/remote.py [rows of a shard, about]

24 shards of unlike length, in JSON of 100 bytes a row, four read at once; the server is another process, asked over HTTP by
ranges of bytes, and waits where the client first asks what a file is, as a store does that looks a name up.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import brimful as bf
from brimful.core.run import Run

OPEN_SECONDS = 0.2
RUNS = 3
ACTIVE = 4
SHARDS = 24


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seconds = 0.0

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        if not self.is_missing():
            time.sleep(self.seconds)
            self.answer(b"")

    def do_GET(self) -> None:
        if self.is_missing():  # braces are looked for as they stand, too
            return
        first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
        with open(self.translate_path(self.path), "rb") as file:
            file.seek(first)
            self.answer(file.read(last + 1 - first), first)

    def is_missing(self) -> bool:
        missing = not os.path.isfile(self.translate_path(self.path))
        if missing:
            self.send_error(404)
        return missing

    def answer(self, content: bytes, first: int | None = None) -> None:
        size = os.path.getsize(self.translate_path(self.path))
        self.send_response(200 if first is None else 206)
        if first is not None:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.send_header("Content-Length", str(size if first is None else len(content)))
        self.send_header("ETag", f'"{size}"')
        self.end_headers()
        self.wfile.write(content)


def serve(folder: str, seconds: float) -> None:
    Handler.seconds = seconds
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


@contextmanager
def served(folder: str, seconds: float) -> Iterator[str]:
    command = [sys.executable, __file__, "serve", folder, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def write(folder: Path, rows: int) -> int:
    counts = np.random.default_rng(0).integers(rows // 5, 2 * rows - rows // 5, SHARDS)
    for number, count in enumerate(counts.tolist()):
        lines = (json.dumps({"id": row, "text": f"{row:08x}" * 9}) + "\n" for row in range(count))
        (folder / f"{number:04}.jsonl").write_text("".join(lines))
    return int(counts.sum())


def rate(url: str, standby: int) -> float:
    """Rows a second, from the first one on: the list of shards, and the types, are known before."""
    data = bf.from_files(
        f"{url}/{{0000..{SHARDS - 1:04}}}.jsonl",
        schema={"id": pa.int64(), "text": pa.string()},
        n_active_shards=ACTIVE,
        n_standby_shards=standby,
    )
    stage = data.stage
    items = stage.items(stage.start(0), Run())
    rows = next(items)[0].num_rows
    began, count = time.perf_counter(), 0
    for block, _ in items:
        count += block.num_rows
    assert rows
    return count / (time.perf_counter() - began)


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    mean = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    print(f"{processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as name:
        rows = write(Path(name), mean)
        print(
            f"{SHARDS} shards, {rows:,} rows, {ACTIVE} read at once; thousands of rows a second, best and median of {RUNS}"
        )
        for seconds in (OPEN_SECONDS, 0.0):
            with served(name, seconds) as url:
                for standby in (0, 2, 4):
                    speeds = [rate(url, standby) / 1e3 for _ in range(RUNS)]
                    print(
                        f"  {seconds * 1e3:3.0f} ms to open, {standby} on standby {max(speeds):6.0f} {median(speeds):6.0f}"
                    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], float(sys.argv[3]))
    else:
        main()
