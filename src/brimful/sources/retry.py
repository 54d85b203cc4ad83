"""How often a store is asked, and the meaning of its errors: whether to ask again, whether an object is there or has changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from brimful.plan.errors import DataError, logger

T = TypeVar("T")

BACK_OFF_SECONDS: Final = 0.1
"""Before the second attempt, and twice as long before each further one."""
LEAST_ATTEMPTS: Final = 3
"""One attempt takes a third of the time at most: a connection that is dead is not all there is."""
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 412
_AGAIN: Final = (408, 425, 429, PRECONDITION_FAILED)
"""The last is said of what has changed, which is looked at first; or by a second server with another tag for the same."""
_NETWORK: Final = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("http.client", "HTTPException"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
)


class OtherContentError(OSError):
    """A reply is of another content of the object than was seen before."""


class RefusedError(DataError):
    """The store will not give an object, however often it is asked."""


async def repeated(
    name: str,
    timeout_seconds: float,
    attempt: Callable[[float], Awaitable[T]],
    look: Callable[[Exception], Awaitable[object]],
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """The result of an attempt, which is repeated until it has one.

    Args:
        name: of what is asked for.
        timeout_seconds: for all attempts together.
        attempt: takes how many seconds it may last.
        look: looks whether an object has changed, after each error but a DataError, which is raised.
        sleep: between two attempts.
    Raises:
        FileNotFoundError: there is no such thing.
        RefusedError: another attempt would fare no better.
        TimeoutError: no time is left.
    """
    until, wait, count = time.monotonic() + timeout_seconds, BACK_OFF_SECONDS, 1
    while True:
        try:
            return await attempt(min(timeout_seconds / LEAST_ATTEMPTS, until - time.monotonic()))
        except DataError:
            raise
        except Exception as error:
            await look(error)
            if absent(error):
                raise
            if not transient(error):
                raise RefusedError(f"{name} cannot be read: {said(error)}") from error
            if time.monotonic() + wait >= until:
                raise TimeoutError(
                    f"nothing came from {name} within {timeout_seconds:g} seconds (attempts: {count}; the last: "
                    f"{said(error)}); raise timeout_seconds or check the store"
                ) from error
            logger.info("reading %s again: %s", name, said(error))
        await sleep(wait)
        wait, count = 2 * wait, count + 1


def without_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing which is not at hand, so that it needs no loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for something")


def transient(error: BaseException) -> bool:
    """Whether another attempt may go better."""
    status = http_status(error)
    if status:
        return status >= 500 or status in _AGAIN
    if isinstance(error, TimeoutError):
        return True
    known = tuple(getattr(sys.modules[module], name) for module, name in _NETWORK if module in sys.modules)
    # Its cause may bear a status that nobody sent: aiohttp's 400 for a body that breaks off.
    if isinstance(error, known) and not isinstance(error, ValueError):
        return True
    if error.__cause__ is not None:  # "not found" is what fsspec says of whatever goes wrong
        return transient(error.__cause__)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError | ValueError):
        return False
    return isinstance(error, (OSError, EOFError))


def http_status(error: BaseException) -> int:
    """The HTTP status of an error of aiohttp, gcsfs, botocore, requests or huggingface_hub; 0 where there is none."""
    reply = getattr(error, "response", None)
    if isinstance(getattr(reply, "status_code", None), int):
        return int(reply.status_code)  # type: ignore[union-attr]
    if isinstance(reply, Mapping):
        return int(reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    status = error.status if hasattr(error, "status") else getattr(error, "code", 0)
    return status if isinstance(status, int) else 0


def absent(error: BaseException) -> bool:
    """Whether an object is not there; of other failures too fsspec says that it was not found."""
    if not isinstance(error, FileNotFoundError) or transient(error):
        return False
    return error.__cause__ is None or http_status(error.__cause__) in (0, NOT_FOUND)


def may_have_changed(error: BaseException) -> bool:
    """Whether an error is such as comes where an object was replaced."""
    changed = (
        isinstance(error, EOFError | OtherContentError)
        or http_status(error) == PRECONDITION_FAILED
        or not transient(error)
    )
    return changed or (error.__cause__ is not None and may_have_changed(error.__cause__))


def said(error: BaseException) -> str:
    error = error.__cause__ or error if isinstance(error, FileNotFoundError) else error
    return f"{type(error).__name__} {error}" if str(error) else type(error).__name__
