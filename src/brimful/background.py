"""Threads that read ahead: bounded, closed by whoever started them, never waited for without an end.

All are daemon threads: a read that is stuck in the operating system cannot keep the interpreter from exiting. Those
that are not stuck end before it does: one that is in the middle of native code then would abort the process.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")
R = TypeVar("R")

JOIN_SECONDS: Final = 5.0
"""How long `close` waits for threads that are in the middle of something before it leaves them to end by themselves."""


class Stopped(BaseException):
    """What was read has been closed, by somebody else: no end, and nobody's error; it ends the threads that it reaches."""


class Workers:
    """A few daemon threads that run functions in the order in which they were submitted; a context manager."""

    def __init__(self, number: int, name: str) -> None:
        self.threads: list[threading.Thread] = []
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._number, self._name = number, name
        _running.add(self)

    def submit(self, fn: Callable[..., R], *args: Any) -> Future[R]:
        future: Future[R] = Future()
        context = copy_context()
        with self._ready:
            assert not self._closed
            self._tasks.append((future, lambda: context.run(fn, *args)))
            self._ready.notify()
            if len(self.threads) < self._number:
                thread = threading.Thread(target=self._work, name=f"brimful-{self._name}", daemon=True)
                self.threads.append(thread)
                thread.start()
        return future

    def stop(self) -> None:
        """Cancels what has not begun."""
        with self._ready:
            self._closed = True
            for future, _ in self._tasks:
                future.cancel()
            self._tasks.clear()
            self._ready.notify_all()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.stop()
        if kind is None or not issubclass(kind, TimeoutError):  # which says that a thread is stuck
            _join(self.threads)

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._tasks and not self._closed:
                    self._ready.wait()
                if self._closed:
                    return
                future, task = self._tasks.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = task()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, task


def map_ahead(
    fn: Callable[[T], R], items: Iterator[tuple[T, Any]], max_workers: int, ahead: int, name: str
) -> Generator[tuple[R, Any], None, None]:
    """`(fn(item), state)` for each `(item, state)`, in order, up to `max_workers` + `ahead` of them computed early.

    An error of `items` is raised after the results of what came before it.
    """
    failure: Exception | None = None
    with Workers(max_workers, name) as workers:
        pending: deque[tuple[Future[R], Any]] = deque()
        while True:
            try:
                item, state = next(items)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            pending.append((workers.submit(fn, item), state))
            del item
            if len(pending) >= max_workers + ahead:
                yield _settled(pending.popleft())
        while pending:
            yield _settled(pending.popleft())
    if failure is not None:
        raise failure


def _settled(pending: tuple[Future[R], Any]) -> tuple[R, Any]:
    future, state = pending
    return future.result(), state


def read_ahead(start: Callable[[], Generator[T, None, None]], depth: int, name: str) -> Generator[T, None, None]:
    """The items of the generator that `start` makes, run by a thread of its own, up to `depth` of them early.

    The thread that runs the generator also closes it. An exception in it reaches the consumer in its place.
    """
    channel = Channel(start, depth, name)
    try:
        yield from channel.items()
    finally:
        channel.close()


class Channel(Generic[T]):
    """A generator run by a thread from now on, and a bounded queue of its items with an end, or an error, after the last."""

    def __init__(self, start: Callable[[], Generator[T, None, None]], capacity: int, name: str) -> None:
        self._start, self._capacity = start, capacity
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        context = copy_context()
        self.threads = [threading.Thread(target=context.run, args=(self._work,), name=f"brimful-{name}", daemon=True)]
        _running.add(self)
        self.threads[0].start()

    def items(self, check: Callable[[float], None] | None = None) -> Generator[T, None, None]:
        """The items, once; `check` is told the seconds that one has been waited for, each second, and may raise."""
        while True:
            began = time.monotonic()
            with self._changed:
                while not self._queue and not self._ended:
                    self._changed.wait(None if check is None else 1.0)
                    if check is not None:
                        check(time.monotonic() - began)
                if not self._queue:
                    break
                item = self._queue.popleft()
                self._changed.notify_all()
            yield item
            del item
        if self._stopped:  # the rest was thrown away: whoever took this for the end would make a last window of it
            raise Stopped
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Has the thread close the generator, and waits for it."""
        close_together([self])

    def stop(self) -> None:
        """Lets the thread close the generator at its next item."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            with closing(self._start()) as items:
                for item in items:
                    if not self._put(item):
                        break
                    del item
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Whether anyone still listens."""
        with self._changed:
            while len(self._queue) >= self._capacity and not self._stopped:
                self._changed.wait()
            if not self._stopped:
                self._queue.append(item)
                self._changed.notify_all()
            return not self._stopped


def close_together(channels: Collection[Channel[Any]]) -> None:
    """Closes several at once, in no more time than one."""
    for channel in channels:
        channel.stop()
    _join(thread for channel in channels for thread in channel.threads)


class Stoppable(Protocol):
    """What runs threads, or is waited for by one."""

    def stop(self) -> None: ...


_running: WeakSet[Stoppable] = WeakSet()


def closed_at_exit(one: Stoppable) -> None:
    """Stops what a thread of a Channel may be waiting for before the interpreter waits for the thread."""
    _running.add(one)


def _join(threads: Iterable[threading.Thread]) -> None:
    until = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        if thread is not threading.current_thread():  # where the garbage collector closes an iterator
            thread.join(max(0.0, until - time.monotonic()))


@atexit.register
def _end() -> None:
    running = list(_running)
    for one in running:
        one.stop()
    _join(thread for one in running for thread in getattr(one, "threads", ()))
