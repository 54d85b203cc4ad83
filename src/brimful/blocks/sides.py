"""Which rows are for validation: a split by the hash of what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.blocks import Block, visible
from brimful.blocks.hashes import column_hashes, row_hashes
from brimful.blocks.resize import bytes_in
from brimful.core import random
from brimful.core.errors import finite, integer
from brimful.core.stage import BLOCK_BYTES

Side = Literal["train", "valid"]


@dataclass(frozen=True)
class Split:
    """A split of rows in two, by the hash of column `key` (None: of all columns).

    The seed is the same in each of several streams, so that equal rows are on one side wherever they are.
    """

    valid_share: float
    key: str | None
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid_share", finite("valid_share", self.valid_share))
        if not 0 < self.valid_share < 1:
            raise ValueError(f"valid_share must be above 0 and below 1 (got {self.valid_share:g})")
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be the name of a column (got {self.key!r})")
        object.__setattr__(self, "seed", integer("seed", self.seed, None))

    def valid(self, block: Block) -> NDArray[np.bool_]:
        """Which rows of a block, at least one, are for validation: (n,)."""
        names = visible(block).schema.names if self.key is None else [self.key]
        size = sum(bytes_in(block.column(name)) for name in names if name in block.schema.names)
        step = max(
            1, block.num_rows * BLOCK_BYTES // max(1, size)
        )  # what a hash takes is some times what its values take
        pieces = (block.slice(first, step) for first in range(0, block.num_rows, step))
        return np.concatenate([self._valid(piece) for piece in pieces])

    def _valid(self, block: Block) -> NDArray[np.bool_]:
        hashes = row_hashes(block) if self.key is None else column_hashes(block, self.key)
        below: NDArray[np.bool_] = random.mixed(hashes ^ np.uint64(random.key(self.seed))) < np.uint64(
            int(self.valid_share * 2.0**64)
        )
        return below
