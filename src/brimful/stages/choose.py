"""Some of the columns, or other names for them."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.choice import Choice
from brimful.rows import Block, Blockwise


@dataclass(frozen=True)
class Choose(Blockwise):
    """The rows with the columns of a choice. Price: nothing is copied."""

    choice: Choice

    def apply(self, block: Block) -> Block:
        return self.choice.apply(block)
