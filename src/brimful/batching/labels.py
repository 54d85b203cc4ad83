"""How many labels of each batch are trained on, as integers: from what an index knows of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.batching.batch import Batch, NumLabels, PlannedWindow
from brimful.batching.window import IntArray, PlanningWindow
from brimful.index.index import has_null
from brimful.plan.dealing import part_sums
from brimful.plan.overlong import split_long
from brimful.tables.arrays import kind_of
from brimful.tables.ragged import (
    LABELS,
    NOT_TRAINED_ON,
    SHIFTED,
    TOKENS,
    gather,
    inner_shape,
    is_list,
    loss_labels,
    numpy_of,
    ragged,
    trained_on,
)


class LabelsFollow(NamedTuple):
    """How the labels of a data set are counted, as far as settings say it.

    Args:
        labels, shifted: the number of the length column that `labels`, and that `shift_labels`, are cut with; None: they have
            lengths of their own, and are not cut.
        lengths: the length columns. Where one is missing, nothing is cut. Packing makes labels of the first where there are none.
        as_numbers: those of the two that become tensors of fractions or truth values, of which -100 is one.
        functions: those of the length columns that are functions of the user's.
        stacks: a sample has several sides, which a loss compares: it counts as one, whatever its labels are.
        weights: the column that says what a sample counts for in a mean over samples; None: each counts for 1.
        piece_length: where packing splits samples, the most tokens of a piece; else 0.
    """

    labels: int | None = None
    shifted: int | None = None
    lengths: tuple[str, ...] = (TOKENS,)
    as_numbers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    stacks: bool = False
    weights: str | None = None
    piece_length: int = 0

    @property
    def weighs(self) -> bool:
        """Whether samples, or pieces, may count for something else than 1 in a mean over samples."""
        return self.weights is not None or self.piece_length > 0

    def is_cut_with(self, schema: pa.Schema, number: int) -> bool:
        """Whether all length columns are there, and this one is a list."""
        name = self.lengths[number]
        there = {*self.lengths} <= {*schema.names, *self.functions}
        return there and name in schema.names and is_list(schema.field(name).type)


class LossLabels(NamedTuple):
    """The labels that a loss is taken over.

    Args:
        name: their column, or the one that they are made of.
        by: what counts as one: a "token" that is not -100, a "class" (a sample, unless all that it has are -100), a "sample".
        follows: the number of the length column that tokens are cut with; None: they are not cut.
    """

    name: str
    by: Literal["token", "class", "sample"]
    aligned_with: int | None = None


def labels_of(schema: pa.Schema, packs: bool, follow: LabelsFollow) -> LossLabels | None:
    """How the labels of rows of this schema are counted; None where there are none, or none that are numbers.

    Lists of integers are those of tokens, unless they lie beside `input_ids` that are planned over, and do not go with them.

    >>> schema = pa.schema(dict.fromkeys(["input_ids", "labels"], pa.list_(pa.int64())))
    >>> labels_of(schema, False, LabelsFollow(labels=0)), labels_of(schema, False, LabelsFollow())
    (LossLabels(name='labels', by='token', aligned_with=0), LossLabels(name='labels', by='class', aligned_with=None))
    """
    if follow.stacks:
        return LossLabels(follow.lengths[0], "sample")
    name = loss_labels(schema.names)
    if name is None:
        tokens = follow.lengths[0]
        of_arrays = tokens in schema.names and inner_shape(schema.field(tokens).type)
        return LossLabels(tokens, "token", 0) if packs and not of_arrays else None
    kind, depth = schema.field(name).type, 0
    if (arrays := kind_of(kind)) is not None:
        kind, depth = arrays.value_type, 2
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    aligned_with = follow.shifted if name == SHIFTED else follow.labels
    if aligned_with is not None and not follow.is_cut_with(schema, aligned_with):
        aligned_with = None
    if pa.types.is_integer(kind) and depth == 1 and (aligned_with is not None or TOKENS not in follow.lengths):
        return LossLabels(name, "token", aligned_with)
    if pa.types.is_integer(kind) and depth < 2 and name not in follow.as_numbers:
        return LossLabels(name, "class")
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return LossLabels(name, "sample") if is_number else None


class Labelled(NamedTuple):
    """The labels of some samples, or pieces, int64 (n,) each: see `NumLabels`."""

    given: IntArray
    edges: IntArray


Count: TypeAlias = Callable[[IntArray, IntArray, IntArray], Labelled]
"""Counts the labels of samples, or pieces: of sample numbers[i] the tokens starts[i] to starts[i] + kept[i]."""


def counted(batches: PlannedWindow, follow: LabelsFollow, rows: bool = False) -> Sequence[NumLabels | None]:
    """The number of labels of each batch that are trained on, where the index knows it, or packing makes them of the tokens; else
    None. An index knows `labels` alone: of `shift_labels` by token `read` counts them.

    Args:
        follow: labels of samples that are cut are counted one by one, and for this their rows are fetched.
        rows: count in the rows that a window holds, where no index knows.
    Price: 70 ns a sample; 10 ns a token of those that are cut.
    """
    window, packs = batches.window, batches.pieces is not None
    labels = labels_of(window.schema, packs, follow)
    unknown: list[NumLabels | None] = [None] * len(batches)
    if labels is None or (labels.by == "token" and labels.name == SHIFTED):
        return unknown
    by, is_made = labels.by, labels.name not in (LABELS, SHIFTED)
    knows = by != "sample" and (rows or window.index is not None or is_made)
    found = window.num_labels(labels.name) if knows else None
    if found is None and by != "sample" and not is_made:
        return unknown
    weights = None if follow.weights is None else window.weights(follow.weights)
    if weights is None and follow.weights is not None:
        return unknown

    def count(numbers: IntArray, starts: IntArray, kept: IntArray) -> Labelled:
        none = np.zeros(len(numbers), np.int64)
        if by == "sample":
            return Labelled(none + 1, none)
        if found is None or (is_made and (found[0] == found[1]).all()):  # hardly any token is -100
            return Labelled(kept, (kept > 0).astype(np.int64))  # each token but the first of a piece
        sizes, given, edges = found[:, numbers]
        if by == "class":
            return Labelled(np.minimum(given, 1), none)
        if labels.aligned_with is None:
            return Labelled(given, none)
        cut = np.flatnonzero(kept < sizes)
        if len(cut):
            given[cut], edges[cut] = _in_pieces(window, labels.name, numbers[cut], starts[cut], kept[cut])
        return Labelled(given, edges)

    each = count(batches.numbers, *_kept(batches, slice(None), labels.aligned_with))
    each = _without_gaps(each, window, batches.numbers) if is_made else each
    has = _as_they_lie(each, packs) > 0
    given, edges, samples = (batches.sums(one).tolist() for one in (*each, has))
    if not follow.weighs:
        return [*map(NumLabels, given, edges, samples)]
    sums = part_sums(
        np.repeat(np.arange(len(batches)), np.diff(batches.bounds)),
        has * _weights(batches, slice(None), follow, weights, each, count),
        len(batches),
    )
    return [*map(NumLabels, given, edges, samples, sums.tolist())]


def loss_weights(batch: Batch, follow: LabelsFollow) -> NDArray[np.float64] | None:
    """What each sample, or piece, of a batch counts for in a mean over samples, float64 (b,); None where each counts for 1.

    A sample has the weight that its row says. Each of its pieces has a share of it: that of the sample's labels that the piece
    has, so that the sample counts once however it is cut.
    """
    if not follow.weighs:
        return None
    window, plan, span = batch.window, batch.plan, batch.span
    labels = labels_of(window.block.schema, plan.pieces is not None, follow)
    own = None if follow.weights is None else window.weights(follow.weights)
    count = None if labels is None else _counter(window, labels, plan.pieces is not None)
    each = None if count is None else count(batch.numbers, *_kept(plan, span, labels and labels.aligned_with))
    weights = _weights(plan, span, follow, own, each, count)
    if batch.weight == 0:
        weights[:] = 0
    elif plan.left_out is not None:
        weights[plan.left_out[span]] = 0
    return weights


def _without_gaps(labels: Labelled, window: PlanningWindow, numbers: IntArray) -> Labelled:
    """Labels that packing makes, less those of tokens before which some were left out: nothing there predicts them."""
    return labels if window.gaps is None else labels._replace(given=labels.given - (window.gaps[numbers] > 0))


def _as_they_lie(labels: Labelled, packs: bool) -> IntArray:
    """How many labels of each sample, or piece, are trained on in its batch."""
    return labels.given - labels.edges if packs else labels.given


def _weights(
    batches: PlannedWindow,
    which: slice,
    follow: LabelsFollow,
    weights: NDArray[np.float64] | None,
    each: Labelled | None,
    count: Count | None,
) -> NDArray[np.float64]:
    """See `loss_weights`. `weights`: those of the samples of the window; `each`: the labels of these samples, or pieces."""
    window, numbers = batches.window, batches.numbers[which]
    found = np.ones(len(numbers)) if weights is None else weights[numbers]
    if not follow.piece_length or each is None or count is None:
        return found
    lengths = window.lengths.reshape(len(window), -1)[:, 0]
    if not (split := np.flatnonzero(lengths[numbers] > follow.piece_length)).size:
        return found
    totals = _TOTALS.get(window)
    if totals is None:  # of all pieces, wherever these are
        long = np.flatnonzero(lengths > follow.piece_length)
        samples, starts, kept = split_long(lengths[long], follow.piece_length)
        of_pieces = _as_they_lie(count(long[samples], starts, kept), True)
        totals = _TOTALS[window] = np.ones(len(window))
        totals[long] = np.maximum(part_sums(samples, of_pieces, len(long)), 1)
    found[split] *= _as_they_lie(each, True)[split] / totals[numbers[split]]
    return found


_TOTALS: Final[WeakKeyDictionary[PlanningWindow, NDArray[np.float64]]] = WeakKeyDictionary()
"""The labels of each sample of a window that is split, all of its pieces together."""


def step_labels(found: Sequence[NumLabels | None]) -> NumLabels | None:
    """The labels of all batches of a step; None where those of one are not known.

    >>> step_labels([NumLabels(5, 1, 2), NumLabels(2, 0, 1)]), step_labels([NumLabels(5, 1), None])
    (NumLabels(given=7, edges=1, samples=3, weights=0.0), None)
    """
    if None in found:
        return None
    return NumLabels(*(sum(parts) for parts in zip(NumLabels(0, 0), *filter(None, found))))


def read(batch: Batch, follow: LabelsFollow) -> NumLabels | None:
    """The labels of a batch that the loss is taken over and that are trained on, counted in its rows; None where it has none that
    are numbers, or some are null. A filler has none.

    Price: that of locating the rows, which is done once for all that the batch's window is asked for, and 10 ns a token.
    """
    window, packs = batch.window, batch.plan.pieces is not None
    labels = labels_of(window.block.schema, packs, follow)
    count = None if labels is None else _counter(window, labels, packs)
    if labels is None or count is None:
        return None
    if batch.weight == 0:
        return NumLabels(0, 0)
    each = count(batch.numbers, *_kept(batch.plan, batch.span, labels.aligned_with))
    each = _without_gaps(each, window, batch.numbers) if labels.name not in (LABELS, SHIFTED) else each
    has = _as_they_lie(each, packs) > 0
    given, edges, samples = (int(one.sum()) for one in (*each, has))
    weights = loss_weights(batch, follow)
    if weights is None:
        return NumLabels(given, edges, samples)
    (total,) = part_sums(np.zeros(len(has), np.int64), has * weights, 1)  # one after another, as `counted` adds them
    return NumLabels(given, edges, samples, float(total))


def _counter(window: PlanningWindow, labels: LossLabels, packs: bool) -> Count | None:
    """Counts labels in the rows of a window; None where these lack them, or some are null."""
    block = window.block
    if labels.name not in block.schema.names or has_null(column := block.column(labels.name)):
        return None  # whoever makes a tensor of it says which row

    def count(numbers: IntArray, starts: IntArray, kept: IntArray) -> Labelled:
        rows, none = window.rows[numbers], np.zeros(len(numbers), np.int64)
        if labels.by == "sample":
            return Labelled(none + 1, none)
        if not is_list(column.type):
            return Labelled((numpy_of(column)[rows] != NOT_TRAINED_ON).astype(np.int64), none)
        values = window.ragged(labels.name)
        begins, sizes = values.spans(rows)
        if labels.aligned_with is None:
            asked = trained_on(*gather(values.values, begins, sizes))[0]
            return Labelled(np.minimum(asked, 1) if labels.by == "class" else asked, none)
        goes_on = starts + kept < sizes
        begins, sizes = begins + starts, np.clip(sizes - starts, 0, kept)
        if labels.name != SHIFTED:
            return Labelled(*trained_on(*gather(values.values, begins, sizes)))
        # the token that the last slot of a cut sample, or of a piece, would predict is not in the batch
        ends = np.flatnonzero((sizes > 0) & ~goes_on)
        none[ends] = values.values[(begins + sizes - 1)[ends]] != NOT_TRAINED_ON
        return Labelled(trained_on(*gather(values.values, begins, np.maximum(sizes - goes_on, 0)))[0], none)

    return count


def _kept(batches: PlannedWindow, which: slice, aligned_with: int | None) -> tuple[IntArray, IntArray]:
    """The first label of some samples, or pieces, that is in their batches, and how many are; nothing where they are not cut."""
    if batches.pieces is not None:
        return batches.pieces.starts[which], batches.pieces.lengths[which]
    if aligned_with is None:
        return batches.numbers[:0], batches.numbers[:0]
    kept = batches.sizes[which] if batches.sizes.ndim == 1 else batches.sizes[which, aligned_with]
    return np.broadcast_to(np.int64(0), len(kept)), kept


def _in_pieces(
    window: PlanningWindow, column: str, numbers: IntArray, starts: IntArray, sizes: IntArray
) -> tuple[IntArray, IntArray]:
    """How many labels of pieces of samples are trained on, and whether the first one is; the rows are fetched for it."""
    distinct, which = np.unique(window.samples[numbers], return_inverse=True)
    block, rows = window.locate(distinct)
    labels = ragged(block, column)
    begins = labels.spans(rows)[0][which] + starts
    low, high = int(begins.min()), int((begins + sizes).max())
    if high - low > 2 * int(sizes.sum()):  # of all rows there are, in memory: the wanted ones are put together first
        return trained_on(*gather(labels.values, begins, sizes))
    return trained_on(labels.values[low:high], begins - low, begins + sizes - low)
