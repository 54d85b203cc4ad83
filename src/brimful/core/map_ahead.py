"""A function of items in threads, some of them ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from brimful.core.background import Outcome, Workers, belongs

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    fn: Callable[[T], R], items: Iterator[tuple[T, Any]], workers: Workers, ahead: int
) -> Generator[tuple[R, Any], None, None]:
    """`(fn(item), state)` for each `(item, state)`, in order, up to `ahead` of them computed early.

    An error of `items` is raised after the results of what came before it.
    """
    failure: Exception | None = None
    pending: deque[tuple[Outcome[R], Any]] = deque()
    try:
        while True:
            try:
                item, state = next(items)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            future = workers.submit(fn, item)
            belongs(future)  # the workers may go on for others when this has been closed
            pending.append((future, state))
            del item
            if len(pending) >= ahead:
                yield _settled(pending.popleft())
        while pending:
            yield _settled(pending.popleft())
    finally:
        for future, _ in pending:
            future.cancel()
    if failure is not None:
        raise failure


def _settled(pending: tuple[Future[R], Any]) -> tuple[R, Any]:
    future, state = pending
    return future.result(), state
