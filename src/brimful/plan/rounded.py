"""Padded lengths rounded up, to a multiple or to a bucket, under any policy: few shapes, aligned ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from brimful.core.errors import MOST, settle
from brimful.plan.buckets import as_buckets, pad_to_buckets
from brimful.plan.overlong import refuse_overlong
from brimful.plan.plan import IntArray, Plan, Policy, as_lengths, planned, widths


@dataclass(frozen=True)
class Rounding:
    """How a padded length is rounded up.

    Args:
        pad_to_multiple_of: to a multiple of it, in tokens.
        buckets: to the smallest of these lengths that is not smaller.
    Raises:
        ValueError: a setting below 1, or buckets that are no multiples.
    Example:
        >>> Rounding(pad_to_multiple_of=8)(np.array([0, 3, 8, 9])).tolist()
        [8, 8, 8, 16]
        >>> Rounding(buckets=[4, 10])(np.array([3, 4, 5])).tolist()
        [4, 4, 10]
    """

    pad_to_multiple_of: int = field(default=1, kw_only=True)
    buckets: Sequence[int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "pad_to_multiple_of", 1, "token")
        if self.buckets is not None:
            object.__setattr__(self, "buckets", as_buckets(self.buckets, MOST, self.pad_to_multiple_of))

    def __call__(self, lengths: IntArray) -> IntArray:
        """The lengths, any shape, rounded up; one beyond every bucket stays as it is."""
        if self.buckets is not None:
            return pad_to_buckets(lengths, self.buckets)
        multiple = self.pad_to_multiple_of
        return np.maximum(lengths, 1) if multiple == 1 else np.maximum(-(-lengths // multiple), 1) * multiple

    def longest(self, limit: int | None) -> int | None:
        """The greatest length that is at most `limit` (None: any) when it is rounded up; None where any is."""
        if self.buckets is not None:
            return max((bucket for bucket in self.buckets if limit is None or bucket <= limit), default=0)
        return None if limit is None else limit // self.pad_to_multiple_of * self.pad_to_multiple_of


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

    def plan(self, lengths: ArrayLike) -> Plan:
        lengths = as_lengths(lengths)
        limit = self.rounding.longest(None) if lengths.ndim == 2 else self.max_length
        if limit is not None:
            longest = lengths if lengths.ndim == 1 else lengths.max(axis=1, initial=0)
            words = f"{self.policy} in {self.rounding}"
            refuse_overlong(lengths, longest <= limit, max_length=limit, limit=words, remedy="add a longer bucket")
        return replace(planned(self.policy, self.rounding(lengths)), tokens=int(widths(lengths).sum()))
