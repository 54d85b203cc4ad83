"""torchdata's StatefulDataLoader around a loader saves and restores its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful.loader import Loader
from tests.forks import ROOT
from tests.integrations.unequal import batches, one, write_shards

stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # which torchdata calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path)


def steps(folder: Path) -> Loader:
    return batches("streamed", folder).loader(steps_per_epoch=5)


def streamed(folder: Path) -> Loader:
    return batches("streamed", folder).loader()


def indexed(folder: Path) -> Loader:
    return batches("indexed", folder).prefetch(2).loader()


KINDS = [streamed, indexed, steps]


def epochs(loader: Any, count: int) -> list[list[list[int]]]:
    return [[one(batch) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("make", KINDS)
def test_a_run_goes_on_from_any_step(folder: Path, make: Callable[[Path], Loader]) -> None:
    loader = stateful.StatefulDataLoader(make(folder), batch_size=None)
    states, seen = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            seen.append(one(batch))
            states.append(loader.state_dict())
        states[-1] = loader.state_dict()
    seen += epochs(loader, 1)[0]
    for taken, state in enumerate(states):
        resumed = stateful.StatefulDataLoader(make(folder), batch_size=None)
        resumed.load_state_dict(state)
        rest: list[list[int]] = []
        while len(rest) < len(seen) - taken:
            rest += [one(batch) for batch in resumed]
        assert rest == seen[taken:], taken


@pytest.mark.parametrize("make", KINDS)
def test_a_state_before_the_end_was_asked_for_is_that_of_the_next_epoch(folder: Path, make: Any) -> None:
    first, second = epochs(make(folder), 2)
    loader = stateful.StatefulDataLoader(make(folder), batch_size=None)
    assert [one(batch) for _, batch in zip(range(len(first)), loader)] == first
    resumed = stateful.StatefulDataLoader(make(folder), batch_size=None)
    resumed.load_state_dict(loader.state_dict())
    assert [one(batch) for batch in resumed] == second


def test_workers_are_refused_with_the_remedy(folder: Path) -> None:
    loader = stateful.StatefulDataLoader(
        indexed(folder), batch_size=None, num_workers=1, multiprocessing_context="forkserver"
    )
    with pytest.raises(RuntimeError, match=r"Use DataLoader\(loader, batch_size=None, num_workers=0\)"):
        next(iter(loader))


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from torchdata.stateful_dataloader import StatefulDataLoader
from tests.integrations import test_torchdata as here
folder = Path(sys.argv[1])
loader = StatefulDataLoader(here.streamed(folder), batch_size=None)
for number, batch in enumerate(loader, 1):
    torch.save(loader.state_dict(), folder / "new.pt")
    os.replace(folder / "new.pt", folder / "state.pt")
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_goes_on(folder: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=100).returncode == -signal.SIGKILL
    loader = stateful.StatefulDataLoader(streamed(folder), batch_size=None)
    loader.load_state_dict(torch.load(folder / "state.pt"))
    assert [one(batch) for batch in loader] == epochs(streamed(folder), 1)[0][5:]


def test_it_may_be_read_ahead_onto_a_device(folder: Path) -> None:
    (whole,) = epochs(streamed(folder), 1)
    made = [bf.AsyncLoader(stateful.StatefulDataLoader(streamed(folder), batch_size=None), "cpu") for _ in range(2)]
    assert [one(batch) for _, batch in zip(range(4), made[0])] == whole[:4]
    given_back = []
    for _, batch in zip(range(3), made[0]):
        given_back.append(one(batch))
        state = made[0].state_dict()
    assert given_back == whole[4:7]
    made[1].load_state_dict(state)
    assert [one(batch) for batch in made[1]] == whole[7:]
