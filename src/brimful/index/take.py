"""The first n samples."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.core.errors import settle
from brimful.index.slice import Slice


@dataclass(frozen=True)
class Take(Slice):
    """The first `n` samples."""

    n: int

    def __post_init__(self) -> None:
        settle(self, "n", 0, "samples")

    @property
    def places(self) -> tuple[int, int | None, int]:
        return 0, self.n, 1
