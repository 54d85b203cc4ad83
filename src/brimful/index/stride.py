"""Every n-th sample."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.core.errors import settle
from brimful.index.slice import Slice


@dataclass(frozen=True)
class Stride(Slice):
    """Sample i where i mod `interval` == `offset`. Price: up to 100 ns for each sample that is passed over."""

    interval: int
    offset: int

    def __post_init__(self) -> None:
        settle(self, "interval", 1)
        settle(self, "offset", None)
        if not 0 <= self.offset < self.interval:
            raise ValueError(f"offset must be at least 0 and below interval={self.interval:,} (got {self.offset:,})")

    @property
    def places(self) -> tuple[int, int | None, int]:
        return self.offset, None, self.interval
