"""A policy whose limits hold for lengths that are rounded up, to a multiple or to buckets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from .buckets import Rounding
from .overlong import refuse_overlong
from .plan import IntArray, Plan, Policy, as_lengths, planned, widths


@dataclass(frozen=True)
class Rounded:
    """A policy that plans lengths after they are rounded up: so its limits hold for the padded shape.

    Example:
        >>> from brimful.plan import FixedSize
        >>> Rounded(FixedSize(2), Rounding(pad_to_multiple_of=8)).plan([5, 9, 7]).padded_lengths.tolist()
        [16, 8]
    """

    policy: Policy
    rounding: Rounding

    @property
    def max_length(self) -> int | None:
        return self.rounding.longest(self.policy.max_length)

    @property
    def shapes(self) -> Any:
        return getattr(self.policy, "shapes", None)

    def plan(self, lengths: ArrayLike, *, units: IntArray | None = None) -> Plan:
        lengths = as_lengths(lengths)
        limit = self.rounding.longest(None) if lengths.ndim == 2 else self.max_length
        if limit is not None:
            longest = lengths if lengths.ndim == 1 else lengths.max(axis=1, initial=0)
            words = f"{self.policy} in {self.rounding}"
            refuse_overlong(lengths, longest <= limit, max_length=limit, limit=words, remedy="add a longer bucket")
        return replace(planned(self.policy, self.rounding(lengths), units), tokens=int(widths(lengths).sum()))
