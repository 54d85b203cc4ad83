"""An index: samples of which lengths are known without their tokens, and any at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.rows import Block


class Index(ABC):
    """Samples that can be had in any order. What it takes to know them (reading, mapping) is done on first use."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        """Tokens of each sample, integers (n,) or (n, d); zeros where the columns are absent and not required."""

    @abstractmethod
    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        """A block that holds the samples of these numbers, and which of its rows each of them is, int64 (len(numbers),).

        What is in memory stays where it is; what is not is fetched whole.
        """

    @abstractmethod
    def fingerprint(self) -> Any:
        """What a state is held against, as plain JSON."""
