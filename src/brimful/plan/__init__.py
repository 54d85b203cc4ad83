"""Which samples make up which batch, decided on integers alone: lengths in, sample numbers and shapes out."""

from .arriving import Planner
from .balancing import balance, micro_batches
from .buckets import optimal_buckets, uniform_buckets
from .budget import CostBudget, FixedSize, StaticShapes, TokenBudget
from .costs import AttentionCost
from .errors import OverlongError
from .groups import balanced_thresholds, find_thresholds, optimal_partition
from .memory import MemoryBudget, PeakModel
from .multi import MultiBudget
from .overlong import Overlong
from .pack import Packed
from .plan import Plan, Policy, as_lengths
from .steps import Steps, steps

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
    "Planner",
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
