"""Batch sizes that follow memory: a model of peaks, and what measures them. What needs torch imports it when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.memory.model import MemoryModel

_MODULES = {"MemoryModel": "model"}

__all__ = ["MemoryModel"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'brimful.memory' has no attribute {name!r}")
    return getattr(import_module(f"brimful.memory.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
