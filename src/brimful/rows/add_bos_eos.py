"""A token before each sample and one after it."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.core.errors import settle
from brimful.rows.blocks import Block
from brimful.rows.blockwise import Blockwise
from brimful.rows.ragged import list_array, ragged, surround, with_column


@dataclass(frozen=True)
class AddBosEos(Blockwise):
    """Puts `bos_token_id` before and `eos_token_id` after the tokens of each sample (None: nothing)."""

    bos_token_id: int | None
    eos_token_id: int | None
    column: str

    def __post_init__(self) -> None:
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is not None:
                settle(self, name)

    def apply(self, block: Block) -> Block:
        tokens = surround(ragged(block, self.column), self.bos_token_id, self.eos_token_id)
        return with_column(block, self.column, list_array(tokens.values, tokens.offsets))
