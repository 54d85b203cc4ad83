"""A user's function on each sample of a source: whether to keep it, asked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brimful.blocks.parallel import SERIAL, Parallel
from brimful.core.errors import OnError
from brimful.core.once import once
from brimful.core.stage import described, runtime
from brimful.index.index import Index
from brimful.index.indexed import RowNumbers, Source
from brimful.index.some_rows import FilteredIndex


@dataclass(frozen=True)
class Filter(Source):
    """The samples of a source for which `fn(sample)` is true, in the order, or shuffle, of that source.

    A state is held against which samples those are: a random function is refused.
    """

    upstream: Source
    fn: Callable[..., bool]
    on_error: OnError = "raise"
    parallel: Parallel = runtime(SERIAL)

    @once
    def index(self) -> FilteredIndex:
        return FilteredIndex(self.upstream.index, self.fn, self.on_error, self.parallel)

    @property
    def in_index_order(self) -> bool:
        return self.upstream.in_index_order

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return self.upstream.ordered(index, epoch)

    def settings(self) -> dict[str, Any]:
        kept = {"kept": self.count, "crc32": self.index.crc32}
        return {"fn": described(self.fn), "on_error": self.on_error, **kept}
