"""One run over a stage: hands out its items, and remembers the state after the last one that the caller took."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Final, Generic, NoReturn, TypeVar, cast
from weakref import WeakSet

import numpy as np

from brimful.core.ahead import then
from brimful.core.counters import COUNTERS, Counters, apart
from brimful.core.facts import shown
from brimful.core.header import VERSION, allowed, check_header, header_difference, header_of, learners, paired, types_in
from brimful.core.replay import as_saved, edited, shards_differ
from brimful.core.run import JOIN_SECONDS, Run, check_process, runs_here
from brimful.core.stage import END, Stage, State
from brimful.core.states import check_form, position_of, sealed
from brimful.core.stats import Stats
from brimful.plan.errors import BrokenError, StateError, counted

T = TypeVar("T")


class ResumableIterator(Iterator[T], Generic[T]):
    """The items of a data set, from its start or from a saved state. It is a context manager.

    `state_dict()` may be called at any time, by any thread, also after an error, Ctrl-C or `close`. It is plain JSON.
    It describes the place after the last item that `next` returned, without items that were read ahead. After Ctrl-C,
    `next` goes on. After an error, every `next` raises an error.

    It belongs to the process that made it, and to one thread at a time. After a fork, and while another thread is in
    it, `next` raises a RuntimeError. Any thread may call `close`, also from a function that the run itself calls.
    """

    def __init__(
        self,
        stage: Stage[T],
        state_dict: dict[str, Any] | None,
        allow: Collection[str],
        epoch: int = 0,
        run: Run | None = None,
    ) -> None:
        if epoch and state_dict is not None:
            raise ValueError(
                f"give a state or epoch={epoch:,}, not both: the state already says in which epoch it goes on. Leave out epoch= "
                "to resume, or the state to begin anew"
            )
        _keep_what_is_freed()
        self._process = os.getpid()
        different = allowed(allow)
        self._items: Generator[tuple[T, State], None, None] | None = None
        self._run = run or Run()
        self._run.other_rows_allowed = "rows" in different
        self._error: Exception | None = None
        self._closed = self._over = False
        self._reached: State = None  # the state up to which `_items` has come; None while it is asked
        counters = Counters()
        self._context = copy_context()
        self._context.run(
            COUNTERS.set, counters
        )  # before the first use: of indexed data a filter counts what it leaves out
        self.stats: Stats = Stats(counters, self._run)
        self._stage, self._learners = stage, learners(stage)
        try:
            if state_dict is None:
                self._header = self._context.run(header_of, stage)
                self._state = self._context.run(stage.start, epoch)
            else:
                self._header, self._state = self._resumed(state_dict, different)
        except BaseException as error:
            self._run.close()  # a state that is refused may have begun workers, which looked for types
            if isinstance(error, StopIteration):
                raise _no_end(error) from error
            raise
        _ITERATORS.add(self)

    def __next__(self) -> T:
        check_process(self._process)
        if self._error is not None:
            raise BrokenError(f"this iterator failed earlier: {self._error}") from self._error
        if self._over or self._state == END:
            self._over = True
            self.close()
            raise StopIteration
        if self._closed:
            raise BrokenError(
                "this iterator was closed before its end; go on with a new one: iter(state), with the state_dict() of this one"
            )
        before, outer = self._state, sys.exception()
        self._run.handled = id(outer)
        try:
            if self._items is not None and self._reached is not self._state:  # a Ctrl-C came while it was being closed
                self._stop()
            try:
                runs = runs_here()
                try:
                    runs.append(self._run)
                    item, after, error = self._context.run(self._take)
                finally:
                    self._run.leave(runs)
            except RuntimeError:  # of `run` itself: somebody else is in this context
                raise in_use() from None
            if error is None and after is not None and not self._closed:
                self._state = after
                return item
        except BaseException as caught:
            if isinstance(caught, Exception):
                raise
            self._state = before  # Ctrl-C: the item is not handed out, so the state is the one before it
            self._stop()
            raise
        if self._closed or error is None:
            self._over = True
            self.close()
            raise StopIteration
        interrupt = _interrupt(error, outer)
        if interrupt is None and isinstance(error, Exception):
            self._error = error
        self._stop()
        if interrupt not in (None, error):
            raise interrupt from error
        raise error

    def state_dict(self) -> dict[str, Any]:
        """The place after the last item taken, as plain JSON. You may keep it or change it."""
        return self.snapshot()

    @property
    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the `state_dict` of this moment, whenever you call it. Price: 1 us, because states do
        not change.
        """
        return partial(self._sealed, self._state, self._run.types.copy())

    def _sealed(self, position: State, types: dict[object, Any]) -> dict[str, Any]:
        return sealed(self._header, position, map(types.get, self._learners))

    @property
    def position(self) -> State:
        """The stage's own state after the last item taken. Do not change it."""
        return self._state

    @property
    def over(self) -> bool:
        """True if the state says that the last item has been taken."""
        return bool(self._state == END)

    def __repr__(self) -> str:
        ends = {"failed": self._error is not None, "at its end": self.over, "closed": self._closed}
        stands = next((words for words, so in ends.items() if so), "open")
        return f"ResumableIterator({shown(self._stage)}, {stands}, {counted(self.stats.samples, 'sample')} taken)"

    def close(self) -> None:
        """Ends the run. It closes threads and files. `state_dict` still answers.

        If the data had not ended, a later `next` raises a BrokenError, so that nobody takes it for the end of the data.
        A `next` that is still running, in another thread or as the caller of this, returns no item and closes the rest.
        """
        self._closed = True
        if self._process != os.getpid():
            return
        self._run.stop()
        if self._run.is_here:
            return
        until = time.monotonic() + JOIN_SECONDS
        while not self._stop() and time.monotonic() < until:
            time.sleep(0.001)

    def __enter__(self) -> ResumableIterator[T]:
        return self

    def __exit__(self, *error: object, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then all has been stopped, and modules may be empty
            self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_state") and not ending() and self._process == os.getpid():
            self._stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator cannot be copied or pickled: it holds threads and open files; save its state_dict(), and go on with "
            "data.iter(state)"
        )

    def _take(self) -> tuple[T, State | None, BaseException | None]:
        """An item and the state after it, neither at the end; an error is returned, so that it is not one of whoever calls."""
        nothing = cast(T, None)
        try:
            began = time.perf_counter()
            if self._items is None:
                self.stats.began()
                self._items = self._stage.items(self._state, self._run)
            self._reached = None
            item, after = next(self._items, (nothing, None))
            self.stats.waited(began, time.perf_counter())
            if after is not None:
                item = then(item, self._counted)
            self._reached = after
            return item, after, None
        except StopIteration as error:
            wrong = _no_end(error)
            wrong.__cause__ = error
            return nothing, None, wrong
        except BaseException as error:
            return nothing, None, error

    def _counted(self, item: T) -> T:
        self.stats.took(item)
        return item

    def _stop(self) -> bool:
        """Closes all that runs, unless another thread is inside."""
        try:
            error = self._context.run(self._close)
        except RuntimeError:
            return False
        if error is not None:
            raise error
        return True

    def _close(self) -> BaseException | None:
        """Where a Ctrl-C comes in the middle of it, the next call does all of it again."""
        self._reached = None  # `_items` may be closed from here on, and would seem to be at their end
        try:
            self._run.stop()  # else what closes below waits for workers that nobody has stopped
            if self._items is not None:
                self._items.close()
            self._run.close()
            self._items = None
        except BaseException as error:
            return error
        return None

    def _resumed(self, state_dict: dict[str, Any], allow: frozenset[str]) -> tuple[Any, State]:
        """The header and the place of a run that goes on from a state. Its stage is one of the state's weights, up to there."""
        (stage, header, position), _ = self._context.run(apart, position_in, state_dict, self._stage, allow)
        saved = state_dict["header"]
        if "rows" in allow and (differs := header_difference(saved, header, allow - {"rows"})):
            words = f"{differs.name} was {differs.saved} when this state was saved, and is {differs.ours} here"
            self._run.other_rows(words)
        known = [(getattr(one, "learnt", None), types_in(entry)) for one, entry in paired(stage, saved)]
        self._run.types |= {learnt: types for learnt, types in known if types is not None}
        if "urls" in allow:
            self._run.shards = shards_differ(saved, header)
        with self._run.entered():
            self._stage = self._context.run(edited, stage, position, saved)
        if self._stage is not stage:
            header, _ = self._context.run(apart, header_of, self._stage)
        self._learners = learners(self._stage)
        return header, position


def position_in(state_dict: dict[str, Any], stage: Stage[Any], allow: frozenset[str]) -> tuple[Stage[Any], Any, State]:
    """The position in a state, which a chain can go on from; with the chain, as the state says it, and its header. No row is read
    for it. (A filter of indexed data is asked; it was counted before the state was saved.)

    Raises:
        StateError: it is no state, or damaged, or that of another pipeline.
    """
    if state_dict == {}:
        raise StateError("a state is what state_dict() returns (got an empty dict); None begins at the start")
    check_form(state_dict, "header", "position", "crc32", version=VERSION)
    position = position_of(state_dict)
    stage = as_saved(stage, state_dict["header"])
    header = header_of(stage)
    check_header(state_dict["header"], header, allow)
    return stage, header, position


_ITERATORS: Final[WeakSet[ResumableIterator[Any]]] = WeakSet()


def _keep_generators() -> None:
    """Has the generators never closed: in a forked process that would run the parent's `finally`s, on connections and files that
    it shares; where the interpreter ends, with modules that are empty."""
    for iterator in _ITERATORS:
        if iterator._items is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator._items))


os.register_at_fork(after_in_child=_keep_generators)
atexit.register(_keep_generators)


def in_use() -> RuntimeError:
    return RuntimeError(
        "this iterator is in use: another thread is inside its `next`, or a function that it runs calls it; give "
        "each thread an iterator of its own, or have one thread hand the items on through a queue"
    )


def _no_end(error: StopIteration) -> RuntimeError:
    return RuntimeError(f"a function or an object of yours raised StopIteration ({error}), which is no end of the data")


def _interrupt(error: BaseException, outer: BaseException | None) -> BaseException | None:
    """The Ctrl-C while which was handled an error came up, such as threading's "cannot release un-acquired lock"; not one
    that the caller handles already."""
    here: BaseException | None = error
    while here is not None and here is not outer:
        if isinstance(here, KeyboardInterrupt | SystemExit):
            return here
        here = here.__cause__ or here.__context__  # a thread that raises an error again may give it another context
    return None


_LARGE: Final = 31 << 20


@cache
def _keep_what_is_freed() -> None:
    """Has glibc keep what arrays of some MB took, for the next ones, as it does in any program that has freed one of 32 MB.

    At first it asks the system for each array of more than 128 KB, and gives it back at once. The system clears every page of
    it each time, and has all cores forget it: a tenth of the time of a block. What it hands out by itself it raises to the size
    of the largest such array freed so far, 32 MB at most, whether that was ever written to or not ("dynamic mmap threshold",
    mallopt(3)). Price: 10 us; 64 MB an arena at the most that stay with the process. Of other libraries nothing is changed.
    """
    np.empty(_LARGE, dtype=np.uint8)
