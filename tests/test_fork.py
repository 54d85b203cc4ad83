"""Forks while something runs: real ones. What was made before stays the parent's; what is made in the child works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards import write

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

HEAD = """
import logging, os, sys, threading, time, traceback
import brimful as bf

url = sys.argv[1]
PIPELINES = {
    "samples": lambda: bf.from_files(url),
    "batches": lambda: bf.from_files(url).tokenize(letters).batch_by_tokens(400, window=64),
    "prefetched": lambda: bf.from_files(url).tokenize(letters).shuffle(50).batch_by_tokens(400, window=64).prefetch(2),
    "a function's": lambda: bf.from_iterable(Rows()).map(dict),
}

def letters(texts):
    return [[len(text)] * (len(text) % 7) for text in texts]

class Rows:
    def __iter__(self):
        began = os.getpid()
        try:
            for number in range(3_000):
                yield {"id": number, "input_ids": [number]}
        finally:
            os.write(1, b"" if os.getpid() == began else b"closed by a process that did not begin it")

PARENT = os.getpid()
make = PIPELINES[sys.argv[2]]

def ids(items):
    return [item["id"].tolist() if hasattr(item["id"], "tolist") else item["id"] for item in items]

def in_a_child(fn):
    "Whether a forked process did as it should; it ends as any does."
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        fn()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)
"""


def run(code: str, tmp_path: Path, pipeline: str = "samples", rows: int = 3_000) -> None:
    url = write(tmp_path / "a.jsonl.gz", [{"id": number, "text": f"line {number} " * 20} for number in range(rows)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + code, url, pipeline],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


PIPELINES = ["samples", "batches", "prefetched", "a function's"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_an_iterator_refuses_in_a_forked_process_and_the_parents_goes_on(tmp_path: Path, pipeline: str) -> None:
    run(
        """
with make().iter() as it:
    expected = ids(it)
it = make().iter()
found = [next(it) for _ in range(5)]

def refused():
    global it
    try:
        next(it)
    except RuntimeError as error:
        words = f"this iterator belongs to process {PARENT}, and this is process {os.getpid()}, forked from it: "
        assert str(error).startswith(words), error
        assert str(error).endswith("data.iter(state)"), error
    else:
        raise AssertionError("it went on")
    with make().iter(it.state_dict()) as anew:
        assert ids(anew) == expected[5:]
    it.close()
    del it

assert in_a_child(refused)
assert in_a_child(lambda: None)
found = ids(found)
found.append(ids([next(it)])[0])
assert found + ids(it) == expected
""",
        tmp_path,
        pipeline,
    )


def test_a_generator_of_plans_refuses_in_a_forked_process(tmp_path: Path) -> None:
    run(
        """
plans = bf.from_files(url).tokenize(letters).batch_by_tokens(400, window=64).plans()
first = next(plans)

def refused():
    try:
        for _ in plans:
            pass
    except RuntimeError as error:
        assert "belongs to process" in str(error), error
    else:
        raise AssertionError("it went on")

assert in_a_child(refused)
rest = sum(1 for _ in plans)
assert 1 + rest == sum(1 for _ in bf.from_files(url).tokenize(letters).batch_by_tokens(400, window=64).plans())
""",
        tmp_path,
    )


def test_forked_workers_of_a_data_loader_are_told(tmp_path: Path) -> None:
    run(
        """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Held(IterableDataset):
    def __init__(self, it):
        self.it = it
    def __iter__(self):
        return self.it

it = make().iter()
first = ids([next(it) for _ in range(3)])
try:
    list(DataLoader(Held(it), batch_size=None, num_workers=2, multiprocessing_context="fork"))
except RuntimeError as error:
    assert "this iterator belongs to process" in str(error), error
else:
    raise AssertionError("they went on")
assert first + ids(it) == list(range(3_000))

class Anew(IterableDataset):
    def __iter__(self):
        return make().iter()

for batch in make().iter():
    break
found = ids(DataLoader(Anew(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
assert found == list(range(3_000))
""",
        tmp_path,
    )


def test_locks_that_other_threads_hold_at_the_fork_are_free_in_the_child(tmp_path: Path) -> None:
    run(
        """
begun, go_on = threading.Event(), threading.Event()

def even(sample):
    if threading.current_thread() is not threading.main_thread() and os.getpid() == PARENT:
        begun.set()
        go_on.wait(30)
    return sample["n"] % 2 == 0

data = bf.from_sequence([{"n": number} for number in range(20)]).filter(even)
asking = threading.Thread(target=lambda: len(data))
asking.start()
begun.wait(30)

def usable():
    assert len(data) == 10
    assert ids(make())[:3] == [0, 1, 2]

assert all([in_a_child(usable) for _ in range(10)])
go_on.set()
asking.join()
assert len(data) == 10
""",
        tmp_path,
        rows=10,
    )


def test_a_child_that_ends_leaves_the_parents_threads_and_files_alone(tmp_path: Path) -> None:
    run(
        """
its = [make().iter() for _ in range(3)]
found = [ids([next(it) for _ in range(3)]) for it in its]
loader = bf.from_files(url).batch(4).loader()
batches = iter(loader)
next(batches)

def leaving():
    for _ in range(2):
        its.pop()  # the garbage collector has it
    loader.state_dict()
    logging.disable()  # a loop that is left is said
    for batch in loader:
        break

assert all([in_a_child(leaving) for _ in range(3)])
assert [one + ids(it) for one, it in zip(found, its)] == [list(range(3_000))] * 3
assert sum(1 for _ in batches) == 749
""",
        tmp_path,
        "samples",
    )
