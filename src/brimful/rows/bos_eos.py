"""A token before each sample and one after it: always, or where they are not there yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import settle
from brimful.rows.blocks import Block
from brimful.rows.blockwise import Blockwise
from brimful.rows.ragged import Ragged, list_array, ragged, surround, with_column


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
        tokens = self.added(ragged(block, self.column))
        return with_column(block, self.column, list_array(tokens.values, tokens.offsets))

    def added(self, tokens: Ragged) -> Ragged:
        return surround(tokens, self.bos_token_id, self.eos_token_id)


@dataclass(frozen=True)
class EnsureBosEos(AddBosEos):
    """Puts BOS before each sample that does not begin with it, and EOS after each that does not end with it (None: neither);
    where both are one id, EOS after each that neither begins nor ends with it. Price: a copy of the tokens."""

    def added(self, tokens: Ragged) -> Ragged:
        bos, eos = self.bos_token_id, self.eos_token_id
        begins, ends = _is_at(tokens, tokens.offsets[:-1], bos), _is_at(tokens, tokens.offsets[1:] - 1, eos)
        if bos == eos:
            bos, ends = None, begins | ends
        return surround(tokens, bos, eos, ~begins, ~ends)


def _is_at(tokens: Ragged, places: NDArray[np.int64], token: int | None) -> NDArray[np.bool_]:
    """Which rows have a token at these places, one a row; an empty row has none."""
    out = np.zeros(len(places), dtype=bool)
    some = tokens.offsets[:-1] < tokens.offsets[1:]
    out[some] = tokens.values[places[some]] == token
    return out
