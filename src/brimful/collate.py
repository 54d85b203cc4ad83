"""Rows and a plan to tensors: the only place where payload meets torch."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from brimful.columns import Columns, Lists, Objects
from brimful.ragged import attention_mask, gaps, gather, list_array
from brimful.rows import samples
from brimful.windows import Batch, Pieces

SEQLEN_STEP: Final = 128
"""`max_seqlen` is rounded up to a multiple of it: each new value may compile a kernel anew."""


def padded(batch: Batch, columns: Columns, left: bool = False, weighted: bool = False) -> dict[str, Any]:
    """A batch as padded tensors.

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
    real = len(batch)
    if batch.padded_size > real:
        copies = np.repeat(batch.numbers[:1], batch.padded_size - real)
        batch = replace(batch, numbers=np.concatenate((batch.numbers, copies)))
    numbers, sizes = batch.numbers, columns.sizes(batch)
    places = [gaps(own, width, left) for own, width in zip(sizes, batch.widths)]
    out: dict[str, Any] = {}
    for column in columns.all:
        if not isinstance(column, Lists):
            out[column.name] = column.of(numbers)
        elif column.follows is not None:
            place = column.follows
            out[column.name] = column.padded(numbers, sizes[place], batch.widths[place], left, places[place])
        else:
            own = column.counts[numbers]
            out[column.name] = column.padded(numbers, own, max(1, int(own.max())), left)
    if sizes:
        mask = out.get("attention_mask")
        if mask is None:
            out["attention_mask"] = columns.made("attention_mask", attention_mask(places[0], batch.widths[0]))
        elif isinstance(mask, torch.Tensor) and mask.shape == (len(numbers), batch.widths[0]):
            sizes[0] = (mask != 0).sum(1).numpy()
        out["lengths"] = columns.made("lengths", sizes[0] if len(sizes) == 1 else np.stack(sizes, axis=1))
    if weighted:
        out["sample_weights"] = torch.ones(len(numbers))
        out["sample_weights"][real:] = 0
        _unlabel(out, slice(real, None), columns)
    return out


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
    if sizes:
        out["lengths"] = columns.made("lengths", sizes[0] if len(sizes) == 1 else np.stack(sizes, axis=1))
    return out


def packed(batch: Batch, columns: Columns, hf_flash_attention: bool = False) -> dict[str, Any]:
    """Rows of samples end to end, with what keeps them apart.

    Shapes, for R rows of L tokens with n segments (the samples or pieces, and the padding at the end of each row that has
    some, so that a kernel leaves no slot undefined): each token column, `position_ids`
    (restart at 0) and `segment_ids` (1, 2 ... in each row; 0: padding) (R, L) int64; `labels` likewise, those of the
    column or else the tokens, -100 in padding and at the first token of each segment; `cu_seqlens` (n + 1,) int32 over
    the R x L slots; `max_seqlen`, an int, rounded up to a multiple of 128 (each new value may compile anew); `lengths`,
    `sample_numbers` (p,) int64 (rows of the data set, of a stream those of its window) and other columns: of the p
    pieces, in order. An empty sample is a piece without a segment. With `hf_flash_attention` the boundaries are called
    cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k. A column `attention_mask` is left out: to a model it would
    say that the samples of a row see each other.
    Price: about 15 ns a slot.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}])
    >>> batch = next(iter(data.pack(6)))
    >>> batch["input_ids"].tolist(), batch["segment_ids"].tolist(), batch["position_ids"].tolist()
    ([[7, 8, 9, 5, 6, 0]], [[1, 1, 1, 2, 2, 0]], [[0, 1, 2, 0, 1, 0]])
    >>> batch["labels"].tolist(), batch["cu_seqlens"].tolist(), batch["sample_numbers"].tolist()
    ([[-100, 8, 9, -100, 6, -100]], [0, 3, 5, 6], [1, 0])
    """
    pieces = batch.pieces
    assert pieces is not None
    numbers, shape = batch.numbers, (batch.padded_size, batch.widths[0])
    segments = _segments(pieces, *shape)
    sizes = np.diff(segments.bounds)
    slots = np.arange(shape[0] * shape[1])
    places = slots - np.repeat(segments.bounds[:-1], sizes)
    segment_ids = np.repeat(segments.ids, sizes).reshape(shape)
    gap = segment_ids == 0
    out: dict[str, Any] = {}
    for column in columns.all:
        if column.name == "attention_mask":
            continue
        if not isinstance(column, Lists):
            out[column.name] = column.of(numbers)
        elif column.follows is not None:
            sources = (column.starts[numbers] + pieces.starts)[segments.pieces] - segments.bounds[:-1]
            out[column.name] = column.spread((slots + np.repeat(sources, sizes)).reshape(shape), gap)
        else:
            own = column.counts[numbers]
            out[column.name] = column.padded(numbers, own, max(1, int(own.max())), left=False)
    ignored = columns.fill("labels")
    if "labels" not in out:
        dtype = getattr(torch, columns.rules.dtypes.get("labels", "int64"))
        out["labels"] = out[columns.given[0]].to(dtype, copy=True)
        out["labels"].masked_fill_(torch.from_numpy(gap), ignored)
        tokenwise = True
    else:
        tokenwise = any(
            isinstance(one, Lists) and one.follows is not None and one.name == "labels" for one in columns.all
        )
    if tokenwise:
        out["labels"].view(-1)[torch.from_numpy(segments.bounds[:-1])] = ignored
    out["position_ids"] = columns.made("position_ids", places.reshape(shape))
    out["segment_ids"] = columns.made("segment_ids", segment_ids)
    bounds = torch.from_numpy(segments.bounds.astype(np.int32))
    longest = min(-(-int(sizes.max()) // SEQLEN_STEP) * SEQLEN_STEP, shape[1])
    if hf_flash_attention:
        out |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    else:
        out |= {"cu_seqlens": bounds, "max_seqlen": longest}
    out["lengths"] = columns.made("lengths", pieces.lengths)
    out["sample_numbers"] = columns.made("sample_numbers", batch.window.samples[numbers])
    return out


def by_function(batch: Batch, columns: Columns, collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """A batch through a function of the user's, such as a Hugging Face collator: its real samples, cut as planned.

    Price: Python, once a sample.
    """
    sizes, arrays = columns.sizes(batch), []
    for column in columns.all:
        if isinstance(column, Lists):
            assert column.follows is not None
            starts = column.starts[batch.numbers] + (0 if batch.pieces is None else batch.pieces.starts)
            cut = gather(column.values, starts, sizes[column.follows])
            arrays.append(list_array(cut.values, cut.offsets))
        else:
            assert isinstance(column, Objects)
            arrays.append(column.values.take(pa.array(column.rows[batch.numbers])))
    return collate_fn(samples(pa.RecordBatch.from_arrays(arrays, [column.name for column in columns.all])))


def weighed(tensors: Any, weight: float, columns: Columns, num_items: int | None = None) -> Any:
    """A data-parallel rank's batch (a dict) with `weight` and `is_filler`; a filler asks for no label.

    `num_items`, the labels of the whole step that are trained on, becomes `num_items_in_batch` () int64: a tensor, as it
    goes to the device with the batch, and a compiled step does not take each new value for a constant.
    """
    if isinstance(tensors, MutableMapping):
        tensors.update(weight=weight, is_filler=weight == 0)
        if num_items is not None:
            tensors.update(num_items_in_batch=torch.tensor(num_items))
        if not weight:
            _unlabel(tensors, slice(None), columns)
    return tensors


def _unlabel(out: MutableMapping[str, Any], rows: slice, columns: Columns) -> None:
    """Rows that ask for no label: -100 where labels are classes; anything else has its weight to go by."""
    labels = out.get("labels")
    if isinstance(labels, torch.Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool:
        if labels.is_nested:
            labels = labels.values()
        labels[rows] = int(columns.fill("labels"))


class _Segments(NamedTuple):
    """What follows what in rows of packed pieces: the pieces that are not empty, and the padding at the ends of rows.

    Args:
        bounds: the first slot of each, and the end, int64 (n + 1,).
        pieces: which piece each is; any for padding.
        ids: 1, 2 ... in each row, 0 for padding.
    """

    bounds: NDArray[np.int64]
    pieces: NDArray[np.int64]
    ids: NDArray[np.int64]


def _segments(pieces: Pieces, num_rows: int, row_length: int) -> _Segments:
    totals = np.bincount(pieces.rows, weights=pieces.lengths, minlength=num_rows).astype(np.int64)
    filled = np.flatnonzero(pieces.lengths)
    rows, lengths = pieces.rows[filled], pieces.lengths[filled]
    ends = np.cumsum(totals)
    begins = np.cumsum(lengths) - lengths + (rows * row_length - (ends - totals)[rows])
    ids = np.arange(len(filled)) - np.searchsorted(rows, rows) + 1
    tails = np.flatnonzero(totals < row_length)
    firsts = np.concatenate((begins, tails * row_length + totals[tails]))
    order = np.argsort(firsts)
    none = np.zeros(len(tails), np.int64)
    return _Segments(
        np.append(firsts[order], num_rows * row_length),
        np.concatenate((filled, none))[order],
        np.concatenate((ids, none))[order],
    )
