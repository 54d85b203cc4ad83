"""Rows and a plan to tensors: the only place where payload meets torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from brimful.ragged import Ragged, is_ragged, mask, pad, ragged
from brimful.rows import HIDDEN, samples
from brimful.windows import Batch

PAD_VALUES: Final = {"labels": -100}
"""What padding holds where the user says nothing; 0 in every other column."""


def padded(batch: Batch, length_columns: tuple[str, ...], pad_values: Mapping[str, int], left: bool) -> dict[str, Any]:
    """A batch as padded tensors.

    Shapes: each list column (B, L), integers as int64; a list column that is as long as the first length column shares
    its L, another one has its own longest. `attention_mask` (B, L) int64; `lengths` (B,) int64, (B, d) for d length
    columns; numbers (B,); anything else a list.
    Price: about 6 ns a slot for int64 ids and mask.
    """
    block, rows = batch.window.block, batch.window.rows[batch.numbers]
    widths = batch.padded_length if isinstance(batch.padded_length, tuple) else (batch.padded_length,)
    given = {name: width for name, width in zip(length_columns, widths, strict=True) if name in block.schema.names}
    sizes = {name: np.minimum(_sizes(ragged(block, name), rows), width) for name, width in given.items()}
    out: dict[str, Any] = {}
    for name, array in zip(block.schema.names, block.columns, strict=True):
        if name.startswith(HIDDEN):
            continue
        if is_ragged(array.type) and not array.null_count:
            column = ragged(block, name)
            width = given.get(name) or _width(_sizes(column, rows), sizes, given)
            fill = pad_values.get(name, PAD_VALUES.get(name, 0))
            out[name] = torch.from_numpy(pad(column, rows, width, fill, _wide(column.values.dtype), left))
        else:
            out[name] = _stacked(array.take(pa.array(rows)))
    if given:
        first = next(iter(given))
        out["attention_mask"] = torch.from_numpy(mask(sizes[first], given[first], left).astype(np.int64))
        out["lengths"] = torch.from_numpy(np.stack(list(sizes.values()), axis=1) if len(sizes) > 1 else sizes[first])
    return out


def by_function(batch: Batch, collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """A batch through a function of the user's, such as a Hugging Face collator. Price: Python, once a sample."""
    return collate_fn(samples(batch.window.take(batch.numbers)))


def _sizes(column: Ragged, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    sizes: NDArray[np.int64] = column.offsets[1:][rows] - column.offsets[:-1][rows]
    return sizes


def _width(own: NDArray[np.int64], sizes: Mapping[str, NDArray[np.int64]], given: Mapping[str, int]) -> int:
    """The width of a length column that is as long in every row, else the column's own longest."""
    for name, width in given.items():
        if np.array_equal(np.minimum(own, width), sizes[name]):
            return width
    return max(1, int(own.max(initial=0)))


def _wide(dtype: np.dtype[Any]) -> Any:
    return np.int64 if dtype.kind in "iu" else dtype


def _stacked(array: pa.Array) -> Any:
    if array.null_count == 0 and (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        values = array.to_numpy(zero_copy_only=False)
        return torch.from_numpy(values.astype(_wide(values.dtype)))
    if array.null_count == 0 and pa.types.is_boolean(array.type):
        return torch.from_numpy(np.array(array.to_numpy(zero_copy_only=False)))
    return array.to_pylist()
