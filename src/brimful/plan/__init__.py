"""Which samples make up which batch, decided on integers alone: lengths in, sample numbers and shapes out."""

from brimful.plan.balancing import balance, micro_batches
from brimful.plan.buckets import optimal_buckets, uniform_buckets
from brimful.plan.budget import AttentionCost, CostBudget, FixedSize, StaticShapes, TokenBudget, divided
from brimful.plan.groups import balanced_thresholds, by_thresholds, find_thresholds, optimal_partition
from brimful.plan.low_discrepancy import low_discrepancy_order
from brimful.plan.memory import MemoryBudget, PeakModel
from brimful.plan.overlong import Overlong, OverlongError, Pieces, plan_with, split_long
from brimful.plan.pack import Packed
from brimful.plan.plan import Plan, Policy, as_lengths
from brimful.plan.window import window_rows

__all__ = [
    "AttentionCost",
    "CostBudget",
    "FixedSize",
    "MemoryBudget",
    "Overlong",
    "OverlongError",
    "Packed",
    "PeakModel",
    "Pieces",
    "Plan",
    "Policy",
    "StaticShapes",
    "TokenBudget",
    "as_lengths",
    "balance",
    "balanced_thresholds",
    "by_thresholds",
    "divided",
    "find_thresholds",
    "low_discrepancy_order",
    "micro_batches",
    "optimal_buckets",
    "optimal_partition",
    "plan_with",
    "split_long",
    "uniform_buckets",
    "window_rows",
]
