"""Some rows of an index: those for which a user's function is true, or those of one side of a split; found once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block, tried
from brimful.blocks.parallel import SERIAL, Parallel
from brimful.blocks.sides import Side, Split
from brimful.core.errors import OnError, logger, name_of
from brimful.core.once import once, settings_of
from brimful.core.stage import BLOCK_ROWS, described
from brimful.index.index import Index, RowSet


@dataclass(frozen=True, eq=False)
class SelectedIndex(Index):
    """Abstract: some rows of `base`. Price: 8 bytes a row kept."""

    base: Index

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.int64]:
        """The rows of `base` that are kept, ascending, the same object each time."""

    @once
    def crc32(self) -> int:
        """Of which rows are kept, as a bitmap."""
        kept = np.zeros(len(self.base), dtype=bool)
        kept[self.numbers] = True
        return crc32(np.packbits(kept).data)

    def __len__(self) -> int:
        return len(self.numbers)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.lengths_at(np.arange(len(self)), columns, required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.base.lengths_at(self.numbers[numbers], columns, required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.base.locate(self.numbers[numbers])

    @property
    def schema(self) -> pa.Schema:
        return self.base.schema

    @property
    def list_columns(self) -> Sequence[str]:
        return self.base.list_columns

    @property
    def knows_labels(self) -> bool:
        return self.base.knows_labels

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.base.num_labels_at(self.numbers[numbers])

    @property
    def expects(self) -> bool:
        return self.base.expects

    def expect(self, sets: Sequence[RowSet]) -> None:
        self.base.expect([RowSet((self.crc32, one.name), one.num_rows, partial(self._of_base, one)) for one in sets])

    def _of_base(self, wanted: RowSet) -> NDArray[np.int64]:
        return self.numbers[wanted.rows()]


@dataclass(frozen=True)
class _Asked:
    """Which rows of a block a function is true for, bool (n,)."""

    fn: Callable[..., bool]
    on_error: OnError

    def __call__(self, block: Block) -> NDArray[np.bool_]:
        kept = np.zeros(block.num_rows, dtype=bool)
        for row, keep in tried("filter", self.fn, block, False, self.on_error, bool):
            kept[row] = keep
        return kept


@dataclass(frozen=True, eq=False)
class FilteredIndex(SelectedIndex):
    """The rows of `base` for which `fn(sample)` is true.

    Price: at the first use, in each process, all rows are read once and `fn` is called once a sample.
    """

    fn: Callable[..., bool]
    on_error: OnError = "raise"
    parallel: Parallel = SERIAL

    @once
    def numbers(self) -> NDArray[np.int64]:
        blocks = ((block, None) for _, block in _blocks(self.base))
        asked = self.parallel.called(_Asked(self.fn, self.on_error), blocks, f"filter({name_of(self.fn)})")
        with closing(asked) as answers:
            kept = np.flatnonzero(np.concatenate([np.zeros(0, dtype=bool), *(one.made for one in answers)]))
        logger.info("filter(%s) keeps %s of %s samples", name_of(self.fn), f"{len(kept):,}", f"{len(self.base):,}")
        return kept

    def fingerprint(self) -> dict[str, Any]:
        kept = {"fn": name_of(self.fn), "kept": len(self), "crc32": self.crc32}
        return {"base": self.base.fingerprint(), **kept}


@dataclass(frozen=True, eq=False)
class Sides:
    """On which side of a split each row of `base` lies: asked once for both of them.

    Price: at the first use, in each process, all rows are read once, of a store with a `key` that column alone; 1 byte a row.
    """

    base: Index
    split: Split

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def valid(self) -> NDArray[np.bool_]:
        base = self.base if self.split.key is None or not len(self.base) else self.base.only([self.split.key])
        return np.concatenate([np.zeros(0, dtype=bool), *(self.split.valid(block) for _, block in _blocks(base))])


@dataclass(frozen=True, eq=False)
class SideIndex(SelectedIndex):
    """The rows of `base` on one side of a split."""

    sides: Sides
    side: Side

    @once
    def numbers(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.sides.valid == (self.side == "valid"))

    def fingerprint(self) -> dict[str, Any]:
        kept = {"kept": len(self), "crc32": self.crc32}
        return {"base": self.base.fingerprint(), "split": described(self.sides.split), "side": self.side, **kept}


def _blocks(base: Index) -> Iterator[tuple[int, Block]]:
    """All rows in blocks, with the number of the first row of each."""
    for first in range(0, len(base), BLOCK_ROWS):
        yield first, base.take(np.arange(first, min(first + BLOCK_ROWS, len(base))))
