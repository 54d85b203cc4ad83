"""How much tests try: enough to bite in `make test`, all that there is time for in `make soak`."""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

from hypothesis import settings

SOAK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def times(count: int, soak: int) -> int:
    return max(count, soak) if SOAK else count


def examples(count: int) -> settings:
    return settings(max_examples=times(count, 1_000))


BEFORE: Final[WeakSet[threading.Thread]] = WeakSet()
"""The threads that there were as a test began: what another test left is none of its own."""


def own_threads() -> set[threading.Thread]:
    """Our threads that were not there as the test began."""
    return {one for one in threading.enumerate() if one.name.startswith("brimful") and one not in BEFORE}
