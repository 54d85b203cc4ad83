"""The whole chain again and again, with the next epoch; and what becomes of epochs that give nothing: whoever waits for a row of
theirs gets an error, and does not wait for ever."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from brimful.core.errors import TALLY, DataError, Tally, logger
from brimful.core.stage import Stage, State, running

T = TypeVar("T")

MOST_EPOCHS: Final = 1_000
"""A random filter may leave out every row of a small epoch now and then, but not of so many."""


@dataclass(frozen=True)
class Repeat(Stage[T]):
    """Epoch after epoch without an end, unless an epoch has no item with a row: then a warning, and the end. Stages
    that flow over the seams of epochs (`over_epochs`) run as one stream, and the data below them repeat.

    State: [epoch, upstream's state in it, 1 if the epoch has given a row]; of what flows its own.
    """

    upstream: Stage[T]
    endless = True

    @property
    def limited(self) -> Stage[Any]:
        return self.over(self.upstream.limited)

    def num_items(self, most: int | None = None) -> int | None:
        return most

    @property
    def originals(self) -> Any:
        return self.upstream.originals

    def start(self, epoch: int) -> State:
        flowing = self.upstream.over_epochs
        return [epoch, self.upstream.start(epoch), 0] if flowing is None else flowing.start(epoch)

    def items(self, at: State) -> Generator[tuple[T, State], None, None]:
        if (flowing := self.upstream.over_epochs) is not None:
            yield from flowing.items(at)
            return
        epoch, before, filled = first, *_ = at
        while True:
            passed(self, epoch - first)
            with running(self.upstream, before) as items:
                for item, after in items:
                    filled = int(filled or getattr(item, "num_rows", 1) > 0)
                    yield item, [epoch, after, filled]
            if not filled:
                logger.warning("repeat: epoch %d has no sample; the stream ends here", epoch)
                return
            epoch += 1
            before = self.upstream.start(epoch)
            filled = 0


def endless(stage: Stage[T]) -> Stage[T]:
    """Epoch after epoch, for a stage that flows over their seams."""
    return stage.over_epochs or Repeat(stage)


# -- epochs that give nothing --------------------------------------------------------------------------------------------


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
