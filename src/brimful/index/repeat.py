"""Epoch after epoch without an end."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.core.errors import logger
from brimful.core.once import once
from brimful.index.indexed import Reordered, RowNumbers, over_epochs


@dataclass(frozen=True)
class Repeat(Reordered):
    """Place p is place p mod count of epoch + p // count; unless there is no sample: then a warning, and the end."""

    endless = True

    @once
    def count(self) -> int | None:
        if self.upstream.count == 0:
            logger.warning("repeat: epoch 0 has no sample; the stream ends here")
            return 0
        return None

    def order(self, epoch: int) -> RowNumbers:
        return over_epochs(self.upstream, epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()
