"""Those rows of an index for which a user's function is true, found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, eq=False)
class SelectedIndex(Index):
    """The rows of `base` for which `fn(sample)` is true.

    Price: at the first use, in each process, all rows are read once and `fn` is called once a sample; 8 bytes a row kept.
    """

    base: Index
    fn: Callable[..., bool]
    on_error: OnError = "raise"

    @once
    def numbers(self) -> NDArray[np.int64]:
        """The rows of `base` that are kept, ascending."""
        count, pieces = len(self.base), [np.zeros(0, dtype=np.int64)]
        for first in range(0, count, BLOCK_ROWS):
            block = self.base.take(np.arange(first, min(first + BLOCK_ROWS, count)))
            found = tried("filter", self.fn, block, False, self.on_error, bool)
            pieces.append(first + np.array([row for row, keep in found if keep], dtype=np.int64))
        kept = np.concatenate(pieces)
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
