"""Threads that read ahead: bounded, closed by whoever started them, never waited for without an end.

All are daemon threads: a read that is stuck in the operating system cannot keep the interpreter from exiting. Those
that are not stuck end before it does: one that is in the middle of native code then would abort the process.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from brimful.core.counters import Counts, add_counts, apart, with_counts
from brimful.core.run import STUCK, Run, Stoppable, Stopped, Thread, check_process, consumes, stopping

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS: Final = 0.1
"""Seconds between two looks of a thread that waits for something far away: whether anybody still wants it."""


class Inbox(Generic[T]):
    """A queue that any thread puts into and one takes from. Only that one acquires its lock: a Ctrl-C there stops no other.

    Python's own `SimpleQueue.get(timeout)` may wait without an end before Python 3.13: it goes on with what is left of its time,
    which is below zero if the thread did not run for as long, or if a handler of a signal took as long.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrived = _thread.allocate_lock()  # free once something was put since it was taken last
        self._arrived.acquire()

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._arrived.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._arrived.release()

    def get(self, timeout: float | None = None) -> T:
        """The next item.

        Raises:
            Empty: there is none in `timeout` seconds.
        """
        until = time.monotonic() + (timeout or 0.0)
        while not self._items:
            left = min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)
            if not self._arrived.acquire(timeout=-1 if timeout is None else left):
                raise Empty
        return self._items.popleft()


def awaited(future: Future[R], timeout: float | None = None) -> R:
    """The result of what goes on elsewhere; a thread that waits for it ends soon after nobody wants any more what it does.

    Raises:
        Stopped: nobody does.
        TimeoutError: it has not ended in `timeout` seconds.
    """
    if consumes():
        return future.result(timeout)  # which a Ctrl-C ends
    stopped, until = stopping(), inf if timeout is None else time.monotonic() + timeout
    while not stopped:
        with suppress(TimeoutError):
            return future.result(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
        if future.done() or time.monotonic() >= until:  # with a TimeoutError of its own, or ours
            return future.result(0)
    raise Stopped


def pause(seconds: float) -> None:
    """Sleeps, and ends as `awaited` does."""
    stopped, until = stopping(), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopped:
            raise Stopped
        time.sleep(min(left, LOOK_SECONDS))


# -- functions in threads ----------------------------------------------------------------------------------------------


class WorkerFuture(Future[R]):
    """The future of a function that a worker runs. Whoever waits for it, cancels it or adds a callback takes no lock that a
    thread of ours may want; and waiting ends where the result will never come. Whoever takes the result counts what the function
    left out."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self._fresh = [True]  # gone with whoever runs or cancels it
        self._over = self._stopped = False
        self._counts: Counts = {}
        self._callbacks: list[Callable[[Future[R]], object]] = []
        self._waiting: list[Inbox[None]] = []

    def run(self, fn: Callable[[], tuple[R, Counts]]) -> None:
        """Called by the thread."""
        if self._taken() and self.set_running_or_notify_cancel():
            try:
                result, self._counts = fn()
                self.set_result(result)
            except BaseException as error:
                self.set_exception(error)
            self._notify()

    def cancel(self) -> bool:
        cancelled = self._taken() and super().cancel()
        if cancelled:
            self._notify()
        return cancelled

    def done(self) -> bool:
        return self._over

    def result(self, timeout: float | None = None) -> R:
        """Returns the function's result, or raises its error.

        Raises:
            TimeoutError: it has not ended in `timeout` seconds.
            Stopped: it will not be waited for.
        """
        check_process(self._process)
        arrived: Inbox[None] = Inbox()
        self._waiting.append(arrived)
        if not self._over and not self._stopped:
            with suppress(Empty):
                arrived.get(timeout=timeout)
        self._waiting.remove(arrived)
        if self._over:
            counts, self._counts = self._counts, {}
            add_counts(counts)
            return super().result(0)
        if self._stopped:
            raise Stopped
        raise TimeoutError

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        self._callbacks.append(fn)
        if self._over:
            self._notify()

    def stop(self) -> None:
        """Ends all waiting."""
        self._stopped = True
        for arrived in list(self._waiting):
            arrived.put(None)

    def _taken(self) -> bool:
        """True once."""
        try:
            return self._fresh.pop()
        except IndexError:
            return False

    def _notify(self) -> None:
        self._over = True
        for arrived in list(self._waiting):
            arrived.put(None)
        with suppress(IndexError):
            while True:
                self._callbacks.pop()(self)


class Workers:
    """A few daemon threads that run functions in the order in which they were submitted.

    As a context manager they belong to the iterator for which they run, and end with it; otherwise, with `stop`.

    Args:
        calls: the functions wait for it; it is stopped with them.
    """

    def __init__(self, number: int, name: str, calls: Stoppable | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self._calls = calls
        self._tasks: SimpleQueue[tuple[WorkerFuture[Any], Callable[[], tuple[Any, Counts]]] | None] = SimpleQueue()
        self._open: set[WorkerFuture[Any]] = set()
        self._closed = False
        self._stopping: list[None] = []
        self._number, self._name = number, name
        self._process = os.getpid()
        self._run, self._shared = Run(), True  # until they belong to another one
        self._run.add(self)

    def submit(self, fn: Callable[..., R], *args: Any) -> WorkerFuture[R]:
        check_process(self._process)
        context = copy_context()
        future: WorkerFuture[R] = WorkerFuture()
        self._open.add(future)
        self._tasks.put((future, partial(context.run, apart, fn, *args)))
        if self._closed:  # perhaps since just now, by another thread
            self.stop()
            raise Stopped
        if len(self.threads) < min(self._number, len(self._open)):  # one that is idle is enough
            thread = Thread(self._work, self._name, self._stopping)
            self.threads.append(thread)
            thread.begin()
        return future

    def finish(self) -> None:
        """Has the threads end when all that was submitted is done: nothing more may be."""
        for _ in range(self._number):
            self._tasks.put(None)

    def stop(self) -> None:
        """Cancels what has not begun; what has is not waited for, and ends with the row that it is at."""
        self._closed = True
        self._stopping.append(None)
        if self._calls is not None:
            self._calls.stop()
        for future in list(self._open):
            future.cancel()
            future.stop()
        self.finish()

    def belong(self, run: Run | None, *, shared: bool = False) -> None:
        """Has them stopped with a run, if there is one; `shared`: they work for others, too."""
        if run is not None:
            self._run, self._shared = run, shared
            run.add(self)

    def __enter__(self) -> Workers:
        self.belong(Run.here())
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and issubclass(kind, Stopped):  # whoever stopped this thread waits for these, too
            self.stop()
            return
        if kind is not None and issubclass(kind, TimeoutError):  # which says that one of them is stuck
            STUCK.update(self.threads)
        self.close()

    def close(self) -> None:
        """Stops them, and waits for those that are in the middle of something."""
        self.stop()
        self._run.join(self.threads)
        self._run.forget([self])

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn = task
            with nullcontext() if self._shared else self._run.entered():
                future.run(fn)
            self._open.discard(future)
            del task, future, fn


def map_ahead(
    fn: Callable[[T], R], items: Iterator[tuple[T, Any]], workers: Workers, ahead: int, run: Run
) -> Generator[tuple[R, Any], None, None]:
    """`(fn(item), state)` for each `(item, state)`, in order, up to `ahead` of them computed early.

    An error of `items` is raised after the results of what came before it.
    """
    failure: Exception | None = None
    pending: deque[tuple[WorkerFuture[R], Any, Counts]] = deque()
    each = with_counts(items)
    rest: Counts = {}
    try:
        while True:
            try:
                found, rest = apart(next, each, None)
            except Exception as error:
                failure = error
                break
            if found is None:
                break
            (item, state), counts = found
            future = workers.submit(fn, item)
            run.add(future)  # the workers may go on for others when this has been closed
            pending.append((future, state, counts))
            del item, found
            if len(pending) >= ahead:
                yield _settled(pending.popleft())
        while pending:
            yield _settled(pending.popleft())
        add_counts(rest)
    finally:
        for future, *_ in pending:
            future.cancel()
    if failure is not None:
        raise failure


def _settled(pending: tuple[Future[R], Any, Counts]) -> tuple[R, Any]:
    future, state, counts = pending
    add_counts(counts)
    return awaited(future), state


# -- generators in threads ---------------------------------------------------------------------------------------------


def read_ahead(
    start: Callable[[], Generator[T, None, None]], depth: int, name: str, run: Run
) -> Generator[T, None, None]:
    """The items of the generator that `start` makes, run by a thread of its own, up to `depth` of them early.

    The thread that runs the generator also closes it. An exception in it reaches the consumer in its place.
    """
    with closing(Channel(start, depth, name, run)) as channel:
        yield from channel.items()


class Channel(Generic[T]):
    """A generator run by a thread from now on, and a bounded queue of its items with an end, or an error, after the last. Whoever
    takes an item counts what was left out on the way to it."""

    def __init__(self, start: Callable[[], Generator[T, None, None]], capacity: int, name: str, run: Run) -> None:
        self._start, self._run = start, run
        self._made: Inbox[tuple[T, Counts] | None] = Inbox()  # None after the last
        self._free: SimpleQueue[None] = SimpleQueue()  # places; one more where nobody listens any longer
        for _ in range(capacity):
            self._free.put(None)
        self._stopped: list[None] = []
        self._error: BaseException | None = None
        self._rest: Counts = {}  # left out after the last item
        self._process = os.getpid()
        context = copy_context()
        thread = Thread(partial(context.run, self._work), name, self._stopped)
        self.threads: list[threading.Thread] = [thread]
        run.add(self)
        thread.begin()

    def items(self, check: Callable[[float], None] | None = None) -> Generator[T, None, None]:
        """The items, once; `check` is called each second with how long one has been waited for, and may raise."""
        while True:
            made = self._next(check)
            if self._stopped:  # the rest was thrown away: whoever took this for the end would make a last window of it
                raise Stopped
            if made is None:
                break
            self._free.put(None)
            item, counts = made
            del made
            add_counts(counts)
            yield item
            del item
        add_counts(self._rest)
        if self._error is not None:
            raise self._error

    def _next(self, check: Callable[[float], None] | None) -> tuple[T, Counts] | None:
        check_process(self._process)
        if check is None and consumes():
            return self._made.get()
        began, stopped = time.monotonic(), stopping()
        while not stopped:  # else this one has perhaps begun too late to be stopped with all that ran
            try:
                return self._made.get(timeout=LOOK_SECONDS if check is None else 1.0)
            except Empty:
                if check is not None:
                    check(time.monotonic() - began)
        raise Stopped

    def close(self) -> None:
        """Has the thread close the generator, and waits for it."""
        close_together([self], self._run)

    def stop(self) -> None:
        """Lets the thread close the generator at its next item, or at the next row of a function that it calls."""
        self._stopped.append(None)
        self._free.put(None)
        self._made.put(None)

    def _work(self) -> None:
        try:
            with self._run.entered(), closing(self._start()) as items:
                each = with_counts(items)
                while True:
                    found, self._rest = apart(next, each, None)
                    if found is None:
                        break
                    self._free.get()
                    if self._stopped:
                        break
                    self._made.put(found)
                    del found
        except BaseException as error:
            self._error = error
        self._made.put(None)


def close_together(channels: Collection[Channel[Any]], run: Run) -> None:
    """Closes several of a run at once, in no more time than one."""
    for channel in channels:
        channel.stop()
    run.join(thread for channel in channels for thread in channel.threads)
    run.forget(channels)
