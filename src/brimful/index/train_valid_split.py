"""One side of a split of a source: the rows for training, or those for validation, found once for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.index.index import Index
from brimful.index.indexed import Selected
from brimful.plan.once import once, settings_of
from brimful.tables.hashes import Side, Split


@dataclass(frozen=True, eq=False)
class SplitMask:
    """Which rows of `base` a split puts on the side for validation: asked once for both sides.

    Price: at the first use, in each process, all rows are read once, of a store with a `key` that column alone; 1 byte a row.
    """

    base: Index
    split: Split

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def valid(self) -> NDArray[np.bool_]:
        key = self.split.key
        base = self.base if key is None or not len(self.base) else self.base.only([key])
        try:
            found = [*map(self.split.valid, base.blocks())]
        except KeyError:  # there is no such column: with all of them the error says which there are
            found = [*map(self.split.valid, self.base.blocks())]
        return np.concatenate([np.zeros(0, dtype=bool), *found])


@dataclass(frozen=True)
class TrainValidSplit(Selected):
    """The samples of a source on one side of a split, in the order, or shuffle, of that source."""

    mask: SplitMask
    side: Side

    def chosen_by(self) -> dict[str, Any]:
        return {**vars(self.mask.split), "side": self.side}

    def kept(self) -> NDArray[np.bool_]:
        return self.mask.valid if self.side == "valid" else ~self.mask.valid
