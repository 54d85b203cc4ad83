"""What any loader gives, each batch with the loader's own state after it."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from brimful.core.ahead import HANDED_ON
from brimful.core.consumed import snapshot_of
from brimful.core.stage import Stage, State, runtime


@dataclass(frozen=True)
class Loaded(Stage[Any]):
    """The batches of a loader from where it stands.

    `passes_on`: the loader is one of ours, which hands on what the consumer's thread is to make.

    State: a snapshot of the loader's own, where it has one: then it is sent to a place by its own `load_state_dict` before. Else
    the number of batches that it gave; so many are passed over.
    """

    loader: Iterable[Any] = runtime()
    passes_on: bool = runtime(False)

    def start(self, epoch: int) -> State:
        try:
            return self._state(0)
        except (AttributeError, NotImplementedError, TypeError):  # an adapter around what has no state
            return 0

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        HANDED_ON.set(self.passes_on)
        batches = iter(self.loader)
        close = getattr(batches, "close", None)
        stateless = isinstance(at, int)
        given = at if stateless else 0
        try:
            for number, batch in enumerate(islice(batches, given, None), given + 1):
                yield batch, number if stateless else self._state(number)
        finally:
            if close is not None:
                close()

    def _state(self, number: int) -> State:
        if self.passes_on:
            return self.loader._snapshot()  # type: ignore[attr-defined]  # as the loaders of ours have it
        state_dict = getattr(self.loader, "state_dict", None)
        return number if state_dict is None else snapshot_of(copy.deepcopy(state_dict()))
