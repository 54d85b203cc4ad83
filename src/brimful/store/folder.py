"""Where a store lies: a local folder, or one behind fsspec."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from brimful.store.fetch import Layout, StoredRows
from brimful.store.manifest import Manifest, SideFile


class Folder(ABC):
    """Abstract: the folder of a finished store.

    Args:
        path: as it was given, without a slash at the end.
    """

    path: str

    @property
    def name(self) -> str:
        """What the places of its rows are called by."""
        return os.path.basename(self.path)

    @abstractmethod
    def manifest(self) -> Manifest:
        """Reads the manifest.

        Raises:
            FileNotFoundError: there is no store here, or one that is not finished.
            StateError: another release of brimful wrote it.
            DataError: it is damaged.
        """

    @abstractmethod
    def numbers(self, side: SideFile) -> NDArray[Any]:
        """The array of a side file.

        Raises:
            DataError: it is missing or damaged.
        """

    @abstractmethod
    def sha256(self, file: SideFile) -> str:
        """The checksum of a file, all of which is read.

        Raises:
            DataError: it is missing, or has another size.
        """

    @abstractmethod
    def rows(
        self, manifest: Manifest, layout: Layout, columns: Sequence[str], lengths: Callable[[str], NDArray[Any]]
    ) -> StoredRows:
        """The rows of these columns; `lengths`: of the rows, by list column."""
