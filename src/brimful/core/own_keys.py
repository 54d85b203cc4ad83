"""What brimful puts into a batch beside its columns, by name."""

from __future__ import annotations

from typing import Final

NUM_ITEMS: Final = ("num_items_in_batch", "num_items_on_rank")
"""How many labels an optimizer step has: on all ranks, or on this one."""
NUM_SAMPLES: Final = ("num_samples_in_batch", "num_samples_on_rank")
"""How many of its samples, or pieces, have a label, likewise."""
SUM_OF_WEIGHTS: Final = ("sum_of_weights_in_batch", "sum_of_weights_on_rank")
"""What these samples count for together, likewise."""
LOSS_WEIGHTS: Final = "sample_loss_weights"
"""What each sample, or piece, counts for in a mean over samples."""
COUNTS: Final = (*NUM_ITEMS, *NUM_SAMPLES, *SUM_OF_WEIGHTS)
"""What a loss is divided by; a part of a batch has its share of each."""
WEIGHTS: Final = "sample_weights"
"""A number a row, 0 where a row counts for nothing."""
NUM_SIDES: Final = "num_sides"
"""How many rows, below one another, a sample has: see `arrays.paired`."""
RANK_KEYS: Final = ("weight", "is_filler")
"""What a data-parallel rank's batch has beside its columns."""
TAKEN: Final = (*COUNTS, "ends_step", WEIGHTS, LOSS_WEIGHTS)
"""Those that whoever computes a loss takes for brimful's, whoever made them."""
OWN_KEYS: Final = (*RANK_KEYS, *TAKEN, NUM_SIDES, "lengths")
"""All keys of a batch that brimful makes, and no model takes."""


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
