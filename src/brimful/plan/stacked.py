"""Samples of several sides, below one another in rows of one length: the limits of a policy hold for all of these rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .plan import IntArray, Plan, Policy, as_lengths, planned


def stacked(policy: Policy, sides: int) -> Policy:
    """A policy of samples that have `sides` rows each, planned by their longest side. A number of samples stays as it is. So does
    a user's own policy, since brimful does not know its limit.

    Raises:
        ValueError: there are fewer tokens than sides, or a policy has limits of several sizes.

    >>> from brimful.plan import TokenBudget
    >>> stacked(TokenBudget(16_384), 2).max_tokens
    8192
    """
    if sides == 1:
        return policy
    own = getattr(policy, "stacked", None)
    return policy if own is None else own(sides)


@dataclass(frozen=True)
class Stacked:
    """The same as a policy of all lengths of a sample, (n, d), which are padded to one.

    >>> from brimful.plan import TokenBudget
    >>> plan = Stacked(TokenBudget(60), 2).plan([[9, 10], [30, 2], [8, 10]])
    >>> [batch.tolist() for batch in plan.batches], plan.padded_lengths.tolist()
    ([[1], [0, 2]], [[30, 30], [10, 10]])
    """

    policy: Policy
    sides: int

    max_length = None
    num_padded = 1

    @property
    def shapes(self) -> list[tuple[int, ...]] | None:
        """The few shapes (samples, *lengths) of all batches; None where nobody knows them before a plan."""
        known: list[tuple[int, int]] | None = getattr(stacked(self.policy, self.sides), "shapes", None)
        return None if known is None else [(samples, *[length] * self.sides) for samples, length in known]

    def plan(self, lengths: ArrayLike, *, units: IntArray | None = None) -> Plan:
        lengths = as_lengths(lengths)
        return on_all_sides(planned(stacked(self.policy, self.sides), longest_side(lengths), units), lengths)


def longest_side(lengths: IntArray) -> IntArray:
    """The longest side of each sample, (n,)."""
    return lengths if lengths.ndim == 1 else lengths.max(axis=1, initial=0)


def on_all_sides(plan: Plan, lengths: IntArray) -> Plan:
    """A plan of the longest sides as one of all sides, (n, d)."""
    if lengths.ndim == 1:
        return plan
    padded = np.repeat(plan.padded_lengths[:, None], lengths.shape[1], axis=1)
    return replace(plan, padded_lengths=padded, tokens=int(lengths[plan.numbers].sum()), num_padded=None)
