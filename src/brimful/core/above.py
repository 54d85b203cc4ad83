"""Functions of rooms that lie above their callers: these know them by name, and import nothing from there."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final


class Above:
    """What a module holds that lies above its caller; it is imported when the first of it is asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


GUARD: Final = Above("brimful.integrations.guard")
"""Who takes what a loader gives: other libraries' loops, which read ahead, shard again or stack."""
