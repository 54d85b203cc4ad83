"""A row a sample, padded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.arrays.columns import ListColumn, WindowColumns
from brimful.arrays.end_to_end import RaggedOnDevice
from brimful.arrays.forms import Form
from brimful.arrays.layout import Layout, put
from brimful.batching.batch import Batch
from brimful.tables.ragged import attention_mask, gaps


@dataclass(frozen=True)
class Padded(Layout):
    """A row a sample, padded to the batch's length.

    Shapes: each token column (B, L), L the padded length of the first length column, each further length column by its own;
    other lists of numbers (B, their own longest); lists of a fixed size and arrays of one shape (B, *shape); numbers (B,);
    anything else a list. `attention_mask` (B, L) int64, by the first length column, unless the data have one; where there are
    several length columns, each whose name ends in `_input_ids` has one with its prefix, as `chosen_attention_mask`. `lengths`
    (B,) int64, (B, d) for d length columns: the tokens that the masks show. Where `weighted`, a batch filled up to its
    static shape ends in copies of its first row, without labels, and `sample_weights` (B,) float32 is 0 there.

    Args:
        left: the padding comes first.
        weighted: rows that fill a batch up to its static shape have weight 0.
        on_device: lists travel end to end, and are padded where they arrive (`RaggedOnDevice`).
        arrays: the form of arrays with a ragged dimension of their own, where the user names none.
    Price: 3 to 6 ns a slot for int64 ids and mask, and 30 us a batch.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"labels": [0, 1, 1], "score": 0.5}, {"labels": [1], "score": 1.0}])
    >>> batch = next(iter(data.batch(2, length_column="labels", pad_side="left", dtypes={"attention_mask": "bool"})))
    >>> batch["labels"].tolist(), batch["score"].tolist()
    ([[0, 1, 1], [-100, -100, 1]], [0.5, 1.0])
    >>> batch["attention_mask"].tolist()
    [[True, True, True], [False, False, True]]
    """

    left: bool = False
    weighted: bool = False
    on_device: bool = False
    arrays: Form = "pad"

    def unpadded(self) -> Layout:
        return replace(self, on_device=True)

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        numbers, left = batch.numbers, self.left
        real, size, widths = len(numbers), batch.padded_size, columns.widths(batch)
        if size > real:
            batch = batch.select(np.concatenate((np.arange(real), np.zeros(size - real, np.int64))), size)
            numbers = batch.numbers
        sizes, shortest = columns.sizes(batch), batch.plan.shortest[batch.place]
        places = [gaps(own, width, left, shortest if own is sizes[0] else None) for own, width in zip(sizes, widths)]
        out: dict[str, Any] = {}
        masks = columns.masks
        for column in columns.all:
            place = column.aligned_with if isinstance(column, ListColumn) else None
            if not isinstance(column, ListColumn) or (place is None and not self.on_device):
                out |= columns.entries(column, numbers, self.arrays, left)
                continue
            own = column.counts[numbers] if place is None else sizes[place]
            width = max(1, int(own.max())) if place is None else widths[place]
            if self.on_device and column.name not in masks:  # whose sum is wanted here
                out[column.name] = column.unpadded(numbers, own, width, left)
            else:
                out[column.name] = column.padded(numbers, own, width, left, None if place is None else places[place])
        if sizes:
            for name, place in masks.items():
                mask = out.get(name)
                if mask is None and self.on_device:
                    kind = columns.type_of(name, np.empty(0, np.int64))
                    out[name] = RaggedOnDevice(None, sizes[place], sizes[place], widths[place], 0, left, kind)
                elif mask is None:
                    out[name] = columns.made(name, attention_mask(places[place], widths[place]))
                elif isinstance(mask, np.ndarray) and mask.shape == (len(numbers), widths[place]):
                    sizes[place] = (mask != 0).sum(1)
            put(out, lengths=columns.made("lengths", lengths_of(sizes)))
        if self.weighted:
            weights = np.ones(len(numbers), np.float32)
            weights[real:] = 0
            if batch.plan.left_out is not None:
                weights[batch.plan.left_out[batch.span]] = 0
            put(out, sample_weights=weights)
            columns.unlabel(out, slice(real, None), copies=True)
        return out


def lengths_of(sizes: list[np.ndarray]) -> np.ndarray:
    """The tokens of each sample, (B,) int64, (B, d) for d length columns."""
    return sizes[0].copy() if len(sizes) == 1 else np.stack(sizes, axis=1)
