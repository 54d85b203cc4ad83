"""A user's function on each sample of a source: whether to keep it, asked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.once import once
from brimful.rows import name_of
from brimful.sources.index import Index
from brimful.sources.indexed import Indexed, Rows
from brimful.sources.selected import SelectedIndex
from brimful.sources.sequence import FromSequence
from brimful.stream import describe


@dataclass(frozen=True)
class Filtered(Indexed):
    """The samples of a source for which `fn(sample)` is true, in the order, or shuffle, of that source.

    A state is held against which samples those are: a random function is refused.
    """

    upstream: FromSequence | Filtered
    fn: Callable[..., bool]

    @once
    def index(self) -> SelectedIndex:
        return SelectedIndex(self.upstream.index, self.fn)

    @property
    def count(self) -> int:
        return len(self.index)

    def order(self, epoch: int) -> Rows:
        return self.ordered(self.index, epoch)

    def plain(self) -> tuple[Rows, int]:
        return np.arange, self.count

    def seam(self, place: int) -> None:
        return None

    def ordered(self, index: Index, epoch: int) -> Rows:
        return self.upstream.ordered(index, epoch)

    def fingerprint(self) -> dict[str, Any]:
        kept = {"fn": name_of(self.fn), "kept": self.count, "crc32": self.index.crc32}
        return {"type": type(self).__name__, "upstream": describe(self.upstream), **kept}
