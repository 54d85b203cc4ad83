"""One iteration, from `iter` to `close`: what its stages share, and what is stopped with it.

Ctrl-C comes to the main thread between any two of its steps, also to those inside `threading`: a lock of Python's that it
has just taken stays locked, a thread that it is starting is nobody's. So whoever consumes takes no lock that a thread of
ours may want. All goes through queues without such locks, what runs is known before it runs, and threads start threads.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from queue import SimpleQueue
from typing import Any, Final, Protocol, Self
from weakref import WeakSet, finalize, ref

from brimful.plan.errors import StateError, logger

JOIN_SECONDS: Final = 5.0
"""How long `close` waits for threads that are in the middle of something before it leaves them to end by themselves."""
START_SECONDS: Final = 0.1
"""How long it waits for one to start whose start was interrupted, and for one that is known to be stuck: it may never."""


class Stopped(BaseException):
    """The source of items was closed by somebody else: neither an end nor an error; it ends the threads that it reaches."""


class Stoppable(Protocol):
    """Something that runs threads, or that a thread waits for."""

    def stop(self) -> None: ...


class Run:
    """What goes on for one iterator, or for a loader. `items` of a stage hands it on to its inputs.

    Args:
        owner: the run of the loader that the iterator belongs to: workers end with that.
        ahead: whether the code that was handed this runs ahead of the consumer, beside whatever that does.

    Attributes:
        pools: workers that streams and epochs share, by the id of their maker.
        types: those that its stages have learnt, or that its state has, as plain JSON, by their `Learnt`. All runs of a loader
            share them.
        wholes: of stages that streams run parts of, what learns the types of all parts, by their `Learnt`.
        made: what each batch on its way to the consumer holds, in the order in which they were made; None: nobody counts them.
        device_seconds: of the consumer's `next` in which it waited for its own device to catch up, not for data.
        handled: the id of the exception that whoever consumes handles meanwhile, and is none of ours.
        other_rows_allowed: whether rows may differ from those that a state was saved over.
        shards: how the list of shards differs from that of the state, as the user allows it.
        several: whether it is of a loader, whose iterators share workers.
        replay: the runs of mixtures so far, while it is found out how far a state has them read again: meanwhile nobody reads
            ahead. None: otherwise.
        step: the items after a state that must come again: more than one where the state has the labels of all of them.
    """

    def __init__(self, owner: Run | None = None, ahead: bool = False) -> None:
        self.owner: Run | None = owner if owner is None or owner.owner is None else owner.owner
        self.process: int = os.getpid()
        self.pools: dict[int, Any] = {}
        self.types: dict[object, Any] = {} if self.owner is None else self.owner.types
        self.wholes: dict[object, Any] = {}
        self.made: deque[Any] | None = None
        self.device_seconds: float = 0.0
        self.handled: int = id(None)
        self.other_rows_allowed: bool = False
        self.shards: str = ""
        self.several: bool = False
        self.ahead: bool = ahead
        self.replay: list[Any] | None = None
        self.step: int = 1
        self._said: list[None] = []
        self._stops: set[ref[Stoppable]] = set()

    @staticmethod
    def kept_by(owner: object) -> Run:
        """One that is closed when `owner` has gone, by the process that made it."""
        kept = Run()
        kept.several = True
        finalize(owner, _close_here, kept).atexit = False  # by then all has been stopped
        return kept

    def behind(self) -> Self:
        """The same run for a thread that works ahead of the consumer."""
        other = copy(self)
        other.ahead = True
        return other

    def add(self, one: Stoppable) -> None:
        """Has `one` stopped with this run, and before the interpreter waits for its threads."""
        for run in (_ALL, self):
            run._stops.add(ref(one, run._stops.discard))

    def forget(self, closed: Collection[Stoppable]) -> None:
        """Nobody waits again for these, which are closed."""
        self._stops.difference_update(ref(one) for one in closed)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within, the code of this thread is the run's."""
        runs = runs_here()
        try:
            runs.append(self)
            yield
        finally:
            self.leave(runs)

    def leave(self, runs: list[Run]) -> None:
        """Takes this one, if it is there, off the runs whose code a thread is in: the last to come, unless it is closed late."""
        if runs and runs[-1] is self:
            runs.pop()
            return
        for place in range(len(runs) - 1, -1, -1):
            if runs[place] is self:
                del runs[place]
                return

    @property
    def is_here(self) -> bool:
        """Whether the code of this thread is the run's."""
        return any(run._stops is self._stops for run in runs_here())

    @staticmethod
    def here() -> Run | None:
        """The run whose code this thread is in: for files, stores and tokenizers, which lie far below the stages that are handed
        it. None: outside of any, and where several share a thread."""
        runs = runs_here()
        return runs[-1] if runs else None

    def stop(self) -> list[threading.Thread]:
        """Stops all that runs, whoever waits for it; the threads that end now."""
        found = [one for one in (weak() for weak in list(self._stops)) if one is not None]
        for one in found:
            one.stop()
        return [thread for one in found for thread in getattr(one, "threads", ())]

    def close(self) -> None:
        """Stops all that runs, and waits for its threads; then what these have begun while they were being stopped."""
        self.join(self.stop())
        self.join(self.stop())
        self._stops.clear()
        self.pools.clear()

    def join(self, threads: Iterable[threading.Thread]) -> None:
        """Waits for threads that have been stopped."""
        error = sys.exception()
        if consumes() and isinstance(error, KeyboardInterrupt | SystemExit) and id(error) != self.handled:
            self.stop()  # which a Ctrl-C ends: these threads may wait for others that nobody has stopped yet
        began = time.monotonic()
        for thread in threads:
            while thread is not threading.current_thread():  # where the garbage collector closes an iterator
                try:
                    until = began + (START_SECONDS if thread in STUCK else JOIN_SECONDS)
                    thread.join(max(0.0, until - time.monotonic()))
                    if thread.is_alive():
                        STUCK.add(thread)
                    break
                except RuntimeError:  # it has not started
                    if time.monotonic() > began + START_SECONDS:
                        break
                    time.sleep(0.001)

    def other_rows(self, words: str) -> None:
        """Refuses other rows than those that a state was saved over, unless they are allowed: that is said once.

        Args:
            words: what differs.
        Raises:
            StateError: with what to do.
        """
        if not self.other_rows_allowed:
            if self.shards:
                raise StateError(
                    f"{words}. The list of shards {self.shards}. Or go on with the data that saved it, or start anew"
                )
            raise StateError(
                f"{words}. A shard was edited, a tokenizer or a function is another one, or a function is random. Go on with the "
                "data and code that saved it, go on with these rows by allow={'rows'}, or start anew. (allow={'functions'} and "
                "allow={'urls'} need the same rows here)"
            )
        if not self._said:
            self._said.append(None)
            logger.warning("%s. This run goes on with the rows as they are now, as allow={'rows'} says", words)


_LOCAL: Final = threading.local()


def runs_here() -> list[Run]:
    """The runs whose code this thread is in, each inside the one before it. Price: 50 ns."""
    try:
        found: list[Run] = _LOCAL.runs
    except AttributeError:
        found = _LOCAL.runs = []
    return found


_ALL: Final = Run()
"""All that runs."""

STUCK: Final[WeakSet[threading.Thread]] = WeakSet()
"""Threads that did not end in time: nobody waits as long for them again."""


def _close_here(kept: Run) -> None:
    if kept.process == os.getpid():
        kept.close()


@atexit.register
def _end() -> None:
    _ALL.close()


os.register_at_fork(after_in_child=_ALL._stops.clear)


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


# -- threads -----------------------------------------------------------------------------------------------------------


class Thread(threading.Thread):
    """A thread of ours. `stopping` is no longer empty when nobody waits any more for what it runs."""

    def __init__(self, target: Callable[[], object], name: str, stopping: Collection[None]) -> None:
        super().__init__(target=target, name=f"brimful-{name}", daemon=True)
        self.stopping: Collection[None] = stopping

    def begin(self) -> None:
        """Starts it by another one: a Ctrl-C inside of `Thread.start` leaves it in between."""
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        _thread.start_new_thread(self._begun, (outcome,))
        error = outcome.get()
        if error is not None:
            raise error

    def _begun(self, outcome: SimpleQueue[BaseException | None]) -> None:
        try:
            self.start()
            outcome.put(None)
        except BaseException as error:
            outcome.put(error)


def stopping() -> Collection[None]:
    """No longer empty when nobody waits any more for what this thread runs: whoever calls a function for each row looks at it,
    and whoever waits for something far away (`threads.awaited`)."""
    found: Collection[None] = getattr(threading.current_thread(), "stopping", ())
    return found


def consumes() -> bool:
    """Whether this is no thread of ours."""
    return stopping() == ()
