"""A list column on its way to a device: its values end to end, which are padded there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

_NOT_FILLED: Final = (torch.uint16, torch.uint32, torch.uint64)
"""Types of which torch fills no mask; their bits go through int64 and back."""


@dataclass(frozen=True, eq=False)
class Unpadded:
    """Rows of values that become one padded tensor (B, width) where they are: fewer bytes travel, in the type of the store.

    Shapes: values (n,), or None for a mask of the rows; starts, counts (B,) int64: row i has `values[starts[i] :
    starts[i] + counts[i]]`.

    Args:
        width: of the padded tensor.
        fill: what padding holds.
        left: the padding comes first.
        dtype: of the padded tensor.
        made: the type that values take on the way to it.
    Price: a flat index of the padded shape, int64, while it is padded.
    Example:
        >>> starts, counts = torch.tensor([0, 2]), torch.tensor([2, 1])
        >>> Unpadded(torch.tensor([5, 6, 7]), starts, counts, 3, -1, False, torch.int64).padded().tolist()
        [[5, 6, -1], [7, -1, -1]]
        >>> Unpadded(None, starts, counts, 3, 0, True, torch.int64).padded().tolist()
        [[0, 1, 1], [0, 0, 1]]
    """

    values: torch.Tensor | None
    starts: torch.Tensor
    counts: torch.Tensor
    width: int
    fill: float
    left: bool
    dtype: torch.dtype
    made: torch.dtype | None = None

    def padded(self) -> torch.Tensor:
        """The padded tensor, on the device of the values."""
        counts = self.counts[:, None]
        at = torch.arange(self.width, device=self.counts.device)[None, :]
        if self.left:
            at = at - (self.width - counts)
        inside = (at >= 0) & (at < counts)
        if self.values is None:
            return inside.to(self.dtype)
        if not len(self.values):
            return torch.full(inside.shape, self.fill, dtype=self.dtype, device=inside.device)
        made = self.made or self.dtype
        values = self.values.to(torch.int64 if made in _NOT_FILLED else made)
        index = (at + self.starts[:, None]).clamp_(0, len(values) - 1)
        return values[index].masked_fill_(~inside, self.fill).to(self.dtype)

    def without(self, rows: slice) -> Unpadded:
        """With nothing but padding in some rows."""
        counts = self.counts.clone()
        counts[rows] = 0
        return replace(self, counts=counts)
