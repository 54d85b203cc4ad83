"""A simulated out of memory, for tests of a guarded step on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from brimful.core.errors import integer, one_of


@dataclass
class SimulatedOOM:
    """A device with room for so many slots. Call it on a tensor (B, L, ...) inside a step: it returns the tensor, or
    runs out of memory.

    Args:
        limit: most slots, B x L. You may change it between steps.
        where: "forward", or "backward", which runs out of memory on the tensor's gradient.

    >>> device = SimulatedOOM(8)
    >>> device(torch.zeros(2, 4)).shape
    torch.Size([2, 4])
    >>> device(torch.zeros(3, 4))
    Traceback (most recent call last):
    torch.OutOfMemoryError: simulated: out of memory in forward with 3 x 4 = 12 slots, of which 8 fit
    """

    limit: int
    where: Literal["forward", "backward"] = "forward"

    def __post_init__(self) -> None:
        self.limit = integer("limit", self.limit, 0, "slots")
        one_of("where", self.where, "forward", "backward")

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.where == "forward":
            self.check(tensor)
            return tensor
        seen = tensor.view_as(tensor)
        if seen.requires_grad:
            seen.register_hook(self.check)  # type: ignore[no-untyped-call]
        return seen

    def check(self, tensor: Tensor) -> None:
        """Raises an error if a tensor has more slots than fit.

        >>> SimulatedOOM(8).check(torch.zeros(2, 4))
        >>> SimulatedOOM(8, where="backward").check(torch.zeros(2, 5))
        Traceback (most recent call last):
        torch.OutOfMemoryError: simulated: out of memory in backward with 2 x 5 = 10 slots, of which 8 fit
        """
        rows, width = tensor.shape[0], tensor.shape[1] if tensor.dim() > 1 else 1
        if rows * width > self.limit:
            raise torch.OutOfMemoryError(
                f"simulated: out of memory in {self.where} with {rows:,} x {width:,} = {rows * width:,} slots, of which "
                f"{self.limit:,} fit"
            )
