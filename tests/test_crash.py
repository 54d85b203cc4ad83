"""A process that is killed at any moment, again and again, gives the stream of one that never was."""

from __future__ import annotations

import gzip
import itertools
import json
import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest

from tests import crash_child
from tests.effort import times

KILLS = times(12, 1_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(0)
    for shard in range(6):
        rows = [{"id": shard * 1000 + row, "text": "x" * draw.randint(0, 60)} for row in range(draw.randint(50, 250))]
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        name = f"{shard}.jsonl" + ".gz" * (shard % 2)
        (tmp_path / name).write_bytes(gzip.compress(data) if shard % 2 else data)
    return tmp_path


def test_kills_lose_nothing_and_repeat_nothing(folder: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["brimful.arrays.padded", "tests.crash_child"])
    draw = random.Random(1)
    place = folder / "place.json"
    for _ in range(KILLS):
        before = place.stat().st_mtime_ns if place.exists() else None
        child = processes.Process(target=crash_child.run, args=(str(folder), 0.001, None))
        child.start()
        deadline = time.monotonic() + 60
        while not place.exists() or place.stat().st_mtime_ns == before:  # until it has got on
            assert child.is_alive(), "the child ended by itself"
            assert time.monotonic() < deadline, "the child saved nothing within a minute"
            time.sleep(0.001)
        time.sleep(draw.random() * 0.15)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    count = json.loads(place.read_text())["count"] + 50
    child = processes.Process(target=crash_child.run, args=(str(folder), 0.0, count))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    unbroken = [digest for digest, _ in itertools.islice(crash_child.digests(folder), count)]
    assert (folder / "log.txt").read_text().splitlines() == unbroken
    assert len(set(unbroken)) > 0.9 * count, "each epoch has another order"
