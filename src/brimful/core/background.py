"""Threads that read ahead: bounded, closed by whoever started them, never waited for without an end.

All are daemon threads: a read that is stuck in the operating system cannot keep the interpreter from exiting. Those
that are not stuck end before it does: one that is in the middle of native code then would abort the process.

Ctrl-C comes to the main thread between any two of its steps, also to those inside `threading`: a lock of Python's that it
has just taken stays locked, a thread that it is starting is nobody's. So whoever consumes takes no lock that a thread of
ours may want. All goes through queues written in C, what runs is known before it runs, and threads start threads.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet, finalize, ref

from brimful.core.counters import Counts, add_counts, apart, with_counts

T = TypeVar("T")
R = TypeVar("R")

JOIN_SECONDS: Final = 5.0
"""How long `close` waits for threads that are in the middle of something before it leaves them to end by themselves."""
START_SECONDS: Final = 0.1
"""How long it waits for one to start whose start was interrupted, and for one that is known to be stuck: it may never."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks of a thread that waits for something far away: whether anybody still wants it."""


class Stopped(BaseException):
    """The source of items was closed by somebody else: neither an end nor an error; it ends the threads that it reaches."""


# -- what runs ---------------------------------------------------------------------------------------------------------


class Stoppable(Protocol):
    """Something that runs threads, or that a thread waits for."""

    def stop(self) -> None: ...


class Running(set["ref[Stoppable]"]):
    """All that runs for an iterator, or for a loader.

    Args:
        keeper: of the loader that the iterator runs for: workers end with it.

    `pools`: workers that streams and epochs share, by the id of their maker.
    `handled`: the id of the exception that whoever consumes handles meanwhile, and is none of ours.
    """

    def __init__(self, keeper: Running | None = None) -> None:
        self.keeper = keeper
        self.process: int = os.getpid()
        self.pools: dict[int, Any] = {}
        self.handled: int = id(None)

    @staticmethod
    def kept_by(owner: object) -> Running:
        """One that is closed when `owner` has gone, by the process that made it."""
        kept = Running()
        finalize(owner, _close_here, kept).atexit = False  # by then all has been stopped
        return kept


_running: Final = Running()
RUN: ContextVar[Running | None] = ContextVar("brimful_run", default=None)
"""All that runs for the iterator whose code this is, in any thread; None outside, and where several iterators share it."""


STOPPING: ContextVar[Collection[None]] = ContextVar("brimful_stopping", default=())
"""No longer empty when nobody waits any more for what this thread runs: whoever calls a function for each row looks at it, and
whoever waits for something far away (`awaited`)."""
KEEPER: ContextVar[Running | None] = ContextVar("brimful_keeper", default=None)
"""The keeper of the workers of an iterator that is made now; None where it keeps them itself."""


def belongs(one: Stoppable, run: Running | None = None) -> None:
    """Has `one` stopped with `run`, or the iterator that it runs for, and before the interpreter waits for its threads."""
    for known in (_running, RUN.get() if run is None else run):
        if known is not None:
            known.add(ref(one, known.discard))


def stop_all(running: Running) -> list[threading.Thread]:
    """Stops all that runs, whoever waits for it; the threads that end now."""
    found = [one for one in (weak() for weak in list(running)) if one is not None]
    for one in found:
        one.stop()
    return [thread for one in found for thread in getattr(one, "threads", ())]


def close_all(running: Running) -> None:
    """Stops all that runs, and waits for its threads; then what these have begun while they were being stopped."""
    _join(stop_all(running))
    _join(stop_all(running))
    running.clear()
    running.pools.clear()


def _close_here(kept: Running) -> None:
    if kept.process == os.getpid():
        close_all(kept)


def check_process(process: int) -> None:
    """Refuses to go on in a process that has been forked since.

    Raises:
        RuntimeError: naming both processes.
    """
    if process != os.getpid():
        raise RuntimeError(
            f"this iterator belongs to process {process}, and this is process {os.getpid()}, forked from it: its threads are "
            "not here and its file positions are shared; iterate anew in this one, from state_dict() if need be: data.iter(state)"
        )


def _forget(closed: Collection[Stoppable]) -> None:
    """Nobody waits again for these, which are closed."""
    running = RUN.get()
    if running is not None:
        running.difference_update(ref(one) for one in closed)


def _start(thread: threading.Thread) -> None:
    """Starts a thread by another one: a Ctrl-C inside of `Thread.start` leaves it in between."""
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()
    _thread.start_new_thread(_started, (thread, outcome))
    error = outcome.get()
    if error is not None:
        raise error


def _started(thread: threading.Thread, outcome: SimpleQueue[BaseException | None]) -> None:
    try:
        thread.start()
        outcome.put(None)
    except BaseException as error:
        outcome.put(error)


def _join(threads: Iterable[threading.Thread]) -> None:
    run, error = RUN.get(), sys.exception()
    if (
        run is not None
        and _consumes()
        and isinstance(error, KeyboardInterrupt | SystemExit)
        and id(error) != run.handled
    ):
        stop_all(run)  # which a Ctrl-C ends: these threads may wait for others that nobody has stopped yet
    began = time.monotonic()
    for thread in threads:
        while thread is not threading.current_thread():  # where the garbage collector closes an iterator
            try:
                until = began + (START_SECONDS if thread in _STUCK else JOIN_SECONDS)
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    _STUCK.add(thread)
                break
            except RuntimeError:  # it has not started
                if time.monotonic() > began + START_SECONDS:
                    break
                time.sleep(0.001)


_STUCK: Final[WeakSet[threading.Thread]] = WeakSet()
"""Threads that did not end in time: nobody waits as long for them again."""


def _consumes() -> bool:
    """Whether this is no thread of ours."""
    return STOPPING.get() == ()


def awaited(future: Future[R], timeout: float | None = None) -> R:
    """The result of what goes on elsewhere; a thread that waits for it ends soon after nobody wants any more what it does.

    Raises:
        Stopped: nobody does.
        TimeoutError: it has not ended in `timeout` seconds.
    """
    if _consumes():
        return future.result(timeout)  # which a Ctrl-C ends
    stopping, until = STOPPING.get(), inf if timeout is None else time.monotonic() + timeout
    while not stopping:
        with suppress(TimeoutError):
            return future.result(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
        if future.done() or time.monotonic() >= until:  # with a TimeoutError of its own, or ours
            return future.result(0)
    raise Stopped


def pause(seconds: float) -> None:
    """Sleeps, and ends as `awaited` does."""
    stopping, until = STOPPING.get(), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopping:
            raise Stopped
        time.sleep(min(left, LOOK_SECONDS))


@atexit.register
def _end() -> None:
    close_all(_running)


os.register_at_fork(after_in_child=_running.clear)


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
        self._waiting: list[SimpleQueue[None]] = []

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
        arrived: SimpleQueue[None] = SimpleQueue()
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
        self._shared = True
        self._closed = False
        self._stopping: list[None] = []
        self._number, self._name = number, name
        self._process = os.getpid()
        _running.add(ref(self, _running.discard))

    def submit(self, fn: Callable[..., R], *args: Any) -> WorkerFuture[R]:
        check_process(self._process)
        context = copy_context()
        if self._shared:
            context.run(RUN.set, None)
        context.run(STOPPING.set, self._stopping)
        future: WorkerFuture[R] = WorkerFuture()
        self._open.add(future)
        self._tasks.put((future, partial(context.run, apart, fn, *args)))
        if self._closed:  # perhaps since just now, by another thread
            self.stop()
            raise Stopped
        if len(self.threads) < min(self._number, len(self._open)):  # one that is idle is enough
            thread = threading.Thread(target=self._work, name=f"brimful-{self._name}", daemon=True)
            self.threads.append(thread)
            _start(thread)
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

    def belong(self, run: Running | None = None) -> None:
        """Has them stopped with `run`, or the iterator for which they run."""
        self._shared = run is not None and run is not RUN.get()
        belongs(self, run)

    def __enter__(self) -> Workers:
        self.belong()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and issubclass(kind, Stopped):  # whoever stopped this thread waits for these, too
            self.stop()
            return
        if kind is not None and issubclass(kind, TimeoutError):  # which says that one of them is stuck
            _STUCK.update(self.threads)
        self.close()

    def close(self) -> None:
        """Stops them, and waits for those that are in the middle of something."""
        self.stop()
        _join(self.threads)
        _forget([self])

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn = task
            future.run(fn)
            self._open.discard(future)
            del task, future, fn


def map_ahead(
    fn: Callable[[T], R], items: Iterator[tuple[T, Any]], workers: Workers, ahead: int
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
            belongs(future)  # the workers may go on for others when this has been closed
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


def read_ahead(start: Callable[[], Generator[T, None, None]], depth: int, name: str) -> Generator[T, None, None]:
    """The items of the generator that `start` makes, run by a thread of its own, up to `depth` of them early.

    The thread that runs the generator also closes it. An exception in it reaches the consumer in its place.
    """
    with closing(Channel(start, depth, name)) as channel:
        yield from channel.items()


class Channel(Generic[T]):
    """A generator run by a thread from now on, and a bounded queue of its items with an end, or an error, after the last. Whoever
    takes an item counts what was left out on the way to it."""

    def __init__(self, start: Callable[[], Generator[T, None, None]], capacity: int, name: str) -> None:
        self._start = start
        self._made: SimpleQueue[tuple[T, Counts] | None] = SimpleQueue()  # None after the last
        self._free: SimpleQueue[None] = SimpleQueue()  # places; one more where nobody listens any longer
        for _ in range(capacity):
            self._free.put(None)
        self._stopped: list[None] = []
        self._error: BaseException | None = None
        self._rest: Counts = {}  # left out after the last item
        self._process = os.getpid()
        context = copy_context()
        context.run(STOPPING.set, self._stopped)
        self.threads: list[threading.Thread] = [
            threading.Thread(target=context.run, args=(self._work,), name=f"brimful-{name}", daemon=True)
        ]
        belongs(self)
        _start(self.threads[0])

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
        if check is None and _consumes():
            return self._made.get()
        began, stopping = time.monotonic(), STOPPING.get()
        while not stopping:  # else this one has perhaps begun too late to be stopped with all that ran
            try:
                return self._made.get(timeout=LOOK_SECONDS if check is None else 1.0)
            except Empty:
                if check is not None:
                    check(time.monotonic() - began)
        raise Stopped

    def close(self) -> None:
        """Has the thread close the generator, and waits for it."""
        close_together([self])

    def stop(self) -> None:
        """Lets the thread close the generator at its next item, or at the next row of a function that it calls."""
        self._stopped.append(None)
        self._free.put(None)
        self._made.put(None)

    def _work(self) -> None:
        try:
            with closing(self._start()) as items:
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


def close_together(channels: Collection[Channel[Any]]) -> None:
    """Closes several at once, in no more time than one."""
    for channel in channels:
        channel.stop()
    _join(thread for channel in channels for thread in channel.threads)
    _forget(channels)
