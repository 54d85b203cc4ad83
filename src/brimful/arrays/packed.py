"""Rows of samples end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from brimful.arrays.columns import ListColumn, WindowColumns, refuse_taken
from brimful.arrays.forms import kinds_of
from brimful.arrays.layout import Layout
from brimful.arrays.types import ColumnType, held_in
from brimful.batching.batch import Batch, NumLabels, PackedPieces, PlannedWindow
from brimful.plan.errors import DataError
from brimful.tables.origins import where
from brimful.tables.ragged import (
    COLUMN_KINDS,
    LABELS,
    MASK,
    NOT_TRAINED_ON,
    SHIFTED,
    TOKENS,
    loss_labels,
    offsets_of,
    prefix_of,
    runs,
)

SEQLEN_STEP: Final = 128
"""`max_seqlen` is rounded up to a multiple of it: each new value may compile a kernel anew."""
SLOTS: Final = 1 << 17
"""So many are made at once, of several batches: small arrays take as long as the calls that make them."""
OF_SEGMENTS: Final = (
    *("position_ids", "segment_ids", "seq_idx", "cu_seqlens", "max_seqlen"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache", COLUMN_KINDS),
)
"""What is made of the segments, beside what is of pieces."""
SEQ_IDX: Final = ColumnType("int32", np.dtype(np.int32), None)


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Rows of samples end to end, with what keeps them apart.

    Shapes, for R rows of L tokens with n segments (the samples or pieces, and the padding at the end of each row that has some,
    or all of a row that is empty, so that a kernel leaves no slot undefined): each token column, `position_ids` (restart at 0)
    and `segment_ids` (1, 2 ... in each row; 0: padding) (R, L) int64; `labels` likewise, those of the column, or else of
    `shift_labels`, or else the tokens (unless these are arrays, such as frames), -100 in padding and at the first token of each
    segment (of `shift_labels` at the last one); `cu_seqlens` (n + 1,) int32 over the R x L slots; `max_seqlen`, an int, rounded
    up to a multiple of 128 (each new value may compile anew); `lengths`, `sample_numbers` (p,) int64 (rows of the data set, of a
    stream those of its window) and other columns: of the p pieces, in order. An empty sample is a piece without a segment. The
    boundaries are there under the names of transformers' flash attention too: cu_seq_lens_q, cu_seq_lens_k, max_length_q,
    max_length_k. `seq_idx` (R, L) int32 numbers the segments of each row from 0, padding included: what kernels of convolutions
    and of state-space layers take (causal-conv1d, mamba-ssm), and transformers' models hand on to them.
    `column_kinds` says of each column by name whether it has a value for each of the "slots" or of the "pieces", so that a batch
    can be cut between samples.
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

    name = "packed"
    packs = True
    by_row = False

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        rows = _rows_of(batch.plan, columns)
        out: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        for column in rows.others:
            entries = columns.entries(column, batch.numbers, "concat")
            kinds |= kinds_of(entries, column.name)
            out |= entries
        rows.put(out, batch.place, batch.span)
        out[COLUMN_KINDS] |= kinds
        return out

    def num_labels(self, known: NumLabels) -> int:
        """Those that nothing in the row predicts, or that nothing in it is predicted from, are left out."""
        return known.given - known.edges

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        """Only tokens in memory are looked through before for those that are -100, of which no label is made."""
        window, pieces, (tokens, *_) = batch.window, batch.pieces, columns.given
        if not _rows_of(batch.plan, columns).may_hide_labels or window.num_labels(tokens) is not None:
            return
        assert pieces is not None
        after_gaps = 0 if window.gaps is None else int((window.gaps[batch.numbers] > 0).sum())
        counted = int((pieces.lengths - (pieces.lengths > 0)).sum()) - after_gaps
        if counted != (made := int((item[LABELS] != NOT_TRAINED_ON).sum())):
            raise DataError(
                f"packing makes {made:,} labels of {tokens!r}, and {number} counts {counted:,}: the other tokens are "
                f"{NOT_TRAINED_ON}, which is no label (the first sample is "
                f"{where(window.block, int(window.rows[batch.numbers[0]]))}). Give the samples labels, by causal_labels(), "
                "before you write a store"
            )


class _Together(NamedTuple):
    """Batches that are made at once, one below the other, in types that just hold what is in them; each is handed on as a copy.

    Args:
        first: the place of the first one.
        made: what has a value for each slot, by name, with the type of its arrays.
    """

    first: int
    made: dict[str, tuple[NDArray[Any], ColumnType]]


class _PackedRows:
    """The segments of all batches of a plan, looked up once, and the slots of the latest of them.

    Those of batch i are `segments.firsts[cuts[i] : cuts[i + 1]]`; `longest`: `max_seqlen` of each batch; `of_pieces`: what
    has a value for each piece, by name; `others`: columns of samples; `may_hide_labels`: whether labels are made of
    tokens of which some may be -100. What counts within a row takes 16 bits where these suffice.
    """

    def __init__(self, plan: PlannedWindow, columns: WindowColumns) -> None:
        (self._rows, self._length), count, pieces = plan.shapes[0], len(plan), plan.pieces
        assert pieces is not None
        owners = np.repeat(np.arange(count), np.diff(plan.bounds))
        pieces = pieces._replace(rows=pieces.rows + owners * self._rows)
        self.columns, self._count = columns, count
        each = self._rows * self._length
        self._at_once = max(1, SLOTS // each)
        slots = min(self._at_once, count) * each
        self.segments = segments = _segments(pieces, count * self._rows, self._length)
        firsts = segments.firsts
        self._sizes = np.diff(firsts, append=count * each)
        cuts = np.searchsorted(firsts, np.arange(count + 1) * each)
        most = np.maximum.reduceat(self._sizes, cuts[:-1])
        self.cuts: list[int] = cuts.tolist()
        self.longest: list[int] = np.minimum(-(-most // SEQLEN_STEP) * SEQLEN_STEP, self._length).tolist()
        self._bounds = np.insert(firsts % each, cuts[1:], each).astype(np.int32)
        begins = firsts % self._length
        heads = np.flatnonzero(begins == 0)  # each row begins with a segment
        in_row = np.arange(len(firsts)) - np.repeat(heads, np.diff(heads, append=len(firsts)))
        small = np.int16 if self._length <= np.iinfo(np.int16).max else np.int32
        self._begins, self._in_row = begins.astype(small), in_row.astype(small)
        self._columns_of_slots = np.tile(np.arange(self._length, dtype=small), slots // self._length)
        tokenwise = [one for one in columns.all if isinstance(one, ListColumn) and one.aligned_with is not None]
        self.others = [one for one in columns.all if one not in tokenwise]
        self._tokenwise = {
            one: (one.starts[plan.numbers] + pieces.starts)[segments.pieces] - firsts
            for one in tokenwise
            if one.name != MASK
        }
        self._slots = np.arange(slots)
        self._seams = np.empty(0, np.int64)  # the slots before which tokens of a sample were left out
        if plan.window.gaps is not None:
            heads = np.where(segments.padding, 0, plan.window.gaps[plan.numbers[segments.pieces]])
            self._seams = (firsts + heads)[heads > 0]
        made_of = columns.given[:1] if loss_labels([one.name for one in columns.all]) is None else ()
        self.may_hide_labels = any(one.name in made_of and one.values.dtype.kind != "u" for one in tokenwise)
        sizes = plan.sizes if plan.sizes.ndim == 1 else plan.sizes[:, 0]
        of_pieces = {"lengths": sizes, "sample_numbers": plan.window.samples[plan.numbers]}
        self.of_pieces = {name: columns.made(name, values) for name, values in of_pieces.items()}
        refuse_taken((*OF_SEGMENTS, *self.of_pieces), {column.name for column in columns.all})
        self._latest: _Together | None = None

    def put(self, out: dict[str, Any], place: int, pieces: slice) -> None:
        """Puts what is made of the pieces of a batch into it."""
        latest = self._latest
        if latest is None or not latest.first <= place < latest.first + self._at_once:
            latest = self._latest = self._made(place)
        first = (place - latest.first) * self._rows
        own = slice(first, first + self._rows)
        for name, (values, kind) in latest.made.items():
            out[name] = values[own].astype(kind.made)
        bounds = self._bounds[self.cuts[place] + place : self.cuts[place + 1] + place + 1].copy()
        out["cu_seqlens"] = out["cu_seq_lens_q"] = out["cu_seq_lens_k"] = bounds
        out["max_seqlen"] = out["max_length_q"] = out["max_length_k"] = self.longest[place]
        out["use_cache"] = False
        for name, values in self.of_pieces.items():
            out[name] = values[pieces].copy()
        out[COLUMN_KINDS] = {**dict.fromkeys(self.of_pieces, "pieces"), **dict.fromkeys(latest.made, "slots")}

    def _made(self, first: int) -> _Together:
        columns, last = self.columns, min(first + self._at_once, self._count)
        shape = (last - first) * self._rows, self._length
        own = slice(self.cuts[first], self.cuts[last])
        before = first * self._rows * self._length
        sizes, starts = self._sizes[own], self.segments.firsts[own] - before
        slots = shape[0] * shape[1]
        tails = np.flatnonzero(self.segments.padding[own])
        gaps = runs(starts[tails], offsets_of(sizes[tails]))
        made: dict[str, tuple[NDArray[Any], ColumnType]] = {}
        for column, sources in self._tokenwise.items():
            index = np.repeat(sources[own] + before, sizes)
            index += self._slots[:slots]
            made[column.name] = column.spread(index, gaps), column.type
        names = [column.name for column in columns.all]
        if SHIFTED in names and SHIFTED not in made:
            raise DataError(
                f"there is a column {SHIFTED!r}, which token_columns={list(columns.rules.token_columns or ())} does not name, so "
                "a packed batch would have all of its tokens as labels. Name it there, or drop it"
            )
        tokens_of = columns.given[0]
        for kind in (LABELS, MASK):  # which packing would make by itself: of all tokens
            if (name := prefix_of(tokens_of) + kind) in names and kind not in names:
                raise DataError(
                    f"there is a column {name!r}, and a batch packed by {tokens_of!r} would have all of its tokens as {kind}: "
                    f"rename({{{tokens_of!r}: {TOKENS!r}, {name!r}: {kind!r}}}), and leave length_column out; or drop({name!r})"
                )
        if SHIFTED in made:
            made[SHIFTED][0][starts + sizes - 1] = columns.fill(SHIFTED)
        ignored = columns.fill(LABELS)
        is_array = made[columns.given[0]][0].ndim > 1  # of which no labels are made
        if LABELS not in names and not is_array:
            tokens = np.roll(made[SHIFTED][0], 1) if SHIFTED in made else made[columns.given[0]][0]
            labels = tokens.astype(held_in(tokens.dtype, ignored, np.dtype(np.int64)))
            labels[gaps] = ignored
            low, high = np.searchsorted(self._seams, [before, before + slots])
            labels[self._seams[low:high] - before] = ignored
            made[LABELS] = labels, columns.type_of(LABELS, labels)
        if LABELS in made:
            made[LABELS][0][starts] = ignored
        positions = self._columns_of_slots[:slots] - np.repeat(self._begins[own], sizes)
        in_row = np.repeat(self._in_row[own], sizes)
        segment_ids = in_row + np.int8(1)
        segment_ids[gaps] = 0
        segment = {"position_ids": positions, "segment_ids": segment_ids}
        made |= {name: (values, columns.type_of(name, values)) for name, values in segment.items()}
        made["seq_idx"] = in_row, SEQ_IDX
        rows = {name: (values.reshape(*shape, *values.shape[1:]), kind) for name, (values, kind) in made.items()}
        return _Together(first, rows)


_ROWS: Final[WeakKeyDictionary[PlannedWindow, _PackedRows]] = WeakKeyDictionary()


def _rows_of(plan: PlannedWindow, columns: WindowColumns) -> _PackedRows:
    found = _ROWS.get(plan)
    if found is None or found.columns is not columns:
        found = _ROWS[plan] = _PackedRows(plan, columns)
    return found


class _Segments(NamedTuple):
    """What follows what in rows of packed pieces: the pieces that are not empty, and the padding at the ends of rows.

    Args:
        firsts: the first slot of each, int64 (n,).
        pieces: which piece each is; any for padding.
        padding: whether it is the padding at the end of a row.
    """

    firsts: NDArray[np.int64]
    pieces: NDArray[np.int64]
    padding: NDArray[np.bool_]


def _segments(pieces: PackedPieces, num_rows: int, row_length: int) -> _Segments:
    totals = np.bincount(pieces.rows, weights=pieces.lengths, minlength=num_rows).astype(np.int64)
    filled = np.flatnonzero(pieces.lengths)
    rows, lengths = pieces.rows[filled], pieces.lengths[filled]
    ends = np.cumsum(totals)
    begins = np.cumsum(lengths) - lengths + (rows * row_length - (ends - totals)[rows])
    tails = np.flatnonzero(totals < row_length)
    firsts = np.concatenate((begins, tails * row_length + totals[tails]))
    order = np.argsort(firsts, kind="stable")  # two ascending runs are merged
    return _Segments(firsts[order], np.append(filled, np.zeros(len(tails), np.int64))[order], order >= len(filled))
