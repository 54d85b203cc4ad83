"""All but the first n samples."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.core.errors import settle
from brimful.index.slice import Slice


@dataclass(frozen=True)
class Skip(Slice):
    """The samples after the first `n`. Price: none."""

    n: int

    def __post_init__(self) -> None:
        settle(self, "n", 0, "samples")

    @property
    def places(self) -> tuple[int, int | None, int]:
        return self.n, None, 1
