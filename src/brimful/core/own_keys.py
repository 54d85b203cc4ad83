"""What brimful puts into a batch beside its columns, by name, and which rows of a batch count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

NUM_ITEMS: Final = ("num_items_in_batch", "num_items_on_rank")
"""How many labels an optimizer step has: on all ranks, or on this one."""
WEIGHTS: Final = "sample_weights"
"""A number a row, 0 where a row counts for nothing."""
OF_RANKS: Final = ("weight", "is_filler", NUM_ITEMS[0])
"""What a data-parallel rank's batch has beside its columns."""
OF_STEPS: Final = (NUM_ITEMS[1], "ends_step")
"""What a batch of an optimizer step of several has beside these."""
OWN_KEYS: Final = (*OF_RANKS, *OF_STEPS, WEIGHTS, "lengths")
"""All keys of a batch that brimful makes, and no model takes."""
TAKEN: Final = (*NUM_ITEMS, OF_STEPS[1], WEIGHTS)
"""Those that whoever computes a loss takes for brimful's, whoever made them."""


class RankWeight(float):
    """The weight of a batch of one of several data-parallel ranks. It knows how many there are, whose gradients are averaged.

    >>> weight = RankWeight(1.0, 8)
    >>> weight, weight.num_ranks
    (1.0, 8)
    """

    num_ranks: int

    def __new__(cls, weight: float, num_ranks: int) -> RankWeight:
        made = float.__new__(cls, weight)
        made.num_ranks = num_ranks
        return made

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]
        return float(self), self.num_ranks


def rows_that_count(batch: Mapping[Any, Any]) -> torch.Tensor | bool:
    """Which rows of a batch count in losses, in numbers of labels and in results: True for all, False for none, as in a filler,
    or bool (rows,), where some may be copies up to a static shape.

    >>> import torch
    >>> rows_that_count({"sample_weights": torch.tensor([1.0, 0.0])}), rows_that_count({"is_filler": True}), rows_that_count({})
    (tensor([ True, False]), False, True)
    """
    weight = batch.get("weight")
    if batch.get("is_filler") is True or (isinstance(weight, float) and weight == 0):
        return False
    weights = batch.get(WEIGHTS)
    return True if weights is None else weights > 0
