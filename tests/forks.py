"""Jobs of tests in processes of their own: forks of one that has imported what they need, for all of them."""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Launch = Callable[..., list[Any]]
"""`launch(world_size, job, folder, *arguments)`: what each rank returned, through JSON; None of one that was killed or failed."""
SECONDS = 200.0
"""How long a job may take. A rank that has not ended then says where each of its threads stands, and ends."""


@contextmanager
def forks_of(module: str) -> Iterator[Launch]:
    """Runs jobs of a module that `serve`s them."""
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

        def launch(world_size: int, job: str, folder: Path, *arguments: Any) -> list[Any]:
            words = [job, str(folder), *arguments]
            print(json.dumps([world_size, free_port(), words]), file=child.stdin, flush=True)
            assert json.loads(child.stdout.readline()) == words
            said = [said_by(folder, job, rank).read_text() for rank in range(world_size)]
            late = [rank for rank, text in enumerate(said) if text.startswith("Timeout (")]
            assert not late, f"{words}: ranks {late} had not ended after {SECONDS:g} seconds\n" + "\n".join(
                f"-- rank {rank}\n{text}" for rank, text in enumerate(said)
            )
            results = [folder / f"{job}-{rank}.json" for rank in range(world_size)]
            found = [json.loads(path.read_text()) if path.exists() else None for path in results]
            for path in results:
                path.unlink(missing_ok=True)
            return found

        try:
            yield launch
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def printed_by(example: str, world_size: int) -> list[str]:
    """What an example prints, run as a user would: alone, or by each of several processes that torchrun would start."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / example)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment(rank, world_size, port) if world_size > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    printed = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world_size
    return printed


def free_port() -> int:
    """A port that no connection takes before it is listened to: below those that the system gives out by itself."""
    while True:
        with socket.socket() as here, suppress(OSError):
            port = 15_000 + secrets.randbelow(17_000)
            here.bind(("127.0.0.1", port))
            return port


def serve(jobs: dict[str, Callable[..., Any]], imported: str, *, alone: bool = False) -> None:
    """What a module that `forks_of` names does: a fork for each rank of each job that it is told of.

    Args:
        imported: a module that takes seconds to import, which each fork would.
        alone: whether a rank that is the only one is told so by its environment too, as by torchrun.
    """
    import_module(imported)
    for line in sys.stdin:
        world_size, port, words = json.loads(line)
        ranks = []
        for rank in range(world_size):
            ranks.append(os.fork())
            if not ranks[-1]:
                os.environ |= environment(rank, world_size, port) if world_size > 1 or alone else {}
                os.dup2(2, 1)  # stdout is for answers
                job, folder, *arguments = words
                with said_by(Path(folder), job, rank).open("w") as said:
                    faulthandler.enable(said)
                    faulthandler.dump_traceback_later(SECONDS, exit=True, file=said)
                    try:
                        saw = jobs[job](Path(folder), *arguments)
                        (Path(folder) / f"{job}-{rank}.json").write_text(json.dumps(saw))
                    except Exception:  # SystemExit ends it as any process
                        traceback.print_exc()
                        traceback.print_exc(file=said)
                sys.stderr.flush()
                os._exit(0)  # without waiting for a rank that was killed
        for process in ranks:
            os.waitpid(process, 0)
        print(json.dumps(words), flush=True)


def said_by(folder: Path, job: str, rank: int) -> Path:
    """Where a rank of a job writes the error that ended it, or where it stood when its time was over."""
    return folder / f"{job}-{rank}.txt"


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun says to a rank."""
    one = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": str(port)} | {
        name: str(number) for name, number in one.items()
    }
