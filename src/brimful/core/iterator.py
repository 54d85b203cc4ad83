"""One run over a stage: hands out its items, and remembers the state after the last one that the caller took."""

from __future__ import annotations

import copy
import ctypes
import os
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, TypeVar, cast
from weakref import WeakSet

from brimful.core.allocator import keep_what_is_freed
from brimful.core.background import JOIN_SECONDS, KEEPER, RUN, Running, check_process, close_all, stop_all
from brimful.core.errors import TALLY, BrokenError, StateError, Tally
from brimful.core.later import AHEAD, HANDED_ON, Later
from brimful.core.lessons import Known, Lessons, learner_of
from brimful.core.plans import PLANS
from brimful.core.states import check_form
from brimful.core.stats import Stats
from brimful.core.stream import END, VERSION, Stage, State, allowed, check_header, describe

T = TypeVar("T")


class ResumableIterator(Iterator[T], Generic[T]):
    """The items of a data set, from its start or from a saved state.

    A context manager. `state_dict()` may be called at any time, by any thread, also after an error, Ctrl-C or `close`: it is
    plain JSON, and describes the place after the last item that `next` returned, whatever was read ahead. After Ctrl-C,
    `next` goes on; after an error it says so for ever.

    It belongs to the process that made it, and to one thread at a time: after a fork, and while another thread is in it,
    `next` raises a RuntimeError. `close` may be called by any thread, also by a function that the run itself calls.
    """

    def __init__(
        self,
        stage: Stage[T],
        state_dict: dict[str, Any] | None,
        allow: Collection[str],
        epoch: int = 0,
        lessons: State | None = None,
    ) -> None:
        keep_what_is_freed()
        self._process = os.getpid()
        different = allowed(allow)
        self._items: Generator[tuple[T, State], None, None] | None = None
        self._running = Running(KEEPER.get())  # below it, in threads
        self._error: Exception | None = None
        self._closed = False
        tally = Tally()
        self._context = copy_context()
        self._context.run(TALLY.set, tally)  # before the first use: of indexed data a filter counts what it leaves out
        self._context.run(RUN.set, self._running)
        self._context.run(KEEPER.set, None)
        self._context.run(AHEAD.set, AHEAD.get() and HANDED_ON.get())  # else whoever takes its items is the consumer
        self._context.run(HANDED_ON.set, False)
        self._context.run(PLANS.set, None)
        self.stats = Stats(tally)
        self._stage = stage
        try:
            self._lessons = self._learning()
            self._header = self._context.run(describe, stage)
            if state_dict is None:
                state = self._context.run(stage.start, epoch)
            else:
                state = self._position(state_dict, different)
                lessons = state_dict.get("lessons")
            known = self._known(lessons)
            if known is not None and state_dict is None:
                known = known.anew()
            self._place: tuple[State, Known | None] = state, known  # one value: other threads may ask for a state
        except StopIteration as error:
            raise _no_end(error) from error
        _ITERATORS.add(self)

    def __next__(self) -> T:
        check_process(self._process)
        if self._error is not None:
            raise BrokenError(f"this iterator failed earlier: {self._error}") from self._error
        if self._closed or self._state == END:
            self._end()
            raise StopIteration
        before, outer = self._place, sys.exception()
        try:
            try:
                item, after, error = self._context.run(self._take)
            except RuntimeError:  # of `run` itself: somebody else is in this context
                raise RuntimeError(
                    "this iterator is in use: another thread is inside its `next`, or a function that it runs calls it; give "
                    "each thread an iterator of its own, or have one thread hand the items on through a queue"
                ) from None
            if error is None and after is not None and not self._closed:
                known = self._place[1]
                self._place = after, None if known is None else self._taught.took(known)
                return item
        except BaseException as caught:
            if isinstance(caught, Exception):
                raise
            self._place = before  # Ctrl-C: the item is not handed out, so the state is the one before it
            self._stop()
            raise
        if self._closed or error is None:
            self._end()
            raise StopIteration
        interrupt = _interrupt(error, outer)
        if interrupt is None and isinstance(error, Exception):
            self._error = error
        self._stop()
        if interrupt not in (None, error):
            raise interrupt from error
        raise error

    def state_dict(self) -> dict[str, Any]:
        """The place after the last item taken, as plain JSON that the caller may keep or change."""
        position, known = self._place
        state = copy.deepcopy({"version": VERSION, "header": self._header, "position": position})
        return state if known is None else state | {"lessons": self._taught.to_json(known)}

    def learn(self, batch: Any, peak_bytes: float) -> None:
        """Tells what a batch took, to a policy that learns: `MemoryBudget(..., learn=True)`.

        What is told while the batches of window w are taken counts from window w + 2 on, which nothing that reads ahead
        (`prefetch`, `to_device`) plans before: so told the same after each batch, a run has the same batches, whatever reads
        ahead, and wherever it was resumed. What is told before `state_dict()` is in the state. A run that is told nothing has
        the batches of `learn=False`.

        Of several ranks (`shard`) each tells what its own batches took. They tell each other through torch.distributed's
        key-value store: a window is planned, by all alike, by what all were told before the step in which the window before it
        begins. The state has what this rank was told since all last heard of each other: resume each rank from its own, or all,
        also of another world size, from the states joined by `bf.merge_states`, which is exact. From one rank's state alone all
        go on alike, but for the lessons of the other ranks in the window at work and the one before.

        Args:
            batch: as it was run, padded, with its length columns; or its shape: (batch, length), of pairs (batch, (source,
                target)).
            peak_bytes: as the peaks of the model were measured, the model's parameters included; on CUDA
                `torch.cuda.reset_peak_memory_stats()` before the step, `torch.cuda.max_memory_allocated()` after it.
                `math.inf` where it ran out of memory: then as much as the limit is learnt, if the model expected less.
                `oom_guard(..., learn=it.learn)` does all this.
        Raises:
            ValueError: nothing here learns; a batch whose shape is not to be seen; a peak that is none.
            (of `next`) TimeoutError, RankError: another rank did not come in time, failed or left; it is named.
        Price: .3 ms, of several ranks for each lesson of any. State: up to three times the model, 1 to 5 kB each; of several
            ranks also 30 bytes for each lesson of this one in two windows.
        Example:
            >>> import brimful as bf
            >>> model = bf.MemoryModel.fit([(1, 8), (8, 8), (8, 16)], [1008, 1064, 1128])
            >>> data = bf.from_sequence([{"input_ids": [1] * 16}] * 64)
            >>> sizes = []
            >>> with data.batch(bf.MemoryBudget(model, 1400, learn=True), window=16).iter() as it:
            ...     for batch in it:
            ...         sizes.append(len(batch["lengths"]))
            ...         it.learn(batch, 1000 + 20 * sizes[-1])
            >>> sizes  # of a window each, and of two windows that were planned by what the first one took
            [16, 16, 14, 2, 2, 14]
        """
        lessons, state = self._taught, self._place[0]
        self._place = state, lessons.after(self._so_far, batch, peak_bytes)

    @property
    def learnt(self) -> Any:
        """The model as it is by now, with all that it was told: to be saved, or given to another policy."""
        return self._taught.learnt(self._so_far)

    @property
    def lessons(self) -> State | None:
        """What was learnt, as plain JSON, for `Batches.iter(epoch=..., lessons=...)`: then the next epoch begins with it. None
        where nothing learns."""
        known = self._place[1]
        return None if known is None else self._taught.to_json(known.anew())

    @property
    def _taught(self) -> Lessons:
        if self._lessons is None:
            raise ValueError(
                "nothing here learns: no policy has learn=True, as bf.MemoryBudget(model, limit_bytes, learn=True)"
            )
        return self._lessons

    @property
    def _so_far(self) -> Known:
        known = self._place[1]
        return self._taught.start() if known is None else known

    @property
    def _state(self) -> State:
        return self._place[0]

    @property
    def over(self) -> bool:
        """Whether the last item has been taken, as far as its state says so."""
        return bool(self._state == END)

    def close(self) -> None:
        """Ends the run: its threads and files are closed, `next` raises StopIteration, `state_dict` still answers.

        A `next` that is under way in another thread, or that called this, hands out no item and closes what is left.
        """
        self._closed = True
        if self._process != os.getpid():
            return
        stop_all(self._running)
        if RUN.get() is self._running:
            return
        until = time.monotonic() + JOIN_SECONDS
        while not self._stop() and time.monotonic() < until:
            time.sleep(0.001)

    def __enter__(self) -> ResumableIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_place") and not ending() and self._process == os.getpid():
            self._stop()  # as the interpreter ends all has been stopped, and modules may be empty

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator cannot be copied or pickled: it holds threads and open files; save its state_dict(), and go on with "
            "data.iter(state)"
        )

    def _take(self) -> tuple[T, State | None, BaseException | None]:
        """An item and the state after it, neither at the end; an error is returned, so that it is not one of whoever calls."""
        nothing, known = cast(T, None), self._place[1]
        try:
            began = time.perf_counter()
            if self._items is None:
                self.stats.began()
                if known is not None:
                    known = self._taught.begin(known, self._state)
                    self._place = self._state, known
                self._items = self._stage.items(self._state)
            if known is not None:
                self._taught.ask(known)
            item, after = next(self._items, (nothing, None))
            self.stats.waited(began, time.perf_counter())
            if isinstance(item, Later):
                item = cast(T, item.then(self._made_later))
            elif after is not None:
                self.stats.took(item)
            return item, after, None
        except StopIteration as error:
            wrong = _no_end(error)
            wrong.__cause__ = error
            return nothing, None, wrong
        except BaseException as error:
            return nothing, None, error

    def _made_later(self, item: T) -> T:
        self.stats.took(item)
        return item

    def _end(self) -> None:
        """Closes it after its last item."""
        if self._lessons is not None and not self._closed:
            self._lessons.end()
        self.close()

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
        items, self._items = self._items, None
        try:
            if self._lessons is not None:
                self._lessons.stop()  # before a thread that waits for it is waited for
            if items is not None:
                items.close()
            close_all(self._running)
        except BaseException as error:
            return error
        return None

    def _position(self, state_dict: dict[str, Any], allow: frozenset[str]) -> State:
        check_form(state_dict, "header", "position", version=VERSION, perhaps={"lessons"})
        check_header(state_dict["header"], self._header, allow)
        if ("lessons" in state_dict) != (self._lessons is not None):
            has = "lessons" if "lessons" in state_dict else "no lessons"
            raise StateError(f"this state has {has}, unlike those of this pipeline; use it as it was saved")
        return copy.deepcopy(state_dict["position"])

    def _learning(self) -> Lessons | None:
        """What lessons are told to; None where no policy learns."""
        learner = learner_of(self._stage)
        if learner is not None and self._context.run(AHEAD.get):
            raise ValueError(
                "batches of a policy that learns (learn=True) cannot be read by AsyncLoader, which takes them ahead of use: "
                "when a lesson counts would hang on timing; say .to_device(device, prefetch=2) instead"
            )
        return None if learner is None else Lessons(learner, self._stage)

    def _known(self, saved: State | None) -> Known | None:
        """What is known where the run begins."""
        if self._lessons is not None:
            return self._lessons.start() if saved is None else self._lessons.from_json(saved)
        if saved is not None:
            raise ValueError("lessons are for a policy that learns, and none here does: MemoryBudget(..., learn=True)")
        return None


_ITERATORS: Final[WeakSet[ResumableIterator[Any]]] = WeakSet()


def _forked() -> None:
    """In a forked process the generators are never closed, not even at its end: that would run the parent's `finally`s, on
    connections and files that it shares."""
    for iterator in _ITERATORS:
        if iterator._items is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator._items))


os.register_at_fork(after_in_child=_forked)


def _no_end(error: StopIteration) -> RuntimeError:
    return RuntimeError(f"a function or an object of yours raised StopIteration ({error}), which is no end of the data")


def _interrupt(error: BaseException, outer: BaseException | None) -> BaseException | None:
    """The Ctrl-C while which was handled an error came up, such as threading's "cannot release un-acquired lock"; not one
    that the caller handles already."""
    here: BaseException | None = error
    while here is not None and here is not outer:
        if isinstance(here, KeyboardInterrupt | SystemExit):
            return here
        here = here.__context__
    return None
