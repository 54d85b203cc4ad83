"""Rows and a plan to tensors that hold a row a sample: padded, or nested, which hold no padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from brimful.batching.batch import Batch
from brimful.tables.ragged import attention_mask, gaps
from brimful.tensors.columns import ListColumn, WindowColumns
from brimful.tensors.layouts import put
from brimful.tensors.structures import Unpadded


def padded(
    batch: Batch, columns: WindowColumns, left: bool = False, weighted: bool = False, *, on_device: bool = False
) -> dict[str, Any]:
    """A batch as padded tensors; `on_device`: as what becomes them there (`Unpadded`).

    Shapes: each token column (B, L), L the padded length of the first length column, each further length column by its own;
    other lists of numbers (B, their own longest); lists of a fixed size and arrays of one shape (B, *shape); numbers (B,);
    anything else a list. `attention_mask` (B, L) int64, by the first length column, unless the data have one; `lengths`
    (B,) int64, (B, d) for d length columns: the tokens that the mask shows. Where `weighted`, a batch filled up to its
    static shape ends in copies of its first row, without labels, and `sample_weights` (B,) float32 is 0 there.
    Price: 3 to 6 ns a slot for int64 ids and mask, and 30 us a batch.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"labels": [0, 1, 1], "score": 0.5}, {"labels": [1], "score": 1.0}])
    >>> batch = next(iter(data.batch(2, length_column="labels", pad_side="left", dtypes={"attention_mask": "bool"})))
    >>> batch["labels"].tolist(), batch["score"].tolist()
    ([[0, 1, 1], [-100, -100, 1]], [0.5, 1.0])
    >>> batch["attention_mask"].tolist()
    [[True, True, True], [False, False, True]]
    """
    numbers = batch.numbers
    real, (size, *widths) = len(numbers), batch.plan.shapes[batch.place]
    if size > real:
        batch = batch.of(np.concatenate((np.arange(real), np.zeros(size - real, np.int64))), size)
        numbers = batch.numbers
    sizes, shortest = columns.sizes(batch), batch.plan.shortest[batch.place]
    places = [gaps(own, width, left, shortest if own is sizes[0] else None) for own, width in zip(sizes, widths)]
    out: dict[str, Any] = {}
    for column in columns.all:
        if not isinstance(column, ListColumn):
            out[column.name] = column.of(numbers)
            continue
        place = column.follows
        own = column.counts[numbers] if place is None else sizes[place]
        width = max(1, int(own.max())) if place is None else widths[place]
        if on_device and column.name != "attention_mask":  # whose sum is wanted here
            out[column.name] = column.unpadded(numbers, own, width, left)
        else:
            out[column.name] = column.padded(numbers, own, width, left, None if place is None else places[place])
    if sizes:
        mask = out.get("attention_mask")
        if mask is None and on_device:
            counts, dtype = torch.from_numpy(sizes[0]), columns.made("attention_mask", np.empty(0, np.int64)).dtype
            out["attention_mask"] = Unpadded(None, counts, counts, widths[0], 0, left, dtype)
        elif mask is None:
            out["attention_mask"] = columns.made("attention_mask", attention_mask(places[0], widths[0]))
        elif isinstance(mask, torch.Tensor) and mask.shape == (len(numbers), widths[0]):
            sizes[0] = (mask != 0).sum(1).numpy()
        put(out, lengths=columns.made("lengths", sizes[0].copy() if len(sizes) == 1 else np.stack(sizes, axis=1)))
    if weighted:
        put(out, sample_weights=torch.ones(len(numbers)))
        out["sample_weights"][real:] = 0
        if batch.plan.left_out is not None:
            out["sample_weights"][torch.from_numpy(batch.plan.left_out[batch.span])] = 0
        columns.unlabel(out, slice(real, None), copies=True)
    return out


def nested(batch: Batch, columns: WindowColumns) -> dict[str, Any]:
    """A batch as nested tensors: nothing is padded, and no mask needed.

    Shapes: each list column (B, j), a nested tensor of layout torch.jagged that knows its least and greatest length;
    those that go with a length column share its offsets, so that they can be computed with together. All else and `lengths`
    as in `padded`.
    Price: about 6 ns a token.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    >>> batch = next(iter(data.batch(2, layout="nested")))
    >>> batch["input_ids"].values().tolist(), batch["input_ids"].offsets().tolist(), batch["lengths"].tolist()
    ([5, 6, 7, 8], [0, 3, 4], [3, 1])
    """
    numbers, sizes = batch.numbers, columns.sizes(batch)
    shared: dict[int, torch.Tensor] = {}
    out: dict[str, Any] = {}
    for column in columns.all:
        if not isinstance(column, ListColumn):
            out[column.name] = column.of(numbers)
            continue
        own = column.counts[numbers] if column.follows is None else sizes[column.follows]
        values, bounds = column.joined(numbers, own)
        offsets = torch.from_numpy(bounds)
        if column.follows is not None:
            offsets = shared.setdefault(column.follows, offsets)
        out[column.name] = torch.nested.nested_tensor_from_jagged(
            values, offsets, min_seqlen=int(own.min()), max_seqlen=int(own.max())
        )
    if isinstance(mask := out.get("attention_mask"), torch.Tensor) and 0 in shared:
        shown = np.cumsum(mask.values().numpy() != 0)
        sizes[0] = np.diff(np.concatenate(([0], shown))[shared[0].numpy()])
    if sizes:
        put(out, lengths=columns.made("lengths", sizes[0].copy() if len(sizes) == 1 else np.stack(sizes, axis=1)))
    return out
