"""What brimful puts into a batch beside its columns, by name."""

from __future__ import annotations

from typing import Final

NUM_ITEMS: Final = ("num_items_in_batch", "num_items_on_rank")
"""How many labels an optimizer step has: on all ranks, or on this one."""
WEIGHTS: Final = "sample_weights"
"""A number a row, 0 where a row counts for nothing."""
NUM_SIDES: Final = "num_sides"
"""How many rows, below one another, a sample has: see `arrays.paired`."""
OF_RANKS: Final = ("weight", "is_filler", NUM_ITEMS[0])
"""What a data-parallel rank's batch has beside its columns."""
OF_STEPS: Final = (NUM_ITEMS[1], "ends_step")
"""What a batch of an optimizer step of several has beside these."""
OWN_KEYS: Final = (*OF_RANKS, *OF_STEPS, WEIGHTS, NUM_SIDES, "lengths")
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
