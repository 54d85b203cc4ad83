"""Ctrl-C, or a read that is given up, while a store far away sends nothing: nobody waits for the threads that wait for it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest

import brimful as bf
from brimful.core import run
from tests.shards import threads_left, watched, write
from tests.store.faulty import faulty
from tests.store.servers import s3, serving

NAMES = ["begun.jsonl", "begun.jsonl.gz", "begun.jsonl.zst", "begun.parquet", "new.jsonl", "store"]
"""Those that are begun are stuck after their first rows, others before them."""
BOUND = 5.0
"""Seconds: one wait of close for threads that are stuck, of which there were three. Now it is a tenth of one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB each: some requests' worth."""
    path = tmp_path_factory.mktemp("far")
    rows = [{"input_ids": [number] * 9, "text": os.urandom(200).hex()} for number in range(25_000)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name in ("begun.jsonl", "new.jsonl"):
        (path / name).write_bytes(lines)
    (path / "begun.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    (path / "begun.jsonl.zst").write_bytes(bytes(pa.Codec("zstd").compress(lines, asbytes=True)))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path / "begun.parquet", row_group_size=1_000)
    bf.from_sequence(pa.Table.from_pylist(rows)).to_store(path / "store")
    return path


class Far(NamedTuple):
    """An address with its storage options; what has its server send nothing more, and whether somebody waits for that."""

    url: str
    options: dict[str, Any]
    stall: Callable[[], object]
    stalls: Callable[[], bool]


@contextmanager
def over_http(folder: Path) -> Iterator[Far]:
    with serving(folder) as server:
        faults = {path.name: ["GET stall"] * 100 for path in folder.rglob("*")}
        yield Far(
            server.url, {}, lambda: server.faults.update(faults), lambda: any(len(one) < 100 for one in faults.values())
        )


@contextmanager
def over_s3(folder: Path) -> Iterator[Far]:
    with s3() as options, faulty(options["endpoint_url"], 0, faults=["stall"]) as server:
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        for path in folder.glob("begun.*"):
            fs.pipe_file(f"bucket/{path.name}", path.read_bytes())
        by = {**options, "endpoint_url": server.url}
        yield Far("s3://bucket", by, lambda: setattr(server, "every", 1), lambda: server.seen["stall"] > 0)


def seconds_to_end(far: Far, name: str, timeout: float | None = None) -> float:
    """From the Ctrl-C, or from the end of `timeout`, until the process is gone."""
    settings = [f"{far.url}/{name}", json.dumps(far.options), f"{timeout or 600}"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sources.stuck_child", *settings],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "reading\n"
            far.stall()
            child.stdin.write("go on\n")
            child.stdin.flush()
            while not far.stalls():
                assert child.poll() is None, "it has read all"
                time.sleep(0.01)
            began = time.monotonic()
            if timeout is None:
                time.sleep(1.0)  # until it has used what it had
                began = time.monotonic()
                child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == ("KeyboardInterrupt\n" if timeout is None else "TimeoutError\n")
            child.wait(60)
            return time.monotonic() - began - (timeout or 0.0)
        finally:
            child.kill()


@pytest.mark.parametrize("name", NAMES)
def test_a_ctrl_c_ends_a_process_whose_read_over_http_is_stuck(folder: Path, name: str) -> None:
    with over_http(folder) as far:
        assert seconds_to_end(far, name) < BOUND


@pytest.mark.parametrize("name", ["begun.jsonl.gz", "begun.parquet"])
def test_a_ctrl_c_ends_a_process_whose_read_of_s3_is_stuck(folder: Path, name: str) -> None:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    with over_s3(folder) as far:
        assert seconds_to_end(far, name) < BOUND


@pytest.mark.parametrize("name", ["begun.jsonl.gz", "begun.parquet"])
def test_a_read_that_is_given_up_ends_when_its_time_is_over(folder: Path, name: str) -> None:
    with over_http(folder) as far:
        assert seconds_to_end(far, name, 4.0) < BOUND


@pytest.mark.parametrize("interrupted", [True, False], ids=["ctrl-c", "timeout"])
def test_a_thread_that_is_stuck_in_the_operating_system_is_waited_for_once_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """Nothing can end it. Each layer above it, and the end of the process, waited as long as the first."""
    monkeypatch.setattr(run, "JOIN_SECONDS", 2.0)
    join, waited = threading.Thread.join, [0.0]

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        waited.append(timeout or 0.0 if thread.is_alive() else 0.0)

    monkeypatch.setattr(threading.Thread, "join", noted)
    url = write(tmp_path / "a.jsonl", [{"x": number} for number in range(10)])
    released, reads = threading.Event(), threading.Event()

    def stuck(name: str) -> None:
        reads.set()
        released.wait(60)

    def interrupt() -> None:
        reads.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    with watched(on_read=stuck):
        data = bf.from_files(f"watched://{url}", schema={"x": pa.int64()}, timeout_seconds=60 if interrupted else 0.1)
        it = data.shuffle(4).iter()
        if interrupted:
            threading.Thread(target=interrupt).start()
        try:
            with pytest.raises(KeyboardInterrupt if interrupted else TimeoutError):
                next(it)
            it.close()
            in_vain = sum(waited)
        finally:
            released.set()
    assert threads_left() == []
    assert in_vain <= (3.0 if interrupted else 1.0)
