"""Rows and a plan to tensors: the only place where payload meets torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from brimful.ragged import attention_mask, gather, is_ragged, pad
from brimful.rows import HIDDEN, Block, samples
from brimful.windows import Batch, Packs

PAD_VALUES: Final = {"labels": -100}
"""What padding holds where the user says nothing; 0 in every other column."""


def padded(
    batch: Batch, length_columns: tuple[str, ...], pad_values: Mapping[str, int], left: bool, weighted: bool
) -> dict[str, Any]:
    """A batch as padded tensors.

    Shapes: each list column (B, L), integers as int64; a list column that is as long as a length column in every row
    shares its L, another one has its own longest. `attention_mask` (B, L) int64, by the first length column; `lengths`
    (B,) int64, (B, d) for d length columns; numbers (B,); anything else a list. Where `weighted`, a batch filled up to
    its static shape ends in copies of its first row, with labels of -100, and `sample_weights` (B,) float32 is 0 there.
    Price: about 3 ns a slot for int64 ids and mask, and 50 us a batch.
    """
    window = batch.window
    real = len(batch)
    numbers = np.concatenate((batch.numbers, np.repeat(batch.numbers[:1], batch.padded_size - real)))
    rows = window.rows[numbers]
    widths = batch.padded_length if isinstance(batch.padded_length, tuple) else (batch.padded_length,)
    given = {
        name: width for name, width in zip(length_columns, widths, strict=True) if name in window.block.schema.names
    }
    sizes = {name: np.minimum(window.ragged(name).spans(rows)[1], width) for name, width in given.items()}
    out: dict[str, Any] = {}
    for name, is_list in _columns(window.block):
        if is_list:
            column = window.ragged(name)
            starts, counts = column.spans(rows)
            width = given.get(name) or _width(counts, sizes, given)
            dtype = _wide(column.values.dtype)
            fill = _fill(name, pad_values)
            out[name] = torch.from_numpy(
                pad(column.values, starts, np.minimum(counts, width), width, fill, dtype, left)
            )
        else:
            out[name] = _stacked(window.block.column(name).take(pa.array(rows)))
    if given:
        first = next(iter(given))
        out["attention_mask"] = torch.from_numpy(attention_mask(sizes[first], given[first], left))
        out["lengths"] = torch.from_numpy(np.stack(list(sizes.values()), axis=1) if len(sizes) > 1 else sizes[first])
    if weighted:
        out["sample_weights"] = torch.ones(len(rows))
        out["sample_weights"][real:] = 0
        if "labels" in out:
            out["labels"][real:] = _fill("labels", pad_values)
    return out


def packed(packs: Packs, length_column: str, pad_values: Mapping[str, int], hf_flash_attention: bool) -> dict[str, Any]:
    """Rows of samples end to end, with what keeps them apart.

    Shapes, for R rows of L tokens with n segments (the samples or pieces, and the padding at the end of each row that has
    some, so that a kernel leaves no slot undefined): each list column as long as the length column, `position_ids`
    (restart at 0) and `segment_ids` (1, 2 ... in each row; 0: padding) (R, L) int64; `labels` likewise, those of the
    column or else the tokens, -100 in padding and at the first token of each sample; `cu_seqlens` (n + 1,) int32 over the
    R x L slots; `max_seqlen`, an int, rounded up to a multiple of 128 (each new value may compile anew); `lengths` (p,)
    and other columns: of the p pieces, in order.
    With `hf_flash_attention` the last two are called cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k.
    Price: about 15 ns a slot.
    """
    window = packs.window
    shape = (packs.padded_size, packs.padded_length)
    rows = window.rows[packs.numbers]
    totals = np.bincount(packs.rows, weights=packs.lengths, minlength=shape[0]).astype(np.int64)
    before = np.cumsum(packs.lengths) - packs.lengths  # tokens before each piece, of all rows
    begins = before - (np.cumsum(totals) - totals)[packs.rows] + packs.rows * shape[1]  # its first slot
    filled = attention_mask(totals, shape[1]).astype(bool)
    whole = window.ragged(length_column).spans(rows)[1]
    out: dict[str, Any] = {}
    for name, is_list in _columns(window.block):
        if is_list and np.array_equal(window.ragged(name).spans(rows)[1], whole):
            column = window.ragged(name)
            slots = np.full(shape, _fill(name, pad_values), dtype=_wide(column.values.dtype))
            slots[filled] = gather(column.values, column.spans(rows)[0] + packs.starts, packs.lengths).values
            out[name] = torch.from_numpy(slots)
        else:
            out[name] = _stacked(window.block.column(name).take(pa.array(rows)))
    tails = np.flatnonzero(totals < shape[1])
    bounds = np.sort(np.concatenate((begins, tails * shape[1] + totals[tails], [shape[0] * shape[1]])))
    sizes = np.diff(bounds)
    longest = min(-(-int(sizes.max(initial=1)) // _SEQLEN_STEP) * _SEQLEN_STEP, shape[1])
    places = np.arange(shape[0] * shape[1]) - np.repeat(bounds[:-1], sizes)
    segments = np.zeros(shape, dtype=np.int64)
    first_of_row = np.searchsorted(packs.rows, packs.rows)
    segments[filled] = np.repeat(np.arange(len(packs)) - first_of_row + 1, packs.lengths)
    out["labels"] = _apart(out["labels"] if "labels" in out else out[length_column].clone(), filled, places, pad_values)
    out["position_ids"] = torch.from_numpy(places.reshape(shape))
    out["segment_ids"] = torch.from_numpy(segments)
    cumulative = torch.from_numpy(bounds.astype(np.int32))
    if hf_flash_attention:
        out |= {
            "cu_seq_lens_q": cumulative,
            "cu_seq_lens_k": cumulative,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    else:
        out |= {"cu_seqlens": cumulative, "max_seqlen": longest}
    out["lengths"] = torch.from_numpy(packs.lengths)
    return out


_SEQLEN_STEP: Final = 128


def _apart(
    labels: torch.Tensor, filled: NDArray[np.bool_], places: NDArray[np.int64], pad_values: Mapping[str, int]
) -> torch.Tensor:
    """Labels that no token of another sample is asked to predict, and none in padding."""
    labels[torch.from_numpy(~filled | (places.reshape(filled.shape) == 0))] = _fill("labels", pad_values)
    return labels


def weighed(tensors: Any, weight: float, pad_values: Mapping[str, int]) -> Any:
    """A data-parallel rank's batch (a dict) with `weight` and `is_filler`; a filler asks for no label."""
    if not isinstance(tensors, MutableMapping):
        return tensors
    tensors |= {"weight": weight, "is_filler": weight == 0}
    if not weight and "labels" in tensors:
        tensors["labels"] = torch.full_like(tensors["labels"], _fill("labels", pad_values))
    return tensors


def by_function(batch: Batch | Packs, collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """A batch through a function of the user's, such as a Hugging Face collator. Price: Python, once a sample."""
    return collate_fn(samples(batch.window.take(batch.numbers)))


def _columns(block: Block) -> list[tuple[str, bool]]:
    """The visible columns, and whether each is a list of numbers without a null."""
    return [
        (field.name, is_ragged(field.type) and not block.column(place).null_count)
        for place, field in enumerate(block.schema)
        if not field.name.startswith(HIDDEN)
    ]


def _fill(name: str, pad_values: Mapping[str, int]) -> int:
    return pad_values.get(name, PAD_VALUES.get(name, 0))


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
