"""Rows and a plan to tensors: the only place where payload meets torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from brimful.ragged import attention_mask, is_ragged, pad
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
    window, rows = batch.window, batch.window.rows[batch.numbers]
    widths = batch.padded_length if isinstance(batch.padded_length, tuple) else (batch.padded_length,)
    given = {
        name: width for name, width in zip(length_columns, widths, strict=True) if name in window.block.schema.names
    }
    sizes = {name: np.minimum(window.ragged(name).spans(rows)[1], width) for name, width in given.items()}
    out: dict[str, Any] = {}
    for field, array in zip(window.block.schema, window.block.columns, strict=True):
        name = field.name
        if name.startswith(HIDDEN):
            continue
        if is_ragged(field.type) and not array.null_count:
            column = window.ragged(name)
            starts, counts = column.spans(rows)
            width = given.get(name) or _width(counts, sizes, given)
            fill = pad_values.get(name, PAD_VALUES.get(name, 0))
            dtype = _wide(column.values.dtype)
            out[name] = torch.from_numpy(
                pad(column.values, starts, np.minimum(counts, width), width, fill, dtype, left)
            )
        else:
            out[name] = _stacked(array.take(pa.array(rows)))
    if given:
        first = next(iter(given))
        out["attention_mask"] = torch.from_numpy(attention_mask(sizes[first], given[first], left))
        out["lengths"] = torch.from_numpy(np.stack(list(sizes.values()), axis=1) if len(sizes) > 1 else sizes[first])
    return out


def by_function(batch: Batch, collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """A batch through a function of the user's, such as a Hugging Face collator. Price: Python, once a sample."""
    return collate_fn(samples(batch.window.take(batch.numbers)))


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
