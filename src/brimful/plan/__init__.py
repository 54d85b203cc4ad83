"""Which samples make up which batch, decided on integers alone: lengths in, sample numbers and shapes out."""

from brimful.plan.balancing import balance, micro_batches
from brimful.plan.buckets import optimal_buckets, uniform_buckets
from brimful.plan.budget import AttentionCost, CostBudget, FixedSize, StaticShapes, TokenBudget
from brimful.plan.groups import balanced_thresholds, find_thresholds, optimal_partition
from brimful.plan.memory import MemoryBudget, PeakModel
from brimful.plan.multi import MultiBudget
from brimful.plan.overlong import Overlong, OverlongError
from brimful.plan.pack import Packed
from brimful.plan.plan import Plan, Policy, as_lengths
from brimful.plan.steps import Steps, steps

__all__ = [
    "AttentionCost",
    "CostBudget",
    "FixedSize",
    "MemoryBudget",
    "MultiBudget",
    "Overlong",
    "OverlongError",
    "Packed",
    "PeakModel",
    "Plan",
    "Policy",
    "StaticShapes",
    "Steps",
    "TokenBudget",
    "as_lengths",
    "balance",
    "balanced_thresholds",
    "find_thresholds",
    "micro_batches",
    "optimal_buckets",
    "optimal_partition",
    "steps",
    "uniform_buckets",
]
