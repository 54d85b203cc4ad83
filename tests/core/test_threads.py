from __future__ import annotations

import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from itertools import cycle, islice
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from torch.distributed import HashStore

import brimful as bf
from brimful.batching.rendezvous import Rendezvous
from brimful.core import run as module
from brimful.core.run import Run, Stopped
from brimful.core.threads import Channel, Inbox, WorkerFuture, Workers, awaited, map_ahead, read_ahead
from brimful.sources.rotation import arrived
from tests.shards import threads_left, write


def counting(count: int, log: list[str] | None = None) -> Generator[int, None, None]:
    """0, 1, 2 ...; logs the threads that run and close it."""
    log = [] if log is None else log
    log.append(threading.current_thread().name)
    try:
        yield from range(count)
    finally:
        log.append(threading.current_thread().name)


def failing(count: int) -> Generator[int, None, None]:
    yield from range(count)
    raise ValueError("after the last")


def test_read_ahead_gives_all_items_in_order_and_the_thread_closes_what_it_ran() -> None:
    log: list[str] = []
    assert list(read_ahead(lambda: counting(100, log), 3, "test", Run())) == list(range(100))
    assert log == ["brimful-test", "brimful-test"]
    assert "brimful-test" not in threads_left(0)


def test_read_ahead_holds_no_more_than_its_depth_and_one_in_the_making() -> None:
    made, first_taken = [], threading.Event()

    def making() -> Generator[int, None, None]:
        for number in range(100):
            made.append(number)
            yield number

    items = read_ahead(making, 3, "test", Run())
    next(items)
    for _ in range(50):
        first_taken.wait(0.01)
        assert len(made) <= 1 + 3 + 1
    assert len(made) == 5
    items.close()
    assert len(made) == 5
    assert threads_left(0) == []


def test_an_error_in_the_thread_comes_after_the_items_before_it() -> None:
    items = read_ahead(lambda: failing(3), 10, "test", Run())
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^after the last$"):
        next(items)
    assert threads_left(0) == []


def test_closing_stops_a_generator_that_has_no_end() -> None:
    log: list[str] = []
    items = read_ahead(lambda: counting(10**12, log), 2, "test", Run())
    assert next(items) == 0
    items.close()
    assert log == ["brimful-test", "brimful-test"]
    assert threads_left(0) == []


def test_what_is_stuck_does_not_keep_closing_from_returning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.1)
    released = threading.Event()

    def stuck() -> Generator[int, None, None]:
        yield 0
        released.wait(60)

    items = read_ahead(stuck, 1, "test", Run())
    assert next(items) == 0
    items.close()
    with Workers(2, "test") as workers:
        futures = [workers.submit(released.wait, 60) for _ in range(4)]
        while not futures[1].running():
            time.sleep(0.01)
    assert [future.cancelled() for future in futures] == [False, False, True, True]
    assert len(threads_left(0)) == 3
    released.set()
    assert threads_left() == []


def test_an_iterator_that_is_forgotten_is_closed() -> None:
    dataset = bf.from_sequence(["a"] * 100, repeat=True).filter(lambda sample: True).batch(2).prefetch(2)
    it = dataset.iter()
    next(it)
    del it
    gc.collect()
    assert threads_left() == []


def pairs(items: Iterator[int]) -> Iterator[tuple[int, str]]:
    return ((item, f"after {item}") for item in items)


@pytest.mark.parametrize("max_workers", [1, 3])
def test_map_ahead_keeps_the_order_and_each_item_its_state(max_workers: int) -> None:
    release = threading.Event()

    def square(item: int) -> int:
        if max_workers > 1 and item == 0:
            assert release.wait(30)  # until a later item is done
        release.set()
        return item * item

    with Workers(max_workers, "test") as workers:
        results = list(map_ahead(square, pairs(iter(range(50))), workers, max_workers + 2, Run()))
    assert results == [(item * item, f"after {item}") for item in range(50)]
    assert threads_left(0) == []


def test_map_ahead_computes_no_more_than_its_workers_and_what_is_asked_for_early() -> None:
    drawn: list[int] = []

    def drawing() -> Iterator[int]:
        for item in range(100):
            drawn.append(item)
            yield item

    with Workers(2, "test") as workers:
        results = map_ahead(lambda item: item, pairs(drawing()), workers, 5, Run())
        next(results)
        assert len(drawn) == 5
        results.close()
    assert threads_left(0) == []


def test_an_error_of_what_is_mapped_comes_after_the_results_before_it() -> None:
    with Workers(2, "test") as workers:
        results = map_ahead(lambda item: item, pairs(failing(3)), workers, 7, Run())
        assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match=r"^after the last$"):
            next(results)


def test_an_error_of_the_function_comes_in_its_place() -> None:
    with Workers(2, "test") as workers:
        results = map_ahead(lambda item: 6 // (3 - item), pairs(iter(range(9))), workers, 7, Run())
        assert [next(results)[0] for _ in range(3)] == [2, 3, 6]
        with pytest.raises(ZeroDivisionError):
            next(results)
    assert threads_left(0) == []


def test_a_pool_has_as_many_threads_as_functions_at_once_and_starts_none_while_one_is_idle() -> None:
    with Workers(4, "test") as workers:
        for number in range(20):
            assert workers.submit(lambda number=number: number).result() == number
            time.sleep(0.005)  # the thread sees what it has done
        assert len(workers.threads) == 1
        meeting = threading.Barrier(4)
        found = [workers.submit(meeting.wait, 30) for _ in range(4)]
        assert sorted(one.result(30) for one in found) == [0, 1, 2, 3], "one waits for another that has no thread"
        assert len(workers.threads) == 4
        assert [one.result() for one in [workers.submit(int) for _ in range(50)]] == [0] * 50
        assert len(workers.threads) == 4


def test_threads_see_the_context_of_who_started_them() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("ours")
    assert list(read_ahead(lambda: (variable.get() for _ in range(1)), 1, "test", Run())) == ["ours"]
    with Workers(1, "test") as workers:
        assert workers.submit(variable.get).result(30) == "ours"


def test_errors_in_threads_reach_the_consumer_with_stage_file_and_line(tmp_path: Path) -> None:
    url = write(tmp_path / "a.jsonl", [{"text": "x" * number} for number in range(50)])

    def tokenizer(texts: list[str]) -> list[list[int]]:
        if any(len(text) == 17 for text in texts):
            raise KeyError("boom")
        return [[1] * len(text) for text in texts]

    batches = bf.from_files(url).tokenize(tokenizer).batch_by_tokens(100).prefetch(2)
    with pytest.raises(bf.StageError, match=r"^tokenize failed at shard a\.jsonl, line 18: KeyError: 'boom'$") as error:
        list(batches)
    assert isinstance(error.value.__cause__, KeyError)
    assert threads_left() == []


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("way", ["pass", "raise SystemExit(0)", "it.close()"])
def test_an_interpreter_that_ends_while_a_stream_is_open_exits_cleanly(tmp_path: Path, way: str) -> None:
    url = write(tmp_path / "a.jsonl.gz", [{"text": f"line {number} " * 20} for number in range(5_000)])
    run(f"""
import brimful as bf
it = bf.from_files({url!r}, repeat=True).tokenize(lambda texts: [[1] for _ in texts]).shuffle(50).iter()
next(it)
{way}
""")


def test_what_somebody_else_has_stopped_is_no_end() -> None:
    """A window made of what had come so far, or a stream that others believe to be over, would be a loss in silence."""

    def numbers() -> Generator[int, None, None]:
        yield from range(9)

    channel = Channel(numbers, 1, "test", Run())
    items = channel.items()
    assert next(items) == 0
    channel.close()
    with pytest.raises(Stopped):
        next(items)


def test_an_interpreter_that_ends_while_threads_are_in_native_code_waits_for_them() -> None:
    for _ in range(4):  # of which each aborts every other time where it does not wait
        run("""
import io, time
import pyarrow as pa, pyarrow.json
from brimful.core.threads import Workers

def task(until=time.monotonic() + 0.5, now=time.monotonic):
    while now() < until:
        pa.json.read_json(io.BytesIO(b'{"a": 1}\\n' * 20_000))

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

workers = Workers(12, "test")
futures = [workers.submit(task) for _ in range(12)]
while not futures[-1].running():
    pass
slow = Slow()  # the last to go
""")


@pytest.mark.parametrize("kind", ["read", "generator", "functions"])
def test_what_a_thread_begins_after_it_was_stopped_is_not_waited_for(kind: str) -> None:
    """As a Ctrl-C comes while it is busy, and a read of a store that sends nothing begins only then."""
    begun, go_on, never = threading.Event(), threading.Event(), Future[int]()

    def wait(item: int = 0) -> int:
        return awaited(never) + item

    def inner() -> Generator[int, None, None]:
        yield wait()

    def items() -> Generator[Any, None, None]:
        begun.set()
        go_on.wait(60)
        if kind == "generator":
            yield from read_ahead(inner, 1, "inner", Run())
        with Workers(1, "inner") as workers:
            if kind == "read":
                yield arrived(workers.submit(wait), "shard", 600, "row 1")
            yield from map_ahead(wait, iter([(1, None)]), workers, 1, Run())

    channel = Channel(items, 1, "outer", Run())
    begun.wait(60)
    channel.stop()
    go_on.set()
    channel.threads[0].join(20)
    assert threads_left() == []


def ended(what: Callable[[], object]) -> bool:
    """Whether it ends, in a thread of its own."""
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_waiting_for_less_time_than_a_step_takes_ends() -> None:
    def results() -> None:
        future: WorkerFuture[None] = WorkerFuture()
        for _ in range(2_000):
            with pytest.raises(TimeoutError):
                future.result(2e-7)

    def looks() -> None:
        for _ in range(2_000):
            Rendezvous(HashStore(), 1, 2, "name", {}, {}, 1.0, Run())._pause(2e-7)

    def items() -> None:
        for _ in range(2_000):
            with pytest.raises(Empty):
                Inbox[None]().get(2e-7)

    assert ended(results)
    assert ended(looks)
    assert ended(items)


def test_waiting_ends_in_time_although_a_signal_is_handled_longer() -> None:
    def handled(*_: object) -> None:
        time.sleep(0.5)

    before = signal.signal(signal.SIGUSR1, handled)
    wanted = Inbox[str]()
    signals = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1])
    puts = threading.Timer(20.0, wanted.put, ["late"])
    try:
        puts.start()
        signals.start()
        with pytest.raises(Empty):
            wanted.get(0.2)
    finally:
        puts.cancel()
        signal.signal(signal.SIGUSR1, before)


def test_an_inbox_gives_what_several_threads_put_into_it_once() -> None:
    inbox = Inbox[int]()
    threads = [
        threading.Thread(target=lambda part=part: [*map(inbox.put, part)])
        for part in (range(0, 5_000), range(5_000, 9_999))
    ]
    for thread in threads:
        thread.start()
    found = [inbox.get(timeout) for timeout in islice(cycle([None, 30.0, threading.TIMEOUT_MAX]), 9_999)]
    assert sorted(found) == [*range(9_999)]
    assert [number for number in found if number < 5_000] == [*range(5_000)], "each thread's in order"
    with pytest.raises(Empty):
        inbox.get(0.0)


def test_a_result_that_a_thread_waits_for_too_long_is_a_timeout() -> None:
    with Workers(1, "outer") as workers:
        with pytest.raises(TimeoutError, match=r"^nothing came from shard a within 0\.15 seconds"):
            workers.submit(arrived, Future[int](), "a", 0.15, "row 1").result(60)
        done: Future[int] = Future()
        done.set_exception(TimeoutError("of the store"))
        with pytest.raises(TimeoutError, match="of the store"):
            workers.submit(arrived, done, "a", 600, "row 1").result(60)
