"""Batches over several epochs, and the place that they have got to."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from brimful import Batches
from brimful.cli.saved import is_state, load_json
from brimful.core.iterator import ResumableIterator
from brimful.core.stats import Stats


class Place(NamedTuple):
    """Where a run is.

    Args:
        epoch: from 0.
        batches: taken so far, over all epochs.
        data: what that epoch's iterator gave as its state; None before its first batch.
    """

    epoch: int
    batches: int
    data: dict[str, Any] | None

    @classmethod
    def load(cls, path: Path) -> Place:
        """The place that a file holds; the very beginning where there is no file.

        Raises:
            ValueError: the file holds something else.
        """
        if not path.exists():
            return BEGINNING
        saved = load_json(path)
        fits = isinstance(saved, dict) and saved.keys() == set(cls._fields)
        if not fits or not (saved["data"] is None or is_state(saved["data"])):
            raise ValueError(f"{path} holds no place of `brimful run`: it must have {', '.join(cls._fields)}")
        return cls(**saved)


BEGINNING = Place(0, 0, None)


class Epochs:
    """The batches of each epoch in turn, from a place on.

    Args:
        batches: the pipeline, which does not repeat by itself.
        count: epochs.
        begin: the place to begin at.
    """

    def __init__(self, batches: Batches, count: int, begin: Place) -> None:
        self.stats: list[Stats] = []
        self._batches, self._count = batches, count
        self._epoch, self._taken, self._data = begin
        self._iterator: ResumableIterator[Any] | None = None

    def run(self) -> Generator[dict[str, Any], None, None]:
        """The batches. To be run once, and closed."""
        for epoch in range(self._epoch, self._count):
            self._epoch = epoch
            with self._batches.iter(self._data, epoch=epoch) as self._iterator:
                self.stats.append(self._iterator.stats)
                for batch in self._iterator:
                    self._taken += 1
                    yield batch
            self._data = None

    def place(self) -> Place:
        """The place after the last batch taken."""
        return Place(self._epoch, self._taken, self._data if self._iterator is None else self._iterator.state_dict())
