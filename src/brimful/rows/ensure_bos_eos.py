"""A token before each sample and one after it, where they are not there yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.rows.bos_eos import BosEos
from brimful.rows.ragged import Ragged, surround


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
