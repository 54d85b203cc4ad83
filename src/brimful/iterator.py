"""One run over a stage: hands out its items, and remembers the state after the last one that the caller took."""

from __future__ import annotations

import copy
from collections.abc import Collection, Generator, Iterator
from contextvars import copy_context
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, TypeVar

from brimful.errors import TALLY, BrokenError, StateError, Tally
from brimful.stats import Stats
from brimful.stream import END, VERSION, Stage, State, allowed, check_header, describe

T = TypeVar("T")


class ResumableIterator(Iterator[T], Generic[T]):
    """The items of a data set, from its start or from a saved state.

    A context manager. `state_dict()` may be called at any time, also after Ctrl-C or `close`: it is plain JSON, and
    describes the place after the last item that `next` returned, whatever was read ahead. After Ctrl-C, `next` goes on.
    """

    def __init__(
        self, stage: Stage[T], state_dict: dict[str, Any] | None, allow: Collection[str], epoch: int = 0
    ) -> None:
        self._stage = stage
        different = allowed(allow)
        self._items: Generator[tuple[T, State], None, None] | None = None
        self._error: Exception | None = None
        self._closed = False
        tally = Tally()
        self._context = copy_context()
        self._context.run(TALLY.set, tally)  # before the first use: of indexed data a filter counts what it leaves out
        self._header = self._context.run(describe, stage)
        if state_dict is None:
            self._state: State = self._context.run(stage.start, epoch)
        else:
            self._state = self._position(state_dict, different)
        self.stats = Stats(tally)

    def __next__(self) -> T:
        if self._error is not None:
            raise BrokenError(f"this iterator failed earlier: {self._error}") from self._error
        if self._closed or self._state == END:
            self.close()
            raise StopIteration
        before = self._state
        began = perf_counter()
        try:
            if self._items is None:
                self.stats.began()
                self._items = self._context.run(self._stage.items, self._state)
            item, self._state = self._context.run(next, self._items)
            self.stats.seconds_waited += perf_counter() - began
            self.stats.took(item)
            return item
        except StopIteration:
            self._state = before
            self.close()
            raise
        except Exception as error:
            self._error = error
            self._stop()
            raise
        except BaseException:  # Ctrl-C: the item is not handed out, so the state is the one before it
            self._state = before
            self._stop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The place after the last item taken, as plain JSON that the caller may keep or change.

        Raises:
            BrokenError: the iterator has failed.
        """
        if self._error is not None:
            raise BrokenError(f"a failed iterator has no state: {self._error}") from self._error
        return copy.deepcopy({"version": VERSION, "header": self._header, "position": self._state})

    def close(self) -> None:
        """Ends the run: its threads and files are closed, `next` raises StopIteration, `state_dict` still answers."""
        self._closed = True
        self._stop()

    def __enter__(self) -> ResumableIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_items", None) is not None:
            self._stop()

    def _stop(self) -> None:
        if self._items is not None:
            items, self._items = self._items, None
            self._context.run(items.close)

    def _position(self, state_dict: dict[str, Any], allow: frozenset[str]) -> State:
        if not isinstance(state_dict, dict) or state_dict.keys() != {"version", "header", "position"}:
            raise StateError(
                "a state is a dict of version, header and position, as state_dict() returns it "
                f"(got {list(state_dict) if isinstance(state_dict, dict) else type(state_dict).__name__})"
            )
        if state_dict["version"] != VERSION:
            raise StateError(
                f"this state has version {state_dict['version']!r}, but this release of brimful reads version {VERSION}"
            )
        check_header(state_dict["header"], self._header, allow)
        return copy.deepcopy(state_dict["position"])
