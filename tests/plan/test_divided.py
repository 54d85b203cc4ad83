from __future__ import annotations

import re

import pytest

from brimful.plan import AttentionCost, CostBudget, FixedSize, Packed, Policy, StaticShapes, TokenBudget
from brimful.plan.budget import divided

COST = AttentionCost(quadratic=0.1)


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        (FixedSize(32, sort=False), FixedSize(8, sort=False)),
        (TokenBudget(1030, planner="least_padding"), TokenBudget(257, planner="least_padding")),
        (StaticShapes([8, 16], 64), StaticShapes([8, 16], 16)),
        (CostBudget(COST, 400), CostBudget(COST, 100)),
        (Packed(8), Packed(8)),
    ],
)
def test_what_a_step_may_hold_is_dealt_to_its_batches(policy: Policy, part: Policy) -> None:
    assert divided(policy, 4) == part
    assert divided(policy, 1) == policy


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            FixedSize(30),
            "30 samples of an optimizer step cannot be divided into equal shares for micro_batches=4: ",
        ),
        (
            TokenBudget(3),
            "3 tokens of an optimizer step cannot be divided into equal shares for micro_batches=4: ",
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused(policy: Policy, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        divided(policy, 4)
