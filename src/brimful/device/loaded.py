"""What any loader gives, each batch with the loader's own state after it."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from brimful.core.stream import Stage, State, runtime


@dataclass(frozen=True)
class Loaded(Stage[Any]):
    """The batches of a loader from where it stands; its state, where it has one, else how many it gave.

    `start` and `items` are for one run each, in this order: a loader is sent to a place by its own `load_state_dict`.
    """

    loader: Iterable[Any] = runtime()

    def start(self, epoch: int) -> State:
        return self._state(0)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        batches = iter(self.loader)
        close = getattr(batches, "close", None)
        try:
            for number, batch in enumerate(batches, 1):
                yield batch, self._state(number)
        finally:
            if close is not None:
                close()

    def _state(self, number: int) -> State:
        state_dict = getattr(self.loader, "state_dict", None)
        return number if state_dict is None else copy.deepcopy(state_dict())
