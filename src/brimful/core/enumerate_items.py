"""The number of each batch in the stream."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from brimful.core.deferred import then
from brimful.core.stage import END, Stage, State, running


@dataclass(frozen=True)
class EnumerateItems(Stage[Any]):
    """(number, item) pairs, from 0. State: [upstream's state, the next number]."""

    verb = "enumerate"

    upstream: Stage[Any]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0]

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        before, number = at
        with running(self.upstream, before) as items:
            for item, after in items:
                pair, number = then(item, partial(_pair, number)), number + 1
                yield pair, END if after == END else [after, number]


def _pair(number: int, item: Any) -> tuple[int, Any]:
    return number, item
