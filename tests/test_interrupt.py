"""Ctrl-C at any place inside `next`: wherever it comes, the state is that of what was taken, and nothing stays behind."""

from __future__ import annotations

import gc
import linecache
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from types import FrameType, GeneratorType
from typing import Any

import pytest

import brimful as bf
from brimful.core.iterator import ResumableIterator
from brimful.plan.errors import logger
from brimful.testing import first_difference
from tests import strategies as draw
from tests.core.test_iterator import ROWS, nothing_is_left, shards
from tests.effort import SOAK, times
from tests.shards import threads_left

URLS = shards(".jsonl.gz")
PIPELINES: dict[str, Callable[[], bf.Dataset | bf.Batches]] = {
    "a consumer that works": lambda: bf.from_iterable(ROWS).map(dict).shuffle(4).batch(2),
    "a consumer that waits for functions": lambda: bf.from_files(URLS, n_active_shards=2).tokenize(draw.letters),
    "a consumer that waits for a generator": lambda: (
        bf.from_files(URLS, n_active_shards=2)
        .tokenize(draw.letters, max_workers=2)
        .shuffle(6)
        .batch_by_tokens(16, window=8)
        .prefetch(2)
    ),
    "a consumer of streams": lambda: bf.from_files(URLS, streams=2).tokenize(draw.letters).batch(2, window=4),
}
unclosed = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""A file that is just being opened when Ctrl-C comes is closed by the garbage collector."""
PLACES, MOMENTS = 20, times(12, 1_000)
LIMIT_SECONDS = 7_000 if SOAK else 250
NEXT = ResumableIterator.__next__.__code__
START = threading.Thread.start.__code__


@pytest.fixture(autouse=True)
def python_loses_none(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ctrl-C that comes inside of a `__del__`, or of a weak reference's callback, is lost to Python itself; after one inside of
    `logging` a handler may stay locked, and every other thread that logs waits for ever."""
    monkeypatch.setattr(logger, "handle", lambda record: None)
    assert logger.isEnabledFor(logging.WARNING)  # which takes a lock when it is asked first
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ctrl-C inside of a weak reference's callback, or of a generator that nobody holds, is lost to Python itself. The next one
    would come inside of pytest's own hook, and fail the test."""
    errors: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_value))
    yield
    assert all(isinstance(error, KeyboardInterrupt) for error in errors), errors


class Interrupt:
    """A Ctrl-C at one place inside `next` of this thread, counted from the first on.

    By lines, or by calls and returns (where it really comes: what was called has been done, and its result is lost).
    """

    def __init__(self, place: int, by_lines: bool) -> None:
        self.left, self.by_lines, self.where = place, by_lines, ""
        self.handing_out: list[int] = []  # places, counted down, where an item is handed out
        self.starting: list[int] = []  # where a thread is started, which no consumer does
        self.raised: KeyboardInterrupt | None = None

    def next(self, it: Iterator[Any]) -> Any:
        if self.by_lines:
            sys.settrace(self._line)
        else:
            sys.setprofile(self._call)
        try:
            return next(it)
        finally:
            self._end()

    @staticmethod
    def _end() -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        # a `with` is come to again before what it holds is given back, where no signal comes
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with "):
            self._count(frame, event)
        return self._line

    def _call(self, frame: FrameType, event: str, arg: Any) -> None:
        has_item = frame.f_code is NEXT and event == "return"  # the caller
        if event != "c_call" and not has_item:  # before a call, such as that which gives a lock back, none comes
            self._count(frame, event)

    def _count(self, frame: FrameType, event: str) -> None:
        code = frame.f_code
        # where an exception has nobody to go to: a weak reference's function, a generator that is dropped before its end
        if code.co_filename == __file__ or "weakref" in code.co_filename or code.co_name == "<genexpr>":
            return
        self.left -= 1
        if code is NEXT and linecache.getline(code.co_filename, frame.f_lineno).strip() == "return item":
            self.handing_out.append(self.left)
        if code is START:
            self.starting.append(self.left)
        if self.left == 0:
            self._end()
            self.where = f"{event} in {code.co_filename}:{frame.f_lineno} ({code.co_name})"
            self.raised = KeyboardInterrupt()
            raise self.raised


def check(it: ResumableIterator[Any], found: list[Any], make: Callable[[], Any], expected: list[Any], at: str) -> None:
    """After a Ctrl-C a fresh run goes on from the state, and this one by itself."""
    assert (difference := first_difference(found + list(make().iter(it.state_dict())), expected)) is None, (
        f"{difference} (interrupted at {at})"
    )
    found.extend(it)
    assert (difference := first_difference(found, expected)) is None, f"{difference} (interrupted at {at})"
    it.close()
    assert threads_left() == [], f"interrupted at {at}"


def some_places(make: Callable[[], Any], by_lines: bool) -> list[int]:
    """Of all that a run has, as many up to its first item, while it is put together, as after it."""
    counting = Interrupt(sys.maxsize, by_lines)
    with make().iter() as it, suppress(StopIteration):
        counting.next(it)
        first = sys.maxsize - counting.left
        while True:
            counting.next(it)
    count = sys.maxsize - counting.left
    if SOAK:
        return list(range(1, count + 1))
    places = Random(1)
    items = [sys.maxsize - left for left in counting.handing_out[:2] + counting.starting[:12]]
    return [
        *items,
        *places.choices(range(1, first + 1), k=PLACES),
        *places.choices(range(first + 1, count + 1), k=PLACES),
    ]


@unclosed
@pytest.mark.parametrize("by_lines", [True, False], ids=["lines", "calls"])
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_ctrl_c_at_any_place_loses_no_item_no_state_and_no_thread(
    make: Any, by_lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[BaseException | None] = []  # in a generator that Python closes, as nobody holds it any more
    told = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.object, GeneratorType):
            lost.append(unraisable.exc_value)
        else:
            told(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    expected = list(make().iter())
    came = 0
    for place in some_places(make, by_lines):
        it, found = make().iter(), []
        interrupt = Interrupt(place, by_lines)
        try:
            while True:
                found.append(interrupt.next(it))
        except StopIteration:
            # there were fewer places this time, or Python has lost it
            assert interrupt.raised in [None, *lost], f"{interrupt.where}: no Ctrl-C, but an end"
        except KeyboardInterrupt:
            came += 1
        check(it, found, make, expected, interrupt.where)
    assert came > PLACES
    assert all(isinstance(error, KeyboardInterrupt) for error in lost), lost
    nothing_is_left()


class Alarm:
    """Signals after any number of microseconds, in place of those of pytest's time limit, which it keeps.

    Args:
        came: called with the frame in which a signal comes; may raise.
    """

    def __init__(self, came: Callable[[FrameType | None], None]) -> None:
        self._came, self._until = came, time.monotonic() + LIMIT_SECONDS

    def __enter__(self) -> Alarm:
        self._limit = signal.setitimer(signal.ITIMER_REAL, 0)[0]
        self._before = signal.signal(signal.SIGALRM, self._alarmed)
        self.off()
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        signal.setitimer(signal.ITIMER_REAL, self._limit)

    def after(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def off(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self._until - time.monotonic(), 1e-3))

    def _alarmed(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._until:
            pytest.fail(f"it hangs, or takes more than {LIMIT_SECONDS} s")
        self.off()
        self._came(frame)


@unclosed
@pytest.mark.usefixtures("lost")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals at any microsecond")
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_signals_at_random_moments_lose_no_item_no_state_and_no_thread(make: Any) -> None:
    def interrupt(frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    expected = list(make().iter())
    moments, came = Random(2), 0
    with Alarm(interrupt) as alarm:
        while came < MOMENTS:
            it, found = make().iter(), []
            item: Any = None
            try:
                alarm.after(moments.uniform(1e-5, 2e-2))
                for item in it:
                    found += (item,)  # nothing comes between these two
                alarm.off()
            except KeyboardInterrupt:
                came += 1
                if item is not None and (not found or found[-1] is not item):
                    found.append(item)
            check(it, found, make, expected, "some moment")
    nothing_is_left()


def slowly(row: Any) -> Any:
    time.sleep(0.02)
    return row


SLOW: dict[str, Callable[[], bf.Dataset | bf.Batches]] = {
    "threads": lambda: bf.from_sequence(ROWS).map(slowly, max_workers=2),
    "threads below a window": lambda: bf.from_files(URLS).map(slowly, max_workers=2).shuffle(6).batch(2).prefetch(2),
    "nobody else": lambda: bf.from_sequence(ROWS).map(slowly).shuffle(6),
}


@unclosed
@pytest.mark.usefixtures("lost")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals at any microsecond")
@pytest.mark.parametrize("make", [*PIPELINES.values(), *SLOW.values()], ids=[*PIPELINES, *SLOW])
def test_a_second_ctrl_c_while_the_first_still_closes_leaves_nothing_half_done(make: Any) -> None:
    expected = list(make().iter())
    moments, came, gap = Random(3), 0, 0.0

    def interrupt_twice(frame: FrameType | None) -> None:
        nonlocal gap, came
        while frame is not None and frame.f_code is not NEXT:
            frame = frame.f_back
        if frame is None:  # between two items
            alarm.after(1e-4)
            return
        came += 1
        again, gap = gap, 0.0
        if again:
            alarm.after(again)
        raise KeyboardInterrupt

    with Alarm(interrupt_twice) as alarm:
        while came < 2 * MOMENTS:
            it, found = make().iter(), []
            gap = moments.choice([2e-4, 2e-3, 2e-2]) * moments.random()
            alarm.after(moments.uniform(1e-5, 0.2 if make in SLOW.values() else 2e-2))
            for _ in range(3):
                with suppress(KeyboardInterrupt):
                    found.extend(it)
            alarm.off()
            assert (difference := first_difference(found, expected)) is None, difference
            it.close()
            assert threads_left() == []
    nothing_is_left()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_two_ctrl_c_of_a_terminal_end_in_keyboard_interrupts_and_the_items_after_them(kind: str) -> None:
    """The second falls into the waiting for a function that takes longer than it took to come."""
    found = subprocess.run([sys.executable, "-c", TWICE, kind], capture_output=True, text=True, timeout=120, check=True)
    first, *others = found.stdout.split()
    assert first == "KeyboardInterrupt"
    assert [int(word) for word in others if word != first] == list(range(12))


TWICE = """
import os, signal, sys, threading, time
import brimful as bf

def slow(row):
    time.sleep(0.8)
    return row

def twice():
    time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)

it = bf.from_sequence([{"x": number} for number in range(12)]).map(slow, max_workers=12, executor_type=sys.argv[1]).iter()
threading.Thread(target=twice).start()
while not it.over:
    try:
        for row in it:
            print(row["x"])
    except KeyboardInterrupt as error:
        print(type(error).__name__)
"""


def test_an_error_of_waiting_that_a_ctrl_c_makes_is_the_ctrl_c() -> None:
    """As threading's "cannot release un-acquired lock", where it comes inside of Condition.wait."""

    class Waiting:
        left = 1

        def __call__(self, sample: Any) -> Any:
            if sample["id"] == 5 and self.left:
                self.left = 0
                condition = threading.Condition(threading.Lock())
                with condition:
                    try:
                        raise KeyboardInterrupt
                    finally:
                        condition.release()
            return sample

    it = bf.from_iterable(ROWS).map(Waiting()).batch(1).iter()
    found: list[Any] = []
    for _ in range(2):
        try:
            found.extend(batch["id"].item() for batch in it)
        except KeyboardInterrupt as interrupt:
            assert "release unlocked lock" in str(interrupt.__cause__)  # noqa: PT017
    assert found == list(range(len(ROWS)))


def test_an_error_that_comes_while_an_earlier_ctrl_c_is_handled_is_an_error() -> None:
    def failing(sample: Any) -> Any:
        raise ValueError("none")

    it = bf.from_iterable(ROWS).map(failing).iter()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(bf.StageError, match="ValueError: none"):
            next(it)
    with pytest.raises(bf.BrokenError):
        next(it)


def test_a_ctrl_c_between_two_steps_of_closing_ends_nothing() -> None:
    """Here its items are closed already, and the iterator still has them: they would seem to be at their end."""
    it = bf.from_sequence(ROWS).batch(2).iter()
    found = [next(it)]
    close = it._run.close

    def interrupted() -> None:
        it._run.close = close  # type: ignore[method-assign]
        raise KeyboardInterrupt

    it._run.close = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        it._stop()
    found += it
    assert first_difference(found, [*bf.from_sequence(ROWS).batch(2)]) is None
