"""Some of the columns, or other names for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.choice import Choice


@dataclass(frozen=True)
class Choose(Blockwise):
    """The rows with the columns of a choice. Price: nothing is copied."""

    choice: Choice

    @property
    def verb(self) -> str:
        return self.choice.verb

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        return self.choice.renamed(self.upstream.tokenizers())

    def texts(self) -> tuple[str, ...]:
        return tuple(self.choice.renamed(dict.fromkeys(self.upstream.texts())))

    def settings(self) -> dict[str, Any]:
        return self.choice.settings()

    def apply(self, block: Block) -> Block:
        return self.choice.apply(block)
