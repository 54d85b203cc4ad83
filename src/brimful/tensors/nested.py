"""Rows and a plan to nested tensors, which hold no padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from brimful.batching.batch import Batch
from brimful.tensors.columns import Columns, Lists
from brimful.tensors.layouts import put


def nested(batch: Batch, columns: Columns) -> dict[str, Any]:
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
        if not isinstance(column, Lists):
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
        put(out, lengths=columns.made("lengths", sizes[0] if len(sizes) == 1 else np.stack(sizes, axis=1)))
    return out
