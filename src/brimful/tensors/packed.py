"""Rows and a plan to rows of samples end to end."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.batching.batch import Batch, PackedPieces, PlannedBatches
from brimful.blocks.ragged import LABELS, MASK, SHIFTED
from brimful.core.errors import DataError
from brimful.tensors.columns import ListColumn, WindowColumns
from brimful.tensors.layouts import put

SEQLEN_STEP: Final = 128
"""`max_seqlen` is rounded up to a multiple of it: each new value may compile a kernel anew."""
SLOTS: Final = 1 << 16
"""So many are made at once, of several batches: small arrays take as long as the calls that make them."""


def packed(batch: Batch, columns: WindowColumns) -> dict[str, Any]:
    """Rows of samples end to end, with what keeps them apart.

    Shapes, for R rows of L tokens with n segments (the samples or pieces, and the padding at the end of each row that has
    some, or all of a row that is empty, so that a kernel leaves no slot undefined): each token column, `position_ids`
    (restart at 0) and `segment_ids` (1, 2 ... in each row; 0: padding) (R, L) int64; `labels` likewise, those of the
    column, or else of `shift_labels`, or else the tokens, -100 in padding and at the first token of each segment (of
    `shift_labels` at the last one); `cu_seqlens` (n + 1,) int32 over
    the R x L slots; `max_seqlen`, an int, rounded up to a multiple of 128 (each new value may compile anew); `lengths`,
    `sample_numbers` (p,) int64 (rows of the data set, of a stream those of its window) and other columns: of the p
    pieces, in order. An empty sample is a piece without a segment. The boundaries are there under the names of transformers'
    flash attention too: cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k. `seq_idx` (R, L) int32 numbers the segments of
    each row from 0, padding included: what kernels of convolutions and of state-space layers take (causal-conv1d, mamba-ssm),
    and transformers' models hand on to them.
    `use_cache` is False: those of transformers' causal models that tell samples apart by their positions do so only where they
    keep no cache, and by default they keep one, also in training. A column `attention_mask` is left out, as are the tokens that
    it hides: to a model it would say that the samples of a row see each other. Models that are not causal want more: see
    `attention.padding_free`.
    Price: about 15 ns a slot.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}])
    >>> batch = next(iter(data.pack(6)))
    >>> batch["input_ids"].tolist(), batch["segment_ids"].tolist(), batch["position_ids"].tolist()
    ([[7, 8, 9, 5, 6, 0]], [[1, 1, 1, 2, 2, 0]], [[0, 1, 2, 0, 1, 0]])
    >>> batch["labels"].tolist(), batch["cu_seqlens"].tolist(), batch["sample_numbers"].tolist()
    ([[-100, 8, 9, -100, 6, -100]], [0, 3, 5, 6], [1, 0])
    """
    numbers, plan = batch.numbers, batch.plan
    together = _TOGETHER.get(plan)
    if together is None or not 0 <= batch.place - together.first < len(together.longest):
        together = _TOGETHER[plan] = _together(plan, batch.place, columns)
    at, rows = batch.place - together.first, batch.padded_size
    own = slice(at * rows, (at + 1) * rows)
    out: dict[str, Any] = {}
    for column in columns.all:
        if column.name in together.tensors:
            out[column.name] = together.tensors[column.name][own].clone()
        elif not isinstance(column, ListColumn):
            out[column.name] = column.of(numbers)
        elif column.name != MASK:
            counts = column.counts[numbers]
            out[column.name] = column.padded(numbers, counts, max(1, int(counts.max())), left=False)
    if LABELS not in out:
        out[LABELS] = together.tensors[LABELS][own].clone()
    ends, longest = together.bounds[together.cuts[at] : together.cuts[at + 1] + 1], together.longest[at]
    bounds = torch.from_numpy((ends - ends[0]).astype(np.int32))
    put(
        out,
        position_ids=together.positions[own].clone(),
        segment_ids=together.segment_ids[own].clone(),
        seq_idx=together.seq_idx[own].clone(),
        cu_seqlens=bounds,
        max_seqlen=longest,
        cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds,
        max_length_q=longest,
        max_length_k=longest,
        use_cache=False,
        lengths=columns.made("lengths", columns.sizes(batch)[0].copy()),
        sample_numbers=columns.made("sample_numbers", batch.window.samples[numbers]),
    )
    return out


class _Together(NamedTuple):
    """Batches of a plan that are made at once, one below the other; each is handed on as a copy, with memory of its own.

    Args:
        first: the place of the first one.
        tensors: what goes with the tokens, by column, and `labels`.
        bounds: the first slot of each segment, and the end; those of batch i are `bounds[cuts[i] : cuts[i + 1] + 1]`.
        longest: `max_seqlen` of each batch.
    """

    first: int
    tensors: dict[str, torch.Tensor]
    positions: torch.Tensor
    segment_ids: torch.Tensor
    seq_idx: torch.Tensor
    bounds: NDArray[np.int64]
    cuts: list[int]
    longest: list[int]


_TOGETHER: Final[WeakKeyDictionary[PlannedBatches, _Together]] = WeakKeyDictionary()
"""The latest ones of each plan."""


def _together(plan: PlannedBatches, first: int, columns: WindowColumns) -> _Together:
    rows, length = plan.shapes[first]
    count = min(max(1, SLOTS // (rows * length)), len(plan) - first)
    span = slice(plan.ends[first], plan.ends[first + count])
    assert plan.pieces is not None
    pieces = PackedPieces(*(field[span] for field in plan.pieces))
    owners = np.repeat(np.arange(count), np.diff(plan.bounds[first : first + count + 1]))
    pieces = pieces._replace(rows=pieces.rows + owners * rows)
    shape = count * rows, length
    segments = _segments(pieces, *shape)
    sizes = np.diff(segments.bounds)
    slots = np.arange(shape[0] * shape[1])
    places = slots - np.repeat(segments.bounds[:-1], sizes)
    segment_ids = np.repeat(segments.ids, sizes).reshape(shape)
    gap = segment_ids == 0
    tokenwise = [column for column in columns.all if isinstance(column, ListColumn) and column.follows is not None]
    out: dict[str, torch.Tensor] = {}
    for column in tokenwise:
        if column.name != MASK:
            sources = (column.starts[plan.numbers[span]] + pieces.starts)[segments.pieces] - segments.bounds[:-1]
            out[column.name] = column.spread((slots + np.repeat(sources, sizes)).reshape(shape), gap)
    names = [column.name for column in columns.all]
    ignored = columns.fill(LABELS)
    if SHIFTED in names and SHIFTED not in out:
        raise DataError(
            f"there is a column {SHIFTED!r}, which token_columns={list(columns.rules.token_columns or ())} does not name, so a "
            "packed batch would have all of its tokens as labels. Name it there, or drop it"
        )
    if SHIFTED in out:
        out[SHIFTED].view(-1)[torch.from_numpy(segments.bounds[1:] - 1)] = columns.fill(SHIFTED)
    if LABELS not in names:
        tokens = out[SHIFTED].view(-1).roll(1).view(shape) if SHIFTED in out else out[columns.given[0]]
        labels = tokens.to(torch.int64, copy=True).masked_fill_(torch.from_numpy(gap), int(ignored))
        out[LABELS] = columns.made(LABELS, labels.numpy())
    if LABELS in out:
        out[LABELS].view(-1)[torch.from_numpy(segments.bounds[:-1])] = ignored
    cuts = np.searchsorted(segments.bounds, np.arange(count + 1) * rows * length)
    most = np.maximum.reduceat(sizes, cuts[:-1])
    longest = np.minimum(-(-most // SEQLEN_STEP) * SEQLEN_STEP, length)
    positions = columns.made("position_ids", places.reshape(shape))
    rows_of = segments.bounds[:-1] // length
    in_row = np.arange(len(rows_of)) - np.searchsorted(rows_of, rows_of)
    seq_idx = torch.from_numpy(np.repeat(in_row.astype(np.int32), sizes).reshape(shape))
    made = positions, columns.made("segment_ids", segment_ids), seq_idx
    return _Together(first, out, *made, segments.bounds, cuts.tolist(), longest.tolist())


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


def _segments(pieces: PackedPieces, num_rows: int, row_length: int) -> _Segments:
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
