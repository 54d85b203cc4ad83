"""Threads that read ahead: bounded, closed by whoever started them, never waited for without an end.

All are daemon threads: a read that is stuck in the operating system cannot keep the interpreter from exiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

JOIN_SECONDS: Final = 5.0
"""How long `close` waits for a thread that is in the middle of something before it leaves it to end by itself."""


class Workers:
    """A few daemon threads that run functions in the order in which they were submitted; a context manager."""

    def __init__(self, number: int, name: str) -> None:
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._number, self._name = number, name

    def submit(self, fn: Callable[..., R], *args: Any) -> Future[R]:
        future: Future[R] = Future()
        context = copy_context()
        with self._ready:
            assert not self._closed
            self._tasks.append((future, lambda: context.run(fn, *args)))
            self._ready.notify()
            if len(self._threads) < self._number:
                thread = threading.Thread(target=self._work, name=f"brimful-{self._name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        with self._ready:
            self._closed = True
            for future, _ in self._tasks:
                future.cancel()
            self._tasks.clear()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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
    source = iter(items)
    failure: Exception | None = None
    with Workers(max_workers, name) as workers:
        pending: deque[tuple[Future[R], Any]] = deque()
        while True:
            try:
                item, state = next(source)
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


class _Channel(Generic[T]):
    """A bounded queue with an end: `put` says whether anyone still listens, `get` raises what the producer raised."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._capacity = capacity
        self._ended = self._abandoned = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        with self._changed:
            while len(self._items) >= self._capacity and not self._abandoned:
                self._changed.wait()
            self._items.append(item)
            self._changed.notify_all()
            return not self._abandoned

    def end(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._items.clear()
            self._changed.notify_all()

    def get(self) -> Generator[T, None, None]:
        while True:
            with self._changed:
                while not self._items and not self._ended:
                    self._changed.wait()
                if not self._items:
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
            del item
        if self._error is not None:
            raise self._error


def read_ahead(start: Callable[[], Generator[T, None, None]], depth: int, name: str) -> Generator[T, None, None]:
    """The items of the generator that `start` makes, run by a thread of its own, up to `depth` of them early.

    The thread that runs the generator also closes it. An exception in it reaches the consumer in its place.
    """
    channel: _Channel[T] = _Channel(depth)

    def work() -> None:
        try:
            with closing(start()) as items:
                for item in items:
                    if not channel.put(item):
                        break
                    del item
        except BaseException as error:
            channel.end(error)
        else:
            channel.end()

    thread = threading.Thread(target=copy_context().run, args=(work,), name=f"brimful-{name}", daemon=True)
    thread.start()
    try:
        yield from channel.get()
    finally:
        channel.abandon()
        thread.join(JOIN_SECONDS)
