"""A token before each sample and one after it, where they are not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.rows.bos_eos import BosEos
from brimful.tables.ragged import Ragged, surround


@dataclass(frozen=True)
class EnsureBosEos(BosEos):
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


def bos_eos_of(tokenizer: Any) -> tuple[int | None, int | None]:
    """The BOS and EOS ids of a transformers tokenizer; None for one that it does not have.

    Raises:
        TypeError: the tokenizer does not say which its BOS and EOS tokens are.
        ValueError: it has neither.
    """
    if not hasattr(tokenizer, "bos_token_id") or not hasattr(tokenizer, "eos_token_id"):
        raise TypeError(
            f"ensure_bos_eos needs a tokenizer with bos_token_id and eos_token_id (got {type(tokenizer).__name__}); "
            "name the ids with add_bos_eos"
        )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None and eos is None:
        raise ValueError(
            f"ensure_bos_eos needs a tokenizer with a BOS or an EOS token ({type(tokenizer).__name__} has neither); "
            "name the ids with add_bos_eos"
        )
    return bos, eos
