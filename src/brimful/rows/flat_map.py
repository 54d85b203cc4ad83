"""A user's function on each sample: any number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.tables.typed import SampleFunction


@dataclass(frozen=True)
class FlatMap(SampleFunction):
    """The samples of `fn(sample)`, one sample's after another's."""

    makes_long_blocks = True

    def samples_of(self, result: Any) -> list[Any]:
        return list(result)
