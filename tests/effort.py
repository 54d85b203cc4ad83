"""How much tests try: enough to bite in `make test`, all that there is time for in `make soak`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

SOAK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def times(count: int, soak: int) -> int:
    return max(count, soak) if SOAK else count


def examples(count: int) -> settings:
    return settings(max_examples=times(count, 1_000))
