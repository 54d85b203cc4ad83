"""Batch sizes that follow memory: a model of peaks, and what measures them. What needs torch imports it when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.memory.device import meter_on, probe
    from brimful.memory.fake import estimate, estimator
    from brimful.memory.model import MemoryModel
    from brimful.memory.peaks import Peaks
    from brimful.memory.search import largest_batches
    from brimful.memory.shapes import spread_shapes

_MODULES = {
    "MemoryModel": "model",
    "Peaks": "peaks",
    "estimate": "fake",
    "estimator": "fake",
    "largest_batches": "search",
    "meter_on": "device",
    "probe": "device",
    "spread_shapes": "shapes",
}

__all__ = [
    "MemoryModel",
    "Peaks",
    "estimate",
    "estimator",
    "largest_batches",
    "meter_on",
    "probe",
    "spread_shapes",
]


def __getattr__(name: str) -> Any:
    # A module of one of these names would take the name's place once it is imported.
    if name not in _MODULES:
        raise AttributeError(f"module 'brimful.memory' has no attribute {name!r}")
    return getattr(import_module(f"brimful.memory.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
