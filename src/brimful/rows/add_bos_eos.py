"""A token before each sample and one after it, whatever it has there."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.rows.bos_eos import BosEos
from brimful.tables.ragged import Ragged, surround


@dataclass(frozen=True)
class AddBosEos(BosEos):
    """Puts both around each sample."""

    def added(self, tokens: Ragged) -> Ragged:
        return surround(tokens, self.bos_token_id, self.eos_token_id)
