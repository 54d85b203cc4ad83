"""Batch sizes that follow memory: a model of peaks and what measures them, steps and inference that survive running out of it.

What needs torch is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from brimful.inference.inference import map_batches_in_order
    from brimful.memory.dataloader import DynamicBatchDataLoader, build_dynamic_batch_dataloader
    from brimful.memory.device import meter_on, probe
    from brimful.memory.fake import estimate, estimator
    from brimful.memory.model import MemoryModel
    from brimful.memory.peaks import Peaks
    from brimful.memory.search import largest_batches
    from brimful.memory.shapes import spread_shapes
    from brimful.oom.generation import oom_safe, oom_safe_generate
    from brimful.oom.guard import OomGuard, oom_guard
    from brimful.oom.simulated import SimulatedOOM

_MODULES: Final = {
    "DynamicBatchDataLoader": "memory.dataloader",
    "MemoryModel": "memory.model",
    "OomGuard": "oom.guard",
    "Peaks": "memory.peaks",
    "SimulatedOOM": "oom.simulated",
    "build_dynamic_batch_dataloader": "memory.dataloader",
    "estimate": "memory.fake",
    "estimator": "memory.fake",
    "largest_batches": "memory.search",
    "map_batches_in_order": "inference.inference",
    "meter_on": "memory.device",
    "oom_guard": "oom.guard",
    "oom_safe": "oom.generation",
    "oom_safe_generate": "oom.generation",
    "probe": "memory.device",
    "spread_shapes": "memory.shapes",
}

__all__ = [
    "DynamicBatchDataLoader",
    "MemoryModel",
    "OomGuard",
    "Peaks",
    "SimulatedOOM",
    "build_dynamic_batch_dataloader",
    "estimate",
    "estimator",
    "largest_batches",
    "map_batches_in_order",
    "meter_on",
    "oom_guard",
    "oom_safe",
    "oom_safe_generate",
    "probe",
    "spread_shapes",
]


def __getattr__(name: str) -> Any:
    # A module of one of these names would take the name's place once it is imported.
    if name not in _MODULES:
        raise AttributeError(f"module 'brimful.memory' has no attribute {name!r}")
    return getattr(import_module(f"brimful.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
