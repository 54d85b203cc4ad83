"""Which numbers there are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values, each once, in order. (`np.unique` by itself imports `numpy.ma` at its first call, 25 ms.)

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return np.unique(values, return_counts=True)[0]
