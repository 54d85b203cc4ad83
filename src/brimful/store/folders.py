"""Which kind of folder a path names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from brimful.store.folder import Folder
from brimful.store.local import LocalFolder
from brimful.store.remote import RemoteFolder


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one of fsspec's.

    >>> is_remote("s3://bucket/store"), is_remote("simplecache::memory://store"), is_remote("/data/store")
    (True, True, False)
    """
    return "://" in os.fspath(path) or "::" in os.fspath(path)


def folder_of(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None, timeout_seconds: float = 60.0
) -> Folder:
    """The folder of a store, local or remote."""
    name = os.fspath(path)
    if is_remote(name):
        return RemoteFolder(name, storage_options or {}, timeout_seconds)
    return LocalFolder(os.path.expanduser(name))
