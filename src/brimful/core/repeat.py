"""The whole chain again and again, with the next epoch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from brimful.core.errors import logger
from brimful.core.fruitless import passed
from brimful.core.stage import Stage, State, running

T = TypeVar("T")


@dataclass(frozen=True)
class Repeat(Stage[T]):
    """Epoch after epoch without an end, unless an epoch has no item with a row: then a warning, and the end. What flows over
    the seams of epochs (`over_epochs`) runs as one stream, and what it reads is what repeats.

    State: [epoch, upstream's state in it, 1 if the epoch has given a row]; of what flows its own.
    """

    upstream: Stage[T]
    endless = True

    @property
    def limited(self) -> Stage[Any]:
        return self.over(self.upstream.limited)

    def num_items(self, most: int | None = None) -> int | None:
        return most

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
                    filled = int(filled or _rows(item) > 0)
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


def _rows(item: Any) -> int:
    return int(item.num_rows) if hasattr(item, "num_rows") else 1
