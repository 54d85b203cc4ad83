"""Lazy references to higher layers, so that lower ones need not import them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class LazyModule:
    """The functions of a module that lies above its caller; it is imported when the first of them is asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


GUARD: Final = LazyModule("brimful.integrations.guard")
"""Who runs a loop that begins: other libraries' loops may read ahead, shard again or stack."""

DATASET: Final = LazyModule("brimful.dataset")
"""The methods of samples, which batches lack."""


class ReadsAhead(NamedTuple):
    """Who takes items before the training loop wants them, if anyone; of how many it gets one; how many it has skipped."""

    name: str | None = None
    processes: int = 1
    skipped: int = 0
