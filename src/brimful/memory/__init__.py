"""Batch sizes that follow memory: a model of peaks, ways to measure them, steps and inference that survive out of memory.

Modules that need torch are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from brimful.memory.model import MemoryModel
from brimful.memory.peaks import Peaks, largest_batches, spread_shapes

if TYPE_CHECKING:
    from brimful.memory.budget import FittedBudget, fit_budget
    from brimful.memory.dataloader import DynamicBatchDataLoader
    from brimful.memory.device import meter_on, probe
    from brimful.memory.fake import estimate, estimator
    from brimful.oom.exhaustion import SimulatedOOM
    from brimful.oom.generation import oom_safe, oom_safe_generate
    from brimful.oom.guard import OomGuard, oom_guard

_MODULES: Final = {
    "memory.budget": ("FittedBudget", "fit_budget"),
    "memory.dataloader": ("DynamicBatchDataLoader",),
    "memory.device": ("meter_on", "probe"),
    "memory.fake": ("estimate", "estimator"),
    "oom.generation": ("oom_safe", "oom_safe_generate"),
    "oom.guard": ("OomGuard", "oom_guard"),
    "oom.exhaustion": ("SimulatedOOM",),
}

__all__ = [
    "DynamicBatchDataLoader",
    "FittedBudget",
    "MemoryModel",
    "OomGuard",
    "Peaks",
    "SimulatedOOM",
    "estimate",
    "estimator",
    "fit_budget",
    "largest_batches",
    "meter_on",
    "oom_guard",
    "oom_safe",
    "oom_safe_generate",
    "probe",
    "spread_shapes",
]


def __getattr__(name: str) -> Any:
    # A module of one of these names would take the name's place once it is imported.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"brimful.{module}"), name)
    raise AttributeError(f"module 'brimful.memory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
