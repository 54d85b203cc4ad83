"""A user's function on each sample: another sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.tables.typed import SampleFunction


@dataclass(frozen=True)
class Map(SampleFunction):
    """`fn(sample)` in place of each sample."""

    def samples_of(self, result: Any) -> list[Any]:
        return [result]
