"""Batches to tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from brimful.stream import Stage, State, running
from brimful.windows import Batch, Packs


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Each batch as a dict of tensors, or what `collate_fn` makes of its samples; the state is passed on."""

    upstream: Stage[Batch | Packs]
    length_columns: tuple[str, ...]
    pad_values: dict[str, int]
    left: bool = False
    weighted: bool = False
    hf_flash_attention: bool = False
    collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        from brimful import collate  # imports torch, which descriptions and plans do without

        with running(self.upstream, at) as batches:
            for batch, after in batches:
                if self.collate_fn is not None:
                    tensors = collate.by_function(batch, self.collate_fn)
                elif isinstance(batch, Packs):
                    column = self.length_columns[0]
                    tensors = collate.packed(batch, column, self.pad_values, self.hf_flash_attention)
                else:
                    tensors = collate.padded(batch, self.length_columns, self.pad_values, self.left, self.weighted)
                yield tensors if batch.weight is None else collate.weighed(tensors, batch.weight, self.pad_values), after
