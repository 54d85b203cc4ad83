"""A user's function on each sample: another sample, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.tables.typed import SampleFunction


@dataclass(frozen=True)
class FilterMap(SampleFunction):
    """`fn(sample)` in place of each sample, where it is not None."""

    def samples_of(self, result: Any) -> list[Any]:
        return [] if result is None else [result]
