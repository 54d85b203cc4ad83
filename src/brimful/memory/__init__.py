"""Batch sizes that follow memory: what needs torch is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from brimful.memory.generation import oom_safe, oom_safe_generate
    from brimful.memory.guard import OomGuard, oom_guard
    from brimful.memory.inference import map_batches_in_order
    from brimful.memory.simulated import SimulatedOOM

__all__ = ["OomGuard", "SimulatedOOM", "map_batches_in_order", "oom_guard", "oom_safe", "oom_safe_generate"]

_MODULES: Final = {
    "OomGuard": "guard",
    "oom_guard": "guard",
    "map_batches_in_order": "inference",
    "oom_safe": "generation",
    "oom_safe_generate": "generation",
    "SimulatedOOM": "simulated",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'brimful.memory' has no attribute {name!r}")
    return getattr(import_module(f"brimful.memory.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
