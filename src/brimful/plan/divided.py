"""The budget of an optimizer step, dealt to the batches that it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brimful.plan.budget import CostBudget, FixedSize, TokenBudget
from brimful.plan.plan import Policy
from brimful.plan.static import StaticShapes


def divided(policy: Policy, parts: int) -> Policy:
    """The policy of each of the `parts` batches whose gradients one optimizer step adds up.

    Samples, tokens and cost are dealt evenly. A limit of memory holds for each batch, as they come one after the other, and what
    a policy of one's own means nobody knows: these stay as they are.

    Raises:
        ValueError: there are fewer samples or tokens than parts; samples that do not come out even.

    >>> divided(TokenBudget(16_384), 4)
    TokenBudget(max_tokens=4096, pad_to_multiple_of=1, buckets=None, planner='greedy', step_cost=None)
    """
    if isinstance(policy, FixedSize):
        return replace(policy, n=share(policy.n, parts, "samples", even=True))
    if isinstance(policy, TokenBudget | StaticShapes):
        changes: dict[str, Any] = {"max_tokens": share(policy.max_tokens, parts, "tokens")}
        return replace(policy, **changes)
    if isinstance(policy, CostBudget):
        return replace(policy, limit=policy.limit / parts)
    return policy


def share(budget: int, parts: int, unit: str, *, even: bool = False) -> int:
    """An equal share of a budget, rounded down; an error where `even` says that nothing may be left, and something is."""
    if budget < parts or (even and budget % parts):
        largest = f"a multiple of {parts:,}" if even else f"{parts:,} at least"
        raise ValueError(
            f"micro_batches={parts:,} deals the {unit} of an optimizer step to {parts:,} batches, of which {budget:,} cannot be "
            f"made: give {largest}"
        )
    return budget // parts
