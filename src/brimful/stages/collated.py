"""Batches to tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from brimful.stream import Stage, State, running, runtime
from brimful.windows import Batch


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Each batch as a dict of padded tensors, or what `collate_fn` makes of its samples; the state is passed on."""

    upstream: Stage[Batch]
    length_columns: tuple[str, ...]
    pad_values: dict[str, int]
    left: bool
    collate_fn: Callable[[list[dict[str, Any]]], Any] | None = runtime(None)

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        from brimful import collate  # imports torch, which descriptions and plans do without

        with running(self.upstream, at) as batches:
            for batch, after in batches:
                if self.collate_fn is not None:
                    yield collate.by_function(batch, self.collate_fn), after
                else:
                    yield collate.padded(batch, self.length_columns, self.pad_values, self.left), after
