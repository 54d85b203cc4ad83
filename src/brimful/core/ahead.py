"""Items made ahead of use, by a thread."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from brimful.core.deferred import items_ahead
from brimful.core.errors import settle
from brimful.core.stage import Stage, State, runtime

T = TypeVar("T")


@dataclass(frozen=True)
class Ahead(Stage[T]):
    """Up to `depth` items of `upstream` ready before they are asked for, and one in the making; nothing else changes."""

    verb = ""

    upstream: Stage[T]
    depth: int = runtime()
    name: str = runtime("ahead")
    transparent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, "depth", 1, "item")

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[T, State], None, None]:
        yield from items_ahead(lambda: self.upstream.items(at), self.depth, self.name)
