"""Samples of several sides, below one another in rows of one length: the limits of a policy hold for all of these rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brimful.plan.budget import CostBudget, StaticShapes, TokenBudget
from brimful.plan.memory import Length, MemoryBudget, PeakModel
from brimful.plan.multi import MultiBudget
from brimful.plan.plan import IntArray, Plan, Policy, as_lengths, planned


def stacked(policy: Policy, sides: int) -> Policy:
    """A policy of samples that have `sides` rows each, planned by their longest side. A number of samples stays as it is. So does
    a user's own policy, since brimful does not know its limit.

    Raises:
        ValueError: there are fewer tokens than sides, or a policy has limits of several sizes.

    >>> stacked(TokenBudget(16_384), 2).max_tokens
    8192
    """
    if sides == 1:
        return policy
    if isinstance(policy, TokenBudget | StaticShapes):
        changes: dict[str, Any] = {"max_tokens": _share("max_tokens", policy.max_tokens, sides)}
        return replace(policy, **changes)
    if isinstance(policy, CostBudget):
        return replace(policy, cost=_OfRows(policy.cost, sides))
    if isinstance(policy, MemoryBudget):
        return replace(policy, model=_OfSides(policy.model, sides))
    if isinstance(policy, MultiBudget):
        if len(policy.padded) != 1 or policy.total:
            raise ValueError(
                "layout='paired' plans by the longest side of each sample, so MultiBudget may have one limit in padded, and none "
                f"in total (got {', '.join(policy.columns)})"
            )
        return replace(policy, padded={name: _share(name, most, sides) for name, most in policy.padded.items()})
    return policy


def _share(name: str, limit: int, sides: int) -> int:
    if limit < sides:
        raise ValueError(f"{name} must be at least 1 token for each of the {sides} sides (got {limit})")
    return limit // sides


@dataclass(frozen=True)
class Stacked:
    """The same as a policy of all lengths of a sample, (n, d), which are padded to one.

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


@dataclass(frozen=True)
class _OfRows:
    """The cost of a batch of so many rows a sample."""

    cost: Callable[[int, int], float]
    sides: int

    def __call__(self, batch_size: int, padded_length: int) -> float:
        return self.cost(batch_size * self.sides, padded_length)


@dataclass(frozen=True)
class _OfSides:
    """A model of peaks, asked about batches of so many rows a sample."""

    model: PeakModel
    sides: int

    @property
    def num_lengths(self) -> int:
        return self.model.num_lengths

    @property
    def unit(self) -> str:
        return self.model.unit

    def predict(self, batch: int, length: Length) -> float:
        return self.model.predict(batch * self.sides, length)

    def largest_batch(self, length: Length, limit_bytes: float, *, risk: float) -> int:
        return self.model.largest_batch(length, limit_bytes, risk=risk) // self.sides

    def fingerprint(self) -> str:
        return self.model.fingerprint()
