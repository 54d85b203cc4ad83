"""The meaning of a store's error: whether to try again, whether the object is there, whether it may have changed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

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
