"""Opens a finished store by its path, and verifies it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from brimful.core.errors import DataError, check_path
from brimful.store.folder import Folder
from brimful.store.local import LocalFolder
from brimful.store.remote import RemoteFolder


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL for fsspec.

    >>> is_remote("s3://bucket/store"), is_remote("simplecache::memory://store"), is_remote("/data/store")
    (True, True, False)
    """
    return "://" in os.fspath(path) or "::" in os.fspath(path)


def folder_of(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None, timeout_seconds: float = 60.0
) -> Folder:
    """The folder of a store, local or remote."""
    check_path("path", path)
    name = os.fspath(path)
    if is_remote(name):
        return RemoteFolder(name, storage_options or {}, timeout_seconds)
    return LocalFolder(os.path.expanduser(name))


def verify_store(
    path: str | os.PathLike[str],
    report: Callable[[int], None] = lambda bytes: None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
) -> list[str]:
    """Reads every byte of a finished store again. Gives a sentence for each file that is missing or damaged, none if it is whole.

    Args:
        path: a local folder, or one behind fsspec.
        report: is told how many bytes were read since the last call.
        storage_options: for fsspec.
        timeout_seconds: how long a request may take.
    Raises:
        FileNotFoundError: there is no store, or one that is not finished.
        StateError: another release of brimful wrote it.
        TimeoutError: a remote file does not come.
    Price: about .7 ns a byte; of a remote store, 64 MB held.
    """
    folder = folder_of(path, storage_options, timeout_seconds)
    try:
        manifest = folder.manifest
    except DataError as error:
        return [str(error)]
    problems = []
    for file in [*manifest.files, *manifest.side_files]:
        try:
            problems.append(file.damage(folder.path, folder.sha256(file)))
        except DataError as error:
            problems.append(str(error))
        report(file.bytes)
    return list(filter(None, problems))
