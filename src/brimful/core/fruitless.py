"""Epochs that repeat and give nothing: who waits for a row of theirs is told, and does not wait for ever."""

from __future__ import annotations

from typing import Final

from brimful.core.errors import TALLY, DataError, Tally, logger

MOST_EPOCHS: Final = 1_000
"""A random filter may leave out every row of a small epoch now and then, but not of so many."""


def passed(repeated: object, epochs: int) -> None:
    """Notes that what repeats has given so many epochs in this run."""
    tally = TALLY.get()
    if tally is not None:
        tally.epochs[id(repeated)] = epochs


class Waiting:
    """Somebody who waits for rows: after 2 epochs without one there is a warning, after 1,000 an error."""

    def __init__(self) -> None:
        self._tally = TALLY.get() or Tally()
        self._seen: dict[int, int] = {}
        self._warned = False

    def got(self, rows: int) -> None:
        """A block of so many rows came.

        Raises:
            DataError: everything that repeats has given 1,000 epochs since the last row.
        """
        now = self._tally.epochs
        if not now:
            return
        if rows:
            self._seen = dict(now)
            return
        since = min(epochs - self._seen.get(which, 0) for which, epochs in list(now.items()))
        if since >= MOST_EPOCHS:
            raise DataError(
                f"repeat: {since:,} epochs went by without a sample: what follows `repeat` (a filter, on_error='skip', chunks "
                "longer than the data) leaves out every one; filter before you repeat, or correct it"
            )
        if since >= 2 and not self._warned:
            self._warned = True
            logger.warning(
                "repeat: %d epochs went by without a sample; what follows leaves out every one so far", since
            )
