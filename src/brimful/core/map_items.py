"""A user's function on each batch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from brimful.core.deferred import then
from brimful.core.errors import StageError, name_of
from brimful.core.stage import Stage, State, running


@dataclass(frozen=True)
class MapItems(Stage[Any]):
    """`fn(item)` in place of each item; the state is passed on."""

    verb = "map"
    itemwise = True

    upstream: Stage[Any]
    fn: Callable[[Any], Any]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        with running(self.upstream, at) as items:
            for item, after in items:
                yield then(item, self._mapped), after

    def _mapped(self, item: Any) -> Any:
        try:
            return self.fn(item)
        except Exception as error:
            message = f"map({name_of(self.fn)}) failed on a batch: {type(error).__name__}: {error}"
            raise StageError(message) from error
