"""Those rows of an index for which a user's function is true, found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.errors import OnError, logger, name_of
from brimful.core.once import once
from brimful.core.stream import BLOCK_ROWS
from brimful.index.index import Index, RowSet
from brimful.rows.blocks import Block, tried
from brimful.rows.parallel import SERIAL, Parallel


@dataclass(frozen=True)
class _Kept:
    """Which rows of a block a function is true for, bool (n,)."""

    fn: Callable[..., bool]
    on_error: OnError

    def __call__(self, block: Block) -> NDArray[np.bool_]:
        kept = np.zeros(block.num_rows, dtype=bool)
        for row, keep in tried("filter", self.fn, block, False, self.on_error, bool):
            kept[row] = keep
        return kept


@dataclass(frozen=True, eq=False)
class SelectedIndex(Index):
    """The rows of `base` for which `fn(sample)` is true.

    Price: at the first use, in each process, all rows are read once and `fn` is called once a sample; 8 bytes a row kept.
    """

    base: Index
    fn: Callable[..., bool]
    on_error: OnError = "raise"
    parallel: Parallel = SERIAL

    @once
    def numbers(self) -> NDArray[np.int64]:
        """The rows of `base` that are kept, ascending."""
        count, kept_in = len(self.base), _Kept(self.fn, self.on_error)
        blocks = (
            (self.base.take(np.arange(first, min(first + BLOCK_ROWS, count))), None)
            for first in range(0, count, BLOCK_ROWS)
        )
        with closing(self.parallel.called(kept_in, blocks, f"filter({name_of(self.fn)})")) as calls:
            kept = np.flatnonzero(np.concatenate([np.zeros(0, dtype=bool), *(one.made for one in calls)]))
        logger.info("filter(%s) keeps %s of %s samples", name_of(self.fn), f"{len(kept):,}", f"{count:,}")
        return kept

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

    def fingerprint(self) -> dict[str, Any]:
        kept = {"fn": name_of(self.fn), "kept": len(self), "crc32": self.crc32}
        return {"base": self.base.fingerprint(), **kept}

    def _of_base(self, wanted: RowSet) -> NDArray[np.int64]:
        return self.numbers[wanted.rows()]
