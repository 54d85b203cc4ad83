"""A row a sample, without padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.arrays.columns import ListColumn, WindowColumns
from brimful.arrays.end_to_end import Jagged
from brimful.arrays.layout import Layout, put
from brimful.arrays.padded import lengths_of
from brimful.batching.batch import Batch
from brimful.tables.ragged import MASK


@dataclass(frozen=True)
class Nested(Layout):
    """Nested tensors: nothing is padded, and no mask needed. Here they are `Jagged`, of which torch makes them.

    Shapes: each list column (B, j), a nested tensor of layout torch.jagged that knows its least and greatest length; those
    that go with a length column share its offsets, so that they can be computed with together. All else and `lengths` as in
    `Padded`.
    Price: about 6 ns a token.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    >>> batch = next(iter(data.batch(2, layout="nested")))
    >>> batch["input_ids"].values().tolist(), batch["input_ids"].offsets().tolist(), batch["lengths"].tolist()
    ([5, 6, 7, 8], [0, 3, 4], [3, 1])
    """

    name = "nested"
    varies = True
    in_numpy = False

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        numbers, sizes = batch.numbers, columns.sizes(batch)
        shared: dict[int, np.ndarray] = {}
        out: dict[str, Any] = {}
        for column in columns.all:
            if not isinstance(column, ListColumn):
                out |= columns.entries(column, numbers, "concat")
                continue
            made = column.jagged(
                numbers, column.counts[numbers] if column.aligned_with is None else sizes[column.aligned_with]
            )
            if column.aligned_with is not None:
                made = replace(made, offsets=shared.setdefault(column.aligned_with, made.offsets))
            out[column.name] = made
        if isinstance(mask := out.get(MASK), Jagged) and 0 in shared:
            sizes[0] = np.diff(np.concatenate(([0], np.cumsum(mask.values != 0)))[shared[0]])
        if sizes:
            put(out, lengths=columns.made("lengths", lengths_of(sizes)))
        return out

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        tokens = sum(int(own.sum()) for own in columns.sizes(batch))
        return (len(batch), tokens), tokens
