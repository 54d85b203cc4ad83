"""Lengths alone as an index: what can be planned, and not fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.core.errors import ORIGIN, origins
from brimful.core.once import once
from brimful.index.index import Index


@dataclass(frozen=True, eq=False)
class LengthIndex(Index):
    """Samples of which nothing but the lengths is known, int64 (n,) or (n, d)."""

    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[np.int64]:
        return self.values

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self._origins, numbers

    def fingerprint(self) -> dict[str, int]:
        return {"samples": len(self), "lengths_crc32": crc32(np.ascontiguousarray(self.values).data)}

    @once
    def _origins(self) -> Block:
        """Rows of nothing but their number, which a message about one of them names."""
        return pa.RecordBatch.from_arrays([origins("lengths", np.arange(len(self)), "sample")], [ORIGIN])
