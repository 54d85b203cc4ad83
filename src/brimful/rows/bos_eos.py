"""A token before each sample and one after it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from brimful.plan.errors import settle
from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.ragged import Ragged, list_array, ragged, with_column


@dataclass(frozen=True)
class BosEos(Blockwise):
    """Abstract: puts `bos_token_id` before and `eos_token_id` after the tokens of samples (None: nothing)."""

    bos_token_id: int | None
    eos_token_id: int | None
    target_column: str

    def __post_init__(self) -> None:
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is not None:
                settle(self, name)

    def apply(self, block: Block) -> Block:
        tokens = self.added(ragged(block, self.target_column))
        return with_column(block, self.target_column, list_array(tokens.values, tokens.offsets))

    @abstractmethod
    def added(self, tokens: Ragged) -> Ragged:
        """The tokens of a block, with these."""
