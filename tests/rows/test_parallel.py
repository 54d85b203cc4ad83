"""Functions called by threads and by processes: the same results in the same order, and never a hang."""

from __future__ import annotations

import copy
import gc
import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.core import threads
from brimful.core.processes import Remote, dumps
from brimful.testing import assert_exact_resume
from tests.effort import times
from tests.shards import write

KINDS = ("thread", "process")


def numbered(count: int) -> bf.Dataset:
    return bf.from_sequence([{"x": number, "input_ids": [number] * (number % 5)} for number in range(count)])


def plain(items: Any) -> list[Any]:
    return json.loads(json.dumps(list(items), default=lambda value: value.tolist()))


FAMILY: dict[str, Callable[..., bf.Dataset]] = {
    "map": lambda data, **how: data.map(lambda row: row | {"y": row["x"] * 2}, **how),
    "filter": lambda data, **how: data.filter(lambda row: row["x"] % 3, **how),
    "filter in a stream": lambda data, **how: data.filter_map(lambda row: row).filter(lambda row: row["x"] % 3, **how),
    "filter_map": lambda data, **how: data.filter_map(lambda row: row if row["x"] % 3 else None, **how),
    "flat_map": lambda data, **how: data.flat_map(lambda row: [row] * (row["x"] % 3), **how),
    "map_blocks": lambda data, **how: data.map_blocks(lambda block: block.slice(1), **how),
    "seeded": lambda data, **how: data.map(lambda row, rng: {"r": int(rng.integers(1 << 40))}, seed=7, **how),
    "tokenize": lambda data, **how: data.map(lambda row: {"text": "a" * row["x"]}).tokenize(
        lambda texts: [[len(text)] for text in texts], **how
    ),
}


@pytest.mark.parametrize("method", FAMILY)
def test_the_results_are_those_of_one_worker_in_order(method: str) -> None:
    data = numbered(6_000 if method == "map" else 300)
    serial = plain(FAMILY[method](data))
    for kind in KINDS:
        assert plain(FAMILY[method](data, max_workers=2, executor_type=kind)) == serial


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_whatever_the_workers_are(kind: str) -> None:
    data = numbered(400)
    here, there = FAMILY["map"](data), FAMILY["map"](data, max_workers=2, executor_type=kind)
    whole = plain(here)
    with there.iter() as it:
        begun = [next(it) for _ in range(150)]
        state = it.state_dict()
    assert plain(begun) + plain(here.iter(state)) == whole
    with here.iter() as it:
        begun = [next(it) for _ in range(333)]
        state = it.state_dict()
    assert plain(begun) + plain(there.iter(state)) == whole


def test_streams_share_their_processes_and_resume_exactly(tmp_path: Path) -> None:
    shards = [write(tmp_path / f"{name}.jsonl", [{"x": 10 * name + row} for row in range(4)]) for name in range(4)]
    notes = tmp_path / "notes"
    notes.mkdir()

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        (notes / str(os.getpid())).touch()
        return {"input_ids": [row["x"]]}

    def batches(**how: Any) -> bf.Batches:
        return bf.from_files(shards, streams=4, n_active_shards=1).map(noted, **how).batch(2)

    whole = plain(batches())
    assert [path.name for path in notes.iterdir()] == [str(os.getpid())]
    processes = batches(max_workers=2, executor_type="process")
    with processes.iter() as it:
        begun = [next(it) for _ in range(3)]
        state = json.loads(json.dumps(it.state_dict()))
        assert plain(begun) + plain(it) == whole
    assert plain(processes.iter(state)) == whole[3:]
    assert len(list(notes.iterdir())) == 1 + 2 + 2, "here, and in each of two runs, for four streams and for the types"


def pids(items: Any) -> set[int]:
    return {item["pid"] for item in items}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_processes(**how: Any) -> bf.Dataset:
    data = bf.from_sequence([{"x": number} for number in range(4)], **how)
    return data.map(lambda row: {"pid": os.getpid()}, max_workers=1, executor_type="process")


def test_processes_live_as_long_as_an_iterator_that_repeats() -> None:
    with in_processes(repeat=True).iter() as it:
        (pid,) = pids(next(it) for _ in range(20))
        assert alive(pid)
    assert not alive(pid)


def test_processes_live_as_long_as_a_loader() -> None:
    loader = in_processes().loader()
    (pid,) = pids(item for _ in range(3) for item in loader)
    next(iter(loader))  # a loop that is left
    assert pids(loader) == {pid}
    assert pids(copy.copy(loader)).isdisjoint({pid}), "a copy has its own"
    assert alive(pid)
    del loader
    gc.collect()
    assert not alive(pid)


def test_a_loader_goes_on_with_another_process_where_one_died() -> None:

    def die(row: dict[str, Any]) -> dict[str, Any]:
        if not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        loader = numbered(4).map(die, max_workers=1, executor_type="process").loader()
        with pytest.raises(bf.StageError, match="has died"):
            list(loader)
        assert len(list(loader)) == 4


def test_the_law_holds_of_four_streams_in_processes(tmp_path: Path) -> None:
    shards = [write(tmp_path / f"{name}.jsonl", [{"x": 10 * name + row} for row in range(2)]) for name in range(4)]

    def make() -> bf.Dataset:
        data = bf.from_files(shards, streams=4, n_active_shards=1)
        return data.filter(lambda row: row["x"] != 11, max_workers=1, executor_type="process")

    assert_exact_resume(make, epochs=(0,), max_resumes=times(2, 100))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_is_counted_and_logged_here(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] % 100 == 7:
            raise ValueError("not this one")
        return row

    data = numbered(300).map(picky, on_error="skip", max_workers=2, executor_type=kind)
    with caplog.at_level(logging.WARNING, "brimful"), data.iter() as it:
        assert [row["x"] for row in it] == [x for x in range(300) if x % 100 != 7]
        assert it.stats["skipped"] == 3
    said = [message for message in caplog.messages if message.startswith("skipped: map(picky) failed at sequence, row")]
    assert len(said) == 3
    assert all(message.endswith("ValueError: not this one") for message in said)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_names_the_line_and_has_the_traceback(kind: str, tmp_path: Path) -> None:
    def explode(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 250:
            raise KeyError("deep inside")
        return row

    shard = write(tmp_path / "a.jsonl", [{"x": x} for x in range(300)])
    data = bf.from_files(shard).map(explode, max_workers=2, executor_type=kind)
    with pytest.raises(
        bf.StageError, match=r"^map\(explode\) failed at shard .*a\.jsonl, line 251: KeyError: 'deep"
    ) as caught:
        list(data)
    assert 'raise KeyError("deep inside")' in "".join(traceback.format_exception(caught.value))


def test_a_worker_that_is_killed_is_an_error_that_names_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        note.write_text(str(os.getpid()))
        time.sleep(60)
        return row

    def kill() -> None:
        while not (note.exists() and note.read_text()):
            time.sleep(0.01)
        killed.append(int(note.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    with pytest.raises(bf.StageError) as caught:
        list(numbered(10).map(wait, max_workers=1, executor_type="process"))
    killer.join()
    assert time.monotonic() - began < 30, "it waits for what is dead"
    assert str(caught.value) == (
        f"worker process {killed[0]} of map(wait) has died (killed by SIGKILL); if it was out of memory, use fewer "
        "workers (max_workers=, num_workers=), with rows from sequence, row 0 on"
    )


def test_a_worker_that_ends_itself_is_an_error_too() -> None:
    message = r"^worker process \d+ of filter\(\w+\) has died \(exit code 3\), with rows from sequence, row 0 on$"

    def leave(row: dict[str, Any]) -> bool:
        os._exit(3)

    with pytest.raises(bf.StageError, match=message):
        list(numbered(10).filter(leave, max_workers=1, executor_type="process"))


def test_what_cannot_be_sent_is_said_at_once() -> None:
    lock = threading.Lock()
    data = numbered(3).map(lambda row: {"x": lock is None}, max_workers=1, executor_type="process")
    with pytest.raises(
        TypeError, match=r"^map\(<lambda>\) cannot be sent to another process: .*_thread\.lock.*='thread'$"
    ):
        list(data)


def test_processes_end_with_the_iterator(tmp_path: Path) -> None:
    def say(row: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(os.getpid())).touch()
        return row

    with numbered(5_000).map(say, max_workers=2, executor_type="process").iter() as it:
        next(it)
        began = [int(path.name) for path in tmp_path.iterdir()]
        assert began
    assert gone(began)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("brimful-map")]


def test_processes_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "import brimful as bf\n"
        "def stay(row):\n"
        "    open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
        "    time.sleep(120)\n"
        "    return row\n"
        "list(bf.from_sequence([{'x': 1}]).map(stay, max_workers=1, executor_type='process'))\n"
    )
    notes = tmp_path / "notes"
    notes.mkdir()
    script_runs = subprocess.Popen([sys.executable, str(script), str(notes)])
    while not (began := [int(path.name) for path in notes.iterdir()]):
        assert script_runs.poll() is None
        time.sleep(0.05)
    script_runs.kill()
    script_runs.wait()
    assert gone(began)


def gone(processes: list[int]) -> bool:
    """Whether they have ended, or do within 10 seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(Path(f"/proc/{number}").exists() and not _is_zombie(number) for number in processes):
            return True
        time.sleep(0.05)
    return False


def _is_zombie(number: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return True


def test_a_script_needs_no_guard_and_its_classes_travel(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import brimful as bf\n"
        "print('once')\n"
        "class Twice:\n"
        "    def __call__(self, row):\n"
        "        return {'x': 2 * row['x']}\n"
        "data = bf.from_sequence([{'x': 1}, {'x': 2}]).map(Twice(), max_workers=2, executor_type='process')\n"
        "print([row['x'] for row in data])\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "once\n[2, 4]\n"
    assert run.stderr == ""


def test_workers_work_at_once() -> None:
    """Four rows, four workers: each waits until all of them are there."""
    meeting = threading.Barrier(4, timeout=60)

    def meet(row: dict[str, Any]) -> dict[str, Any]:
        meeting.wait()
        return row

    assert len(list(numbered(4).map(meet, max_workers=4))) == 4


def test_no_more_is_read_than_the_look_ahead_allows() -> None:
    """State by state: of 100 blocks, how many have been called when the first one is taken."""
    called: list[int] = []

    def note(block: pa.RecordBatch) -> pa.RecordBatch:
        called.append(block.num_rows)
        return block

    data = bf.from_iterable([{"x": x} for x in range(256 * 100)])
    with data.map_blocks(note, max_workers=2, prefetch_factor=2).iter() as it:
        next(it)
        time.sleep(0.3)
        assert sum(called) <= 1_000 + (2 + 2 * 2 + 1) * 4_096


def test_types_come_from_the_first_results_whatever_the_workers() -> None:
    """An integer column that has floats from row 1,500 on is an error with workers and without."""

    def turned(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] if row["x"] < 1_500 else 0.5}

    messages = set()
    for how in ({}, {"max_workers": 2}, {"max_workers": 2, "executor_type": "process"}):
        with pytest.raises(bf.StageError) as caught:
            list(numbered(2_000).map(turned, **how))
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert re.search(r"row 1,500: ", messages.pop())


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"max_workers": -1}, ValueError, "max_workers must be at least 0"),
        ({"max_workers": 10**6}, ValueError, "max_workers must be at most 1,024"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1 block"),
        (
            {"executor_type": "process"},
            ValueError,
            "executor_type='process' needs max_workers, of which there are none",
        ),
        ({"executor_type": "fork"}, ValueError, "executor_type must be one of thread, process"),
        ({"workers": 2}, TypeError, r"Dataset.map\(\) got an unexpected keyword argument 'workers'"),
    ],
)
def test_odd_settings_are_refused(how: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        numbered(1).map(dict, **how)


def test_a_slice_crosses_without_what_it_is_a_slice_of() -> None:
    block = pa.RecordBatch.from_pydict({"x": np.arange(10**6)}).slice(500_000, 10)
    assert len(dumps(block)) < 2_000
    remote = Remote(lambda one: one, "test")
    with threads.Workers(1, "test", remote) as workers:
        assert workers.submit(remote, block).result(60).equals(block)


def test_output_of_a_function_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def speak(row: dict[str, Any]) -> dict[str, Any]:
        print("row", row["x"], flush=True)
        return row

    list(numbered(2).map(speak, max_workers=1, executor_type="process"))
    assert capfd.readouterr().out == "row 0\nrow 1\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", ["batch", "pack"])
def test_a_collate_fn_makes_the_same_batches_in_order(kind: str, make: str) -> None:
    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {"x": torch.tensor([row["x"] for row in rows]), "tokens": [row["input_ids"].tolist() for row in rows]}

    def batches(**how: Any) -> bf.Batches:
        return getattr(numbered(100).filter(lambda row: row["x"] % 5), make)(7, collate_fn=collate, **how)

    serial = plain(batches())
    assert plain(batches(max_workers=2, executor_type=kind)) == serial
    with batches(max_workers=2, executor_type=kind).iter() as it:
        begun = [next(it) for _ in range(3)]
        state = it.state_dict()
        assert it.stats["batches"] == 3
    assert plain(begun) + plain(batches().iter(state)) == serial


@pytest.mark.parametrize("kind", KINDS)
def test_a_collate_fn_that_fails_names_the_first_line(kind: str, tmp_path: Path) -> None:
    def collate(rows: list[dict[str, Any]]) -> Any:
        raise ValueError("no two alike")

    shard = write(tmp_path / "a.jsonl", [{"input_ids": [x]} for x in range(9)])
    message = r"^collate_fn=collate failed on 4 samples, the first of them shard .*a\.jsonl, line 1: ValueError: no two alike$"
    with pytest.raises(bf.StageError, match=message):
        next(iter(bf.from_files(shard).batch(4, collate_fn=collate, max_workers=2, executor_type=kind)))


def test_workers_without_a_collate_fn_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_workers and executor_type need a collate_fn. To make batches ahead"):
        numbered(1).batch(1, max_workers=2)


def test_an_iterator_that_is_left_where_the_interpreter_ends_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import brimful as bf\n"
        "rows = bf.from_sequence([{'input_ids': [1, 2]}] * 1_000)\n"
        "it = rows.batch(4, collate_fn=len, max_workers=2, executor_type='process').iter()\n"
        "print(next(it))\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("4\n", "")


def test_what_a_function_starts_or_reads_has_an_input_of_its_own() -> None:
    """Not that by which a worker knows that its parent is gone."""

    def start(row: dict[str, Any]) -> dict[str, Any]:
        forked = multiprocessing.get_context("fork").Process(target=int)
        forked.start()
        forked.join()
        read = subprocess.run(["cat"], capture_output=True, check=True).stdout
        return {"x": [forked.exitcode, len(read), len(sys.stdin.read())]}

    assert plain(numbered(1).map(start, max_workers=1, executor_type="process")) == [{"x": [0, 0, 0]}]


def test_workers_begin_whatever_the_arguments_and_paths_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *(f"{number:0100}" for number in range(3_000))])
    monkeypatch.setattr(sys, "path", [Path("nowhere"), *sys.path])
    lengths = numbered(1).map(lambda row: {"x": len(sys.argv)}, max_workers=1, executor_type="process")
    assert plain(lengths) == [{"x": 3_001}]


def test_a_result_that_cannot_be_sent_is_said_with_its_place() -> None:
    message = (
        r"^map\(<lambda>\) failed on rows from sequence, row 0 on: a result cannot be sent to another process: TypeError: "
        r"cannot pickle 'generator' object$"
    )
    with pytest.raises(bf.StageError, match=message):
        list(numbered(3).map(lambda row: (x for x in ()), max_workers=1, executor_type="process"))


class OwnError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_of_an_error_is_what_the_function_raised(kind: str) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise OwnError("ours")

    with pytest.raises(bf.StageError) as caught:
        list(numbered(1).map(fail, max_workers=1, executor_type=kind))
    assert type(caught.value.__cause__).__name__ == "OwnError"
    assert str(caught.value.__cause__) == "ours"


def test_a_value_that_python_does_not_know_is_an_error_with_its_row() -> None:
    times = pa.table({"i": [1, 2], "d": pa.array([0, 10**15], pa.timestamp("ms"))})
    with pytest.raises(
        bf.DataError, match=r"^column 'd' holds what Python cannot \(sequence, row 1\): .*; leave it out \(drop\)"
    ):
        list(bf.from_sequence(times))


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_closes_waits_for_a_row_at_most(kind: str) -> None:
    """Not for the rest of its block, whose rows nobody wants any more: that may take hours."""

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.02)
        return row

    it = numbered(4_000).map(slow, max_workers=2, executor_type=kind).iter()
    for _ in range(60):  # by then the blocks have hundreds of rows
        next(it)
    threads = [thread for thread in threading.enumerate() if thread.name == "brimful-map"]
    it.close()
    for thread in threads:
        thread.join(1.0)
    assert not any(thread.is_alive() for thread in threads)
    assert threads


def test_an_interrupted_next_stops_its_workers_before_it_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbered(400).map(dict, max_workers=2, executor_type="process")
    it = data.iter()
    next(it)
    stopped: list[str] = []
    stop, items = it._run.stop, it._items
    assert items is not None

    class Items:
        def __next__(self) -> Any:
            raise KeyboardInterrupt

        def close(self) -> None:
            stopped.append("closed")
            items.close()

    monkeypatch.setattr(it._run, "stop", lambda: (stopped.append("stopped"), stop())[1])
    it._items = Items()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(it)
    assert stopped[:2] == ["stopped", "closed"]
    assert len(list(data.iter(it.state_dict()))) == 399
