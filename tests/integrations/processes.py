"""Jobs of a trainer in processes of their own: forks of one that has imported the trainer for all of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import brimful as bf

ROOT = Path(__file__).parents[2]
STREAMS = 4
LENGTHS = [3, 9, 1, 5, 7, 2, 8, 4, 6, 3, 5, 1, 9, 2, 2, 7, 4, 1, 8, 3, 6, 5, 2, 9, 4, 1, 7, 3, 8, 2]


def write_shards(folder: Path) -> Path:
    """Streams of very unequal length, and the same rows in memory: token n is of sample n."""
    rows = rows_of(len(LENGTHS))
    for number, share in enumerate((rows[:15], rows[15:20], rows[20:21], rows[21:])):
        (folder / f"shard-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in share))
    return folder


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": [number + 1] * length} for number, length in enumerate(LENGTHS[:count])]


def batches(kind: str, folder: Path) -> bf.Batches:
    if kind == "indexed":
        return bf.from_sequence(rows_of(len(LENGTHS)), shuffle=True).batch_by_tokens(20, window=16).shard()
    data = bf.from_files(str(folder / "shard-*.jsonl"), streams=STREAMS).shuffle(8)
    return data.batch_by_tokens(20, window=8).shard(timeout_seconds=30)


def one(batch: Any) -> list[int]:
    """The samples of a batch; none of a filler."""
    return [] if batch.get("is_filler") else sorted(set(batch["input_ids"].flatten().tolist()) - {0})


@contextmanager
def forks_of(module: str) -> Iterator[Callable[..., list[Any]]]:
    """Runs a job of a module's: what each of its ranks saw, None of one that was killed or failed."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def run(world_size: int, job: str, folder: Path, *arguments: str) -> list[Any]:
            words = [job, str(folder), *arguments]
            print(json.dumps([world_size, free_port(), words]), file=child.stdin, flush=True)
            assert json.loads(child.stdout.readline()) == words
            results = [folder / f"{job}-{rank}.json" for rank in range(world_size)]
            found = [json.loads(path.read_text()) if path.exists() else None for path in results]
            for path in results:
                path.unlink(missing_ok=True)
            return found

        try:
            yield run
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        return int(here.getsockname()[1])


def serve(jobs: dict[str, Callable[..., Any]]) -> None:
    """What a module that `forks_of` names does: a fork for each rank of each job that it is told of."""
    import_module("torch._dynamo")  # optimizers and DDP import it, some seconds in each fork
    for line in sys.stdin:
        world_size, port, words = json.loads(line)
        ranks = []
        for rank in range(world_size):
            ranks.append(os.fork())
            if not ranks[-1]:
                shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": str(port)}
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
                os.environ |= (shared | own | {"LOCAL_WORLD_SIZE": str(world_size)}) if world_size > 1 else {}
                os.dup2(2, 1)
                job, folder, *arguments = words
                try:
                    saw = jobs[job](Path(folder), *arguments)
                    (Path(folder) / f"{job}-{rank}.json").write_text(json.dumps(saw))
                except Exception:
                    traceback.print_exc()
                sys.stderr.flush()
                os._exit(0)  # without waiting for a rank that was killed
        for process in ranks:
            os.waitpid(process, 0)
        print(json.dumps(words), flush=True)
