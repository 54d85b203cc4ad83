"""The first n batches."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from brimful.core.errors import settle
from brimful.core.stage import END, Stage, State, running


@dataclass(frozen=True)
class TakeItems(Stage[Any]):
    """The first `n` items. State: [upstream's state, items taken]."""

    verb = "take"

    upstream: Stage[Any]
    n: int

    def __post_init__(self) -> None:
        settle(self, "n", 0, "batches")

    @property
    def endless(self) -> bool:
        return False

    @property
    def limited(self) -> Stage[Any]:
        return self.over(self.upstream.limited)

    def num_items(self, most: int | None = None) -> int | None:
        return self.upstream.num_items(self.n if most is None else min(self.n, most))

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0] if self.n else END

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        before, taken = at
        with running(self.upstream, before) as items:
            for item, after in items:
                taken += 1
                yield item, END if taken == self.n or after == END else [after, taken]
                if taken == self.n:
                    return
