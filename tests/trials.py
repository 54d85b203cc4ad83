"""Tests run against something broken, each time in a fork of a process that has imported what they need: that saves seconds."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
OPTIONS: Final = (
    *("-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=line", "--timeout=60"),
    *("-m", "not mutant and not ray", "-o", "addopts=--import-mode=importlib"),
)
IMPORTED: Final = (
    "hypothesis",
    "numpy",
    "pyarrow.dataset",
    "pytest",
    "tokenizers",
    "torch.utils.data",
    "transformers.trainer",
)
LOOK_SECONDS: Final = 0.01
PASSED: Final = 0
FAILED: Final = 1
"""What pytest exits with where tests failed; other codes say that none ran, or that it was ended."""


class Outcome(NamedTuple):
    """What pytest exits with, None where it took too long; and what it said."""

    code: int | None
    said: str


class Trials:
    """Runs of tests, one after the other.

    Args:
        imported: modules that the process imports before it forks, besides what is not ours.
    """

    def __init__(self, *imported: str) -> None:
        self._imported = imported
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        tests: Sequence[str],
        seconds: float,
        *,
        source: Path | None = None,
        fault: str = "",
        only: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Outcome:
        """The outcome of some tests, up to the first that fails.

        Args:
            source: a folder in which another `brimful` lies.
            fault: what `tests.mutants.put_in` puts in first.
            only, without: of the tests, which run, and which do not. (All are imported: hypothesis takes values from what is.)
        """
        server = self._server = self._server or self._begun()
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.NamedTemporaryFile("r", prefix="brimful-trial-", encoding="utf-8", errors="replace") as said:
            job = {"tests": [*tests], "said": said.name, "source": str(source or ""), "fault": fault}
            job |= {"only": [*only], "without": [*without]}
            print(json.dumps(job), file=server.stdin, flush=True)
            if select([server.stdout], [], [], seconds)[0]:
                return Outcome(int(server.stdout.readline()), said.read())
            self.close()
            return Outcome(None, said.read())

    def close(self) -> None:
        """Ends the process, and what it runs."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None

    def _begun(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from tests.trials import serve; serve(sys.argv[1:])", *self._imported],
            cwd=ROOT,
            env=os.environ | {"HYPOTHESIS_PROFILE": "mutant", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@contextmanager
def trials(*imported: str) -> Iterator[Trials]:
    """Trials whose process ends with the block."""
    own = Trials(*imported)
    try:
        yield own
    finally:
        own.close()


def serve(imported: Sequence[str]) -> None:
    """For each line on stdin, which is what to run, the exit code of pytest."""
    for name in (*IMPORTED, *imported):
        importlib.import_module(name)
    gc.freeze()  # what is imported is not looked through again in each fork
    parent = os.getppid()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(**json.loads(line))
        ended, status = 0, 0
        while not ended:
            time.sleep(LOOK_SECONDS)
            ended, status = os.waitpid(child, os.WNOHANG)
            if os.getppid() != parent:  # nobody wants to know any longer
                os.killpg(0, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(status), flush=True)


class _Chosen:
    """A plugin of pytest: of the tests that were collected, `only` these run, where some are named, and `without` those."""

    def __init__(self, only: Sequence[str], without: Sequence[str]) -> None:
        self._only, self._without = only, without

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        wanted = [item for item in items if item.nodeid in self._only] if self._only else items
        items[:] = [item for item in wanted if item.nodeid not in self._without]


def _run(tests: list[str], said: str, source: str, fault: str, only: list[str], without: list[str]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(said, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if source:
        # two mutants of a file may be written within one second, and be as long as each other
        os.environ |= {"PYTHONPATH": source, "BRIMFUL_SRC": source, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, source)
    if fault:
        sys.modules["tests.mutants"].put_in(fault)
    code = int(sys.modules["pytest"].main([*OPTIONS, *tests], plugins=[_Chosen(only, without)]))
    sys.stdout.flush()
    os._exit(code)
