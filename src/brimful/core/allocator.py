"""Memory that blocks take, give back and take again."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

_LARGE: Final = 31 << 20


@cache
def keep_what_is_freed() -> None:
    """Has glibc keep what arrays of some MB took, for the next ones, as it does in any program that has freed one of 32 MB.

    At first it asks the system for each array of more than 128 KB, and gives it back at once. The system clears every page of
    it each time, and has all cores forget it: a tenth of the time of a block. What it hands out by itself it raises to the size
    of the largest such array freed so far, 32 MB at most, whether that was ever written to or not ("dynamic mmap threshold",
    mallopt(3)). Price: 10 us; 64 MB an arena at the most that stay with the process. Of other libraries nothing is changed.
    """
    np.empty(_LARGE, dtype=np.uint8)
