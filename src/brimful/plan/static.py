"""One batch size for each bucket: as few shapes as there are buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from brimful.core.errors import settle
from brimful.plan.buckets import as_buckets
from brimful.plan.budget import TokenBudget
from brimful.plan.plan import Plan, one_length


@dataclass(frozen=True)
class StaticShapes:
    """Batches of exactly floor(max_tokens / L) rows for each bucket of L tokens: no more shapes than buckets.

    Sorted longest first (stable) and cut; samples of the next bucket fill up a batch of this one. Only the last batch
    can be short: its tensor has `padded_sizes` rows all the same, those missing zero-weight copies of a real row.

    Args:
        buckets: the only padded lengths, in tokens; of these the smallest that is not smaller.
        max_tokens: most slots in a batch, padding included.
    Raises:
        ValueError: no buckets, or one below 1 or above `max_tokens` tokens.
        OverlongError: from `plan`, for a sample longer than every bucket.
    Price: that of `TokenBudget`.
    Example:
        >>> plan = StaticShapes([16, 64], 64).plan([50, 10, 10, 10, 10, 10])
        >>> [batch.tolist() for batch in plan.batches], plan.padded_sizes.tolist(), plan.num_shapes
        ([[0], [1, 2, 3, 4], [5]], [1, 4, 4], 2)
    """

    buckets: Sequence[int]
    max_tokens: int

    def __post_init__(self) -> None:
        settle(self, "max_tokens", 1, "token")
        object.__setattr__(self, "buckets", as_buckets(self.buckets, self.max_tokens))

    @property
    def max_length(self) -> int:
        """The longest bucket, in tokens."""
        return self.buckets[-1]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All shapes that there are, (rows, tokens)."""
        return [(self.max_tokens // bucket, bucket) for bucket in self.buckets]

    def plan(self, lengths: ArrayLike) -> Plan:
        """Batches of full shapes; the last may have copies in it."""
        plan = TokenBudget(self.max_tokens, buckets=self.buckets).plan(one_length(lengths, "StaticShapes"))
        return replace(plan, padded_sizes=self.max_tokens // plan.padded_lengths)
